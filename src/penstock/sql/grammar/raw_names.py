"""Names in raw statements: tables and functions (raw_expression_tree_walker).

In: the tree of libpg_query, or raw statements. Out: names as they were written, except for those of
WITH queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from penstock.errors import SqlSyntaxError
from penstock.sql.grammar.libpg_query import parse_tree
from penstock.sql.grammar.parsenodes import RangeTable, SelectStmt


@dataclass(frozen=True, slots=True)
class Names:
    """The names in a query: (schema or "", table) pairs and functions."""

    tables: frozenset[tuple[str, str]]
    functions: frozenset[str]


def names_in(text: str) -> Names:
    """Return the tables and functions in one SELECT. Raises SqlSyntaxError for other texts."""
    trees = parse_tree(text)
    if len(trees) != 1 or "SelectStmt" not in trees[0]:
        raise SqlSyntaxError("a SELECT was expected")
    nodes = list(_nodes(trees[0]))
    within = {fields["ctename"] for kind, fields in nodes if kind == "CommonTableExpr"}
    tables = {
        (fields.get("schemaname", ""), fields["relname"])
        for kind, fields in nodes
        if kind == "RangeVar"
    }
    functions = {fields["funcname"][-1]["String"]["sval"] for k, fields in nodes if k == "FuncCall"}
    return Names(frozenset(t for t in tables if t[0] or t[1] not in within), frozenset(functions))


def _nodes(tree: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (kind, fields) of every node below."""
    if isinstance(tree, list):
        for item in tree:
            yield from _nodes(item)
    elif isinstance(tree, dict):
        for name, value in tree.items():
            if name[:1].isupper() and isinstance(value, dict):
                yield name, value
            yield from _nodes(value)


def reads(raw: SelectStmt, name: str) -> bool:
    """Tell whether a query names a relation without a schema."""
    return any(
        isinstance(item, RangeTable) and item.relation.schema is None and item.relation.name == name
        for item in _items(raw)
    )


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, tuple):
        for item in value:
            yield from _items(item)
    elif is_dataclass(value):
        yield value
        for field in fields(value):
            yield from _items(getattr(value, field.name))
