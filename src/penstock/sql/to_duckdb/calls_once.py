"""Calls that have an effect run as often as PostgreSQL runs them, or the statement is refused.

In: a query, DuckDB's SQL for it. Out: 0A000 where DuckDB would leave a call out (it drops columns
that nobody reads, with their effects), make it for other rows, or twice. Such calls are supported
in select lists, of subqueries too where the query around them reads the column of every row.
LIMIT of a UNION is left to ``postponed_targets``.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from penstock.errors import FeatureNotSupported
from penstock.pgtypes.pg_type import VOID
from penstock.sql.builtin import functions, functions_by_name
from penstock.sql.grammar.expressions import BoolOp
from penstock.sql.grammar.parsenodes import SetOperation
from penstock.sql.to_duckdb.catalog_functions import OF_BYTEA, CatalogFunction
from penstock.sql.to_duckdb.counted_rows import has_set
from penstock.sql.to_duckdb.postponed_targets import VOLATILE, parts
from penstock.sql.typed.primnodes import (
    BoolExpr,
    CaseExpr,
    CoalesceExpr,
    Coercion,
    CollateExpr,
    Const,
    FuncExpr,
    Node,
    OperatorCall,
    ScalarArrayOpExpr,
    Var,
    children,
    is_cast,
)
from penstock.sql.typed.query_nodes import (
    Aggref,
    Cte,
    CteScan,
    FromNode,
    FunctionScan,
    Join,
    Query,
    Relation,
    SeriesScan,
    SetOperationScan,
    SubLink,
    SubqueryScan,
    ValuesScan,
    WindowFunc,
)
from penstock.sqlstate import UndefinedFunction

_LOOKS: Final = re.compile(
    r"clock_timestamp|timeofday|random\w*|gen_random_uuid|uuidv\d|current_query|currval|lastval"
    r"|currtid2|amvalidate|array_(sample|shuffle)|ts_(stat|rewrite)|txid_status|pg_sleep\w*"
    r"|(query|cursor)_to_xml\w*|pg_(is|current|last|get|show|ls|read|partition|xact|control)_\w+"
    r"|pg_stat_(get_\w+|have_stats|file)|pg_(hba|ident)_file_\w+|pg_lock_status|pg_jit_available"
    r"|pg_(database_)?collation_actual_version|pg_logical_slot_(get|peek)_\w+|pg_sequence_last_value"
    r"|pg_(database|indexes|relation|table|tablespace|total_relation)_size|pg_prepared_xact"
    r"|pg_replication_origin_(session_)?(progress|is_setup)|pg_(safe_snapshot_)?blocking_pids"
    r"|pg_notification_queue_usage|pg_available_wal_summaries|pg_wal_summary_contents"
    r"|pg_isolation_\w+"
)
"""Volatile functions that change nothing: whether they are called is not to be seen. Those that
give a slot's changes are no calls in DuckDB's SQL, and move it when their rows have been read.
"""


_TAKE_EFFECTS: Final = frozenset(
    [
        *("abs", "btrim", "char_length", "concat", "left", "length", "lower", "lpad", "ltrim"),
        *("md5", "pg_size_pretty", "pg_wal_lsn_diff", "quote_ident", "quote_literal", "replace"),
        *("reverse", "right", "rpad", "rtrim", "strpos", "substr", "substring", "to_hex", "upper"),
    ]
)
"""Functions whose arguments DuckDB computes for each row and once. Macros of DuckDB's (``nullif``)
and templates of ours write an argument twice, or in a branch of CASE."""


def check_once(query: Query, sql: str, functions_: Mapping[str, CatalogFunction]) -> None:
    """Raises FeatureNotSupported where a call is written several times, and would be made so."""
    for name in functions_:
        called = name.removesuffix(OF_BYTEA)
        if _has_effect(called) and sql.count(f"pg__{name}(") > _calls(query, called):
            raise _refused(called, "in such an expression")


def check_effects(query: Query, give_rows: Container[str]) -> None:
    """Raise FeatureNotSupported. ``give_rows``: functions whose rows come whatever is read of
    them."""
    if _effect(query) is not None:
        _Effects(give_rows).columns(query)


class _Effects:
    """One statement. Columns are known by their numbers, from 1."""

    def __init__(self, give_rows: Container[str]) -> None:
        self._give_rows = give_rows

    def columns(self, query: Query) -> set[int]:
        """Return the columns of a query whose values have an effect. Raises FeatureNotSupported."""
        given = self._from(query)
        for number in given:
            relation = query.from_[0]
            assert isinstance(relation, Relation)
            column = Var(0, f"c{number}", relation=relation.name)
            if not any(_reads(target, column) for target in query.targets):
                raise _refused(_effect(query.from_), "in a subquery whose column is not read")
        self._check_clauses(query)
        found = set()
        for number, target in enumerate(query.targets, 1):
            if _effect(target) is not None:
                _check_expression(target)
                found.add(number)
            elif given and any(isinstance(node, Var) for node in _nodes(target)):
                found.add(number)
        return found

    def _check_clauses(self, query: Query) -> None:
        compared = query.targets if query.distinct else ()
        if any(node.type == VOID for node in (*compared, *query.group, *query.distinct_on)):
            raise _incomparable("equality")
        if any(key.node.type == VOID for key in query.sort):
            raise _incomparable("ordering")
        sorted_by = [key.node for key in query.sort if key.node not in query.targets]
        for clause, name in (
            (query.where, "in WHERE"),
            (query.group, "in GROUP BY"),
            (query.having, "in HAVING"),
            (query.distinct_on, "in DISTINCT ON"),
            (sorted_by, "in ORDER BY"),
            ((query.limit, query.offset), "in LIMIT"),
        ):
            _check_none(tuple(clause) if isinstance(clause, list) else clause, name)
        called = _effect(query.targets)
        if called is None:
            return
        if query.limit is not None and query.offset:
            raise _refused(called, "beside LIMIT with OFFSET")
        if any(map(has_set, query.targets)):
            raise _refused(called, "beside a function that returns a set")
        if sum(_effect(node) is not None for node in _aggregates(query.targets)) > 1:
            raise _refused(called, "in several aggregates")

    def _from(self, query: Query) -> set[int]:
        """Columns of the only item of FROM that have an effect."""
        for cte in query.ctes:
            self._check_cte(cte, query)
        if _effect(query.from_) is None and not query.ctes:
            return set()
        ctes = {cte.name: self.columns(cte.query) for cte in query.ctes}
        item = query.from_[0] if query.from_ else None
        gives_rows = isinstance(item, FunctionScan) and item.function in self._give_rows
        if len(query.from_) != 1 or not isinstance(item, Relation):
            # PostgreSQL calls it once there, whatever the rows of a catalog are joined to it by.
            others = query.from_[1:] if gives_rows else query.from_
            plain = not any(isinstance(other, Join | SeriesScan) for other in others)
            _check_none(others if plain else query.from_, "in a join")
            return set()
        if isinstance(item, FunctionScan) and gives_rows:
            _check_none(getattr(item.call, "arguments", ()), "in an argument of this function")
            return set()
        found = self._given(item, ctes)
        if isinstance(item, SetOperationScan) and query.limit is not None:
            return found
        around = query.where is not None or query.grouped or query.limit is not None or query.offset
        if found and (around or query.distinct_on):
            raise _refused(
                _effect((query.from_, query.ctes)),
                "in a subquery with WHERE, GROUP BY, LIMIT or an aggregate around it",
            )
        return found

    def _check_cte(self, cte: Cte, query: Query) -> None:
        """DuckDB and PostgreSQL differ on when and how far they compute one that is not all that is
        read."""
        alone = len(query.from_) == 1 and isinstance(query.from_[0], CteScan)
        name = getattr(query.from_[0], "cte", "") if alone else ""
        if name != cte.name or cte.again is not None:
            _check_none(cte, "in this WITH query")

    def _given(self, item: FromNode, ctes: Mapping[str, set[int]]) -> set[int]:
        match item:
            case SubqueryScan(query=query):
                return self.columns(query)
            case CteScan(cte=name):
                return ctes.get(name, set())
            case SetOperationScan(operation=operation, left=left, right=right):
                if not item.all and any(column.type == VOID for column in item.columns):
                    raise _incomparable("equality")
                if operation is not SetOperation.UNION:
                    _check_none((left, right), f"in {operation.value}")
                return self.columns(left) | self.columns(right)
            case ValuesScan(rows=rows):
                found = {
                    number
                    for row in rows
                    for number, value in enumerate(row, 1)
                    if _effect(value) is not None
                }
                for value in (value for row in rows for value in row):
                    _check_expression(value)
                return found
            case FunctionScan():
                _check_expression(item.call)
                return {1} if _effect(item) is not None else set()
        return set()


def _check_expression(node: Node) -> None:
    """What computes its operands only where it needs them has to do so in DuckDB, too."""
    match node:
        case BoolExpr(operator=BoolOp.AND | BoolOp.OR):
            _check_none(node, f"in {node.operator.value}")
        case SubLink():
            _check_none(node, "in a subquery of an expression")
        case WindowFunc():
            _check_none(node, "in a window function")
        case ScalarArrayOpExpr():
            _check_none(node, f"with {'ANY' if node.any else 'ALL'}")
        case FuncExpr(name=name) if not (is_cast(node) or _takes_effects(node)):
            _check_none(node.arguments, f"in an argument of {name}")
        case FuncExpr(oid=oid) | OperatorCall(function=oid) if _is_null_at_once(node, oid):
            _check_none(tuple(children(node)), "beside a constant NULL")
        case Aggref() if node.distinct and node.arguments[0].type == VOID:
            raise _incomparable("equality")
        case Aggref() if node.filter is not None or node.order:
            _check_none(node, "in an aggregate with FILTER or ORDER BY")
    for child in children(node):
        _check_expression(child)


def _takes_effects(node: FuncExpr) -> bool:
    return node.name in _TAKE_EFFECTS or _effect(replace(node, arguments=())) is not None


def _is_null_at_once(node: FuncExpr | OperatorCall, oid: int) -> bool:
    """Whether PostgreSQL knows without calling anything that it is NULL (simplify_function)."""
    called = functions().get(oid)
    strict = called is not None and called.strict
    return strict and any(map(_is_constant_null, node.arguments))


def _is_constant_null(node: Node) -> bool:
    match node:
        case Const(text=text):
            return text is None
        case Coercion(argument=argument) | CollateExpr(argument=argument):
            return _is_constant_null(argument)
        case FuncExpr(arguments=(argument, *_)) if is_cast(node):
            return _is_constant_null(argument)
    return False


def _check_none(item: Any, place: str) -> None:
    called = _effect(item)
    if called is not None:
        raise _refused(called, place)


def _refused(name: str | None, place: str) -> FeatureNotSupported:
    return FeatureNotSupported(
        f"{name} is not supported {place}",
        hint="Call it by itself in the select list of the statement.",
    )


def _incomparable(operator: str) -> UndefinedFunction:
    return UndefinedFunction(f"could not identify an {operator} operator for type void")


def _reads(node: Node, column: Var) -> bool:
    """Whether the value of the column is needed for every row."""
    if isinstance(node, Var):
        return (node.relation, node.name) == (column.relation, column.name)
    if isinstance(node, CaseExpr | CoalesceExpr | BoolExpr | SubLink | WindowFunc | Aggref):
        return False
    return any(_reads(child, column) for child in children(node))


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in children(node):
        yield from _nodes(child)


def _aggregates(targets: tuple[Node, ...]) -> Iterator[Node]:
    for target in targets:
        yield from (node for node in _nodes(target) if isinstance(node, Aggref))


def _effect(item: Any) -> str | None:
    """The name of a function with an effect that is called in an expression or a query."""
    if isinstance(item, FuncExpr):
        called = functions().get(item.oid)
        if called is not None and called.volatility == VOLATILE and not _LOOKS.fullmatch(item.name):
            return item.name
    return next((name for each in parts(item) if (name := _effect(each)) is not None), None)


def _has_effect(name: str) -> bool:
    found = functions_by_name().get(name, ())
    return any(row.volatility == VOLATILE for row in found) and not _LOOKS.fullmatch(name)


def _calls(item: object, name: str) -> int:
    own = isinstance(item, FuncExpr) and item.name == name
    return own + sum(_calls(each, name) for each in parts(item))
