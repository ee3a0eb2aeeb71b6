"""How a table is cut into units of copy work, and what each unit asks the publisher.

In: a published table with the size of its heaps, and the columns of its target. Out: SELECT
commands, packed so that a task reads about the same amount whatever the tables look like. Pure: no
Spark, no connection; who runs them is ``snapshot`` and ``snapshot_task``.

A heap is cut by ctid, which PostgreSQL 14 and later reads by TID range scans. The last range of a
heap is open: blocks may have been added since they were counted, and the snapshot may see rows in
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import penstock.pgtypes as pgtypes
from penstock.identifiers import quoted
from penstock.relation import Attribute
from penstock.walreceiver.table_info import LeafTable, RemoteTable

_UNITS_PER_CORE: Final = 8
_LARGEST_UNIT: Final = 512 << 20


@dataclass(frozen=True, slots=True)
class Unit:
    """What one task copies: ``queries`` one after the other; ``size``: estimated bytes."""

    queries: tuple[str, ...]
    size: int


def unit_bytes(size: int, cores: int, least: int) -> int:
    """How large the units of a table of ``size`` bytes are: ``least``, more of large tables.

    Each core gets the same number of them, or the last ones would keep some only. Up to twice as
    large for that: a unit costs a session at the publisher, too.
    """
    count = -(-size // max(least, min(size // (cores * _UNITS_PER_CORE), _LARGEST_UNIT)))
    if count > cores:
        count -= count % cores
    return -(-size // max(1, count))


def units_of(table: RemoteTable, columns: Sequence[Attribute], unit_bytes: int) -> list[Unit]:
    """Cut a table into units of about ``unit_bytes``; small partitions share one.

    ``columns``: the published columns in the order in which the target wants them. There is always
    at least one unit, even for a table that looks empty. Without columns its rows are counted.
    """
    selected = (
        ", ".join(
            pgtypes.find(c.type_oid).copy_expression(quoted(c.name), c.typmod) for c in columns
        )
        or "true"
    )
    units: list[Unit] = []
    queries: list[str] = []
    size = 0
    for leaf in table.leaves:
        for condition, piece in _ranges(leaf, unit_bytes):
            if queries and size + piece > unit_bytes:
                units.append(Unit(tuple(queries), size))
                queries, size = [], 0
            queries.append(_select(selected, leaf, condition, table.row_filter))
            size += piece
    return [*units, Unit(tuple(queries), size)]


def _ranges(leaf: LeafTable, unit_bytes: int) -> Iterator[tuple[str | None, int]]:
    """(condition on ctid, estimated bytes) of each piece; together they cover every block."""
    count = min(-(-leaf.size // unit_bytes), leaf.blocks) if leaf.by_ctid else 1
    if count <= 1:
        yield None, leaf.size
        return
    bounds = [leaf.blocks * number // count for number in range(count)]
    for number, low in enumerate(bounds):
        if number + 1 < count:
            high = bounds[number + 1]
            yield f"ctid >= '({low},0)'::tid AND ctid < '({high},0)'::tid", leaf.size // count
        else:
            yield f"ctid >= '({low},0)'::tid", leaf.size // count


def _select(selected: str, leaf: LeafTable, condition: str | None, row_filter: str | None) -> str:
    only = "ONLY " if leaf.only else ""
    name = f"{quoted(leaf.schema)}.{quoted(leaf.name)}"
    conditions = [condition] if condition else []
    if row_filter:
        conditions.append(f"({row_filter})")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {selected} FROM {only}{name}{where}"
