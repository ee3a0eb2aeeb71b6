"""Partitioned tables of the catalog as levels of routing (partdesc.c, RelationBuildPartitionDesc).

In: rows of the catalog, the columns of the root. Out: ``Level``, whose constants have the types of
the columns; or the error for columns by which rows cannot be routed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

import penstock.pgtypes as pgtypes
from penstock.catalog import LakeTable
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.lakehouse.schema import Column, TableSchema
from penstock.pgtypes.hash_functions import hashable
from penstock.pgtypes.pg_type import BOOL
from penstock.pgtypes.registry import type_of_arrow
from penstock.pipeline.routing import (
    Bound,
    End,
    HashBound,
    Level,
    ListBound,
    RangeBound,
    check_comparable,
)
from penstock.sql.grammar.partition_bound import (
    Limit,
    PartitionBound,
    Strategy,
    key_columns,
    parse_partition_bound,
    strategy_of,
)

_NOWHERE: Final = -1


def belonging(table: LakeTable, bound: PartitionBound, columns: TableSchema) -> Level:
    """Return the level that gives 0 to rows of a partitioned table within a bound, 1 to all others.

    Raises FeatureNotSupported for columns whose values cannot be compared here.
    """
    key = _key(table, columns)
    within = _convert_bound(bound, [columns.by_source[c.name] for c in key])
    return Level(table.name, key, ((within, 0),), 1)


def routing_of(tree: Sequence[LakeTable], root: TableSchema) -> tuple[Level, tuple[LakeTable, ...]]:
    """Return the level that routes rows of the root, and the leaves by their numbers.

    Raises FeatureNotSupported for columns whose values cannot be compared here.
    """
    leaves: list[LakeTable] = []

    def below(table: LakeTable) -> int | Level:
        if table.partition_key is not None:
            return level(table)
        leaves.append(table)
        return len(leaves) - 1

    def level(table: LakeTable) -> Level:
        key = _key(table, root)
        bounds = [
            (child, parse_partition_bound(child.bound or "DEFAULT"))
            for child in tree
            if child.parent == table.oid
        ]
        default: int | Level | None = None
        partitions: list[tuple[Bound, int | Level]] = []
        for child, bound in bounds:
            if bound.strategy is Strategy.DEFAULT:
                default = below(child)
            else:
                partitions.append(
                    (_convert_bound(bound, [root.by_source[c.name] for c in key]), below(child))
                )
        return Level(table.name, key, tuple(partitions), default)

    return level(tree[0]), tuple(leaves)


def anywhere(level: Level) -> Level:
    """Return the same level, but with the number -1 for rows that belong nowhere."""

    def below(to: int | Level) -> int | Level:
        return anywhere(to) if isinstance(to, Level) else to

    partitions = tuple((bound, below(to)) for bound, to in level.partitions)
    default = _NOWHERE if level.default is None else below(level.default)
    return replace(level, partitions=partitions, default=default)


def _key(table: LakeTable, root: TableSchema) -> tuple[Column, ...]:
    assert table.partition_key is not None
    hashed = strategy_of(table.partition_key) is Strategy.HASH
    found = []
    for name in key_columns(table.partition_key):
        column = root.by_source[name]
        oid = _type_oid(column)
        if not hashed:
            check_comparable(name, oid, column.type)
        elif not hashable(oid):
            raise FeatureNotSupported(
                f'writing to tables that are partitioned by a hash of a column like "{name}" is '
                "not supported",
                detail="The hash function of its type is not known here.",
                hint="Partition by RANGE or LIST.",
            )
        found.append(replace(column, attribute=replace(column.attribute, type_oid=oid)))
    return tuple(found)


def _convert_bound(bound: PartitionBound, key: Sequence[Column]) -> Bound:
    match bound.strategy:
        case Strategy.HASH:
            return HashBound(bound.modulus, bound.remainder)
        case Strategy.LIST:
            values = [_constant(key[0], value) for value in bound.values if value is not None]
            array = pa.array([value.as_py() for value in values], key[0].type)
            return ListBound(array, None in bound.values)
    return RangeBound(_side(key, bound.lower), _side(key, bound.upper))


def _side(key: Sequence[Column], side: Sequence[str | Limit | None]) -> tuple[End, ...]:
    return tuple(
        value if isinstance(value, Limit) else _constant(column, value or "")
        for column, value in zip(key, side, strict=True)
    )


def _constant(column: Column, text: str) -> pa.Scalar:
    """Read a constant by the type's input function, or by Arrow if it was written shorter."""
    oid = _type_oid(column)
    try:
        raw = text[:1] if oid == BOOL else text
        value = pgtypes.find(oid).text_value(raw.encode(), column.attribute.typmod)
        return pa.scalar(value, column.type)
    except (PenstockError, pa.ArrowException, ValueError):
        try:
            return pa.scalar(text, pa.string()).cast(column.type)
        except pa.ArrowException:
            raise FeatureNotSupported(
                f'the bound "{text}" of a partition is not supported for column "{column.source}"'
            ) from None


def _type_oid(column: Column) -> int:
    return column.attribute.type_oid or type_of_arrow(column.type)[0]
