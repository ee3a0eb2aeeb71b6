"""Volatile functions of a SELECT list under LIMIT: called for the rows that are left alone.

In: a query. Out: one that has the same rows and calls them after its LIMIT (planner.c,
make_sort_input_target), or 0A000. DuckDB works on many rows at a time: what stands in the SELECT
list of a sorted query it computes for all of them, and ``pg_drop_replication_slot(slot_name)``
with LIMIT 1 would drop every slot. For the rows of an OFFSET beside a LIMIT PostgreSQL calls them,
too; here they are not called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final

from penstock.sql.builtin import functions
from penstock.sql.to_duckdb.duckdb_values import refused
from penstock.sql.typed.primnodes import FuncExpr, Node, OperatorCall, Var, typmod_of
from penstock.sql.typed.query_nodes import (
    Aggref,
    FromNode,
    Join,
    OutputColumn,
    Query,
    Relation,
    SetOperationScan,
    SubqueryScan,
    WindowFunc,
)

VOLATILE: Final = "v"


def postponed(query: Query) -> Query:
    """Raises FeatureNotSupported where DuckDB would call one for rows that LIMIT leaves out."""
    if query.limit is None:
        return query
    if any(isinstance(node, SetOperationScan) and _is_volatile(node) for node in query.from_):
        raise refused("LIMIT of a UNION that calls volatile functions")
    sorted_by = [key.node for key in query.sort]
    late = [t for t in query.targets if _is_volatile(t) and t not in sorted_by]
    if not late or not query.from_ or query.distinct or query.distinct_on:
        return query
    own = {relation.name for node in query.from_ for relation in _relations(node)}
    scan = f"{min(own)}_left"
    inner: list[Node] = []

    def held(node: Node) -> Var:
        """The column of the limited query that has the value."""
        if node not in inner:
            inner.append(node)
        return Var(node.type, f"c{inner.index(node) + 1}", typmod_of(node), relation=scan)

    def held_below(item: Any) -> Any:
        if isinstance(item, Aggref | WindowFunc) or (
            isinstance(item, Node) and item in query.group
        ):
            return held(item)
        if isinstance(item, Var):
            return held(item) if item.relation in own else item
        return _changed(item, held_below)

    targets = tuple(held_below(t) if t in late else held(t) for t in query.targets)
    columns = tuple(OutputColumn("", node.type, typmod_of(node)) for node in inner)
    limited = replace(query, columns=columns, targets=tuple(inner), ctes=())
    from_ = (SubqueryScan(scan, columns, limited),)
    return Query(query.columns, targets, from_, ctes=query.ctes)


def _relations(node: FromNode) -> Iterator[Relation]:
    if isinstance(node, Join):
        yield from _relations(node.left)
        yield from _relations(node.right)
    else:
        yield node


def _is_volatile(item: Any) -> bool:
    """contain_volatile_functions, subqueries included."""
    if isinstance(item, FuncExpr | OperatorCall):
        called = functions().get(item.oid if isinstance(item, FuncExpr) else item.function)
        if called is not None and called.volatility == VOLATILE:
            return True
    return any(map(_is_volatile, parts(item)))


def parts(item: Any) -> Iterator[Any]:
    """What a node, a query or a tuple of them consists of."""
    if isinstance(item, tuple):
        yield from item
    elif is_dataclass(item):
        yield from (getattr(item, each.name) for each in fields(item))


def _changed(item: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(item, tuple):
        return tuple(map(change, item))
    if not is_dataclass(item) or isinstance(item, type):
        return item
    return replace(item, **{each.name: change(getattr(item, each.name)) for each in fields(item)})
