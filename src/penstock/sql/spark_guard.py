"""What a query on the lake may not hold, whoever asks: Spark can do more than read tables.

In: sqlglot's tree of a statement. Out: nothing, or PostgreSQL's error. A role that may read one
table must not reach files, other tables, the node's process or its settings through a function of
Spark's (``reflect``, ``table_changes``, ``input_file_name``), through a change inside a query, or
through Spark's substitution of ``${variables}`` in the text of statements.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from sqlglot import exp

from penstock.errors import FeatureNotSupported, PenstockError, UndefinedObject
from penstock.sql.builtin import functions

_CHANGES: Final = (exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Create, exp.Command, exp.Into)
_PARAMETERS: Final = (exp.Parameter, exp.SessionParameter, exp.Placeholder)
_ROW_SOURCES: Final = (exp.Unnest, exp.GenerateSeries, exp.ExplodingGenerateSeries)
_ALSO_KNOWN: Final = frozenset({"unnest", "coalesce", "nullif", "greatest", "least"})
_VARIABLE: Final = "${"


def check_tree(tree: exp.Expr) -> None:
    """``tree``: a SELECT, INSERT, UPDATE or DELETE. Raises FeatureNotSupported, UndefinedObject."""
    for node in tree.walk():
        if node is not tree and isinstance(node, _CHANGES):
            raise FeatureNotSupported(f"{node.key.upper()} inside a query is not supported")
        if isinstance(node, exp.BitString | exp.HexString | exp.ByteString):
            raise FeatureNotSupported("bit strings are not supported")
        if isinstance(node, _PARAMETERS):
            raise UndefinedObject("there is no parameter of that name", sqlstate="42P02")
        if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
            _check_function(str(node.name))
        elif isinstance(node, exp.Table):
            _check_source(node)
    _check_names(tree)


def check_query(tree: exp.Expr) -> None:
    """A statement that only reads. Raises as ``check_tree``."""
    if not isinstance(tree, exp.Query | exp.Values):
        raise FeatureNotSupported(f"{tree.key.upper()} inside a query is not supported")
    check_tree(tree)


def is_of_with(table: exp.Table) -> bool:
    """Whether a name is a query of a WITH that is seen from where the name stands."""
    if table.db:
        return False
    node: Any = table
    while node is not None:
        parent = node.parent
        clause = with_clause(parent)
        if clause is not None and node is not clause and _defines(clause, table.name):
            return True
        if isinstance(node, exp.CTE) and isinstance(parent, exp.With):
            earlier = parent.expressions[: parent.expressions.index(node)]
            if parent.args.get("recursive"):
                earlier = parent.expressions
            if any(query.alias == table.name for query in earlier):
                return True
        node = parent
    return False


def with_clause(node: Any) -> Any:
    """The WITH of a query; sqlglot has called it both."""
    return None if node is None else node.args.get("with_") or node.args.get("with")


def without_variables(text: str) -> str:
    """Spark SQL in which nothing is substituted: a string is what it says."""
    return text.replace(_VARIABLE, "\\u0024{")


def _defines(clause: Any, name: str) -> bool:
    return any(query.alias == name for query in clause.expressions)


def _check_names(tree: exp.Expr) -> None:
    # Spark has one WITH per statement, into which those of inner queries are moved.
    seen: set[str] = set()
    for query in tree.find_all(exp.CTE):
        if query.alias in seen:
            raise FeatureNotSupported(f'two queries of WITH by the name "{query.alias}"')
        seen.add(query.alias)


def _check_source(table: exp.Table) -> None:
    source = table.this
    if isinstance(source, exp.Identifier | exp.Anonymous):
        return
    if not isinstance(source, _ROW_SOURCES):
        raise FeatureNotSupported("this source of rows is not supported")


def _check_function(name: str) -> None:
    if name.lower() not in _known():
        raise PenstockError(f"function {name.lower()} does not exist", sqlstate="42883")


@cache
def _known() -> frozenset[str]:
    return frozenset(function.name for function in functions().values()) | _ALSO_KNOWN
