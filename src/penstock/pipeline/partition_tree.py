"""Partitioned tables of the catalog as levels of routing (partdesc.c, RelationBuildPartitionDesc).

Rows of the catalog and the columns of the root make a ``Level``, whose constants have the types of
the columns. Columns by which rows cannot be routed are an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final

import pyarrow as pa

import penstock.pgtypes as pgtypes
from penstock.catalog import LakeTable
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.lakehouse.schema import Column, TableSchema
from penstock.pgtypes.family import Unfit
from penstock.pgtypes.hash_functions import hashable
from penstock.pgtypes.pg_type import INTEGERS
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
from penstock.sql.typed.input_functions import input_function

_FRACTION: Final = re.compile(r"[-+]?\d*\.\d*")
"""A number that an integer column rounds. If it was in quotes, which its text does not show,
PostgreSQL would refuse it."""


def belonging(table: LakeTable, bound: PartitionBound, columns: TableSchema) -> Level:
    """Return the level that gives 0 to rows of a partitioned table within a bound, 1 to all others.

    Raises FeatureNotSupported for columns whose values cannot be compared here.
    """
    key = _key(table, columns)
    return Level(table.name, key, ((_convert_bound(bound, key), 0),), 1)


def membership(table: LakeTable, tables: Sequence[LakeTable], root: TableSchema) -> Level | None:
    """Return the level that gives 0 only to rows within the bounds of a partition and of all tables
    above it (RelationGetPartitionQual); None for a table that is no partition. ``tables``: at least
    the tables above it and their partitions.

    Raises FeatureNotSupported for columns whose values cannot be compared here.
    """
    known = {each.oid: each for each in tables}

    def above(table: LakeTable, inside: int | Level) -> int | Level:
        if table.parent is None:
            return inside
        parent = known[table.parent]
        looked_at = tables if _bound(table).strategy is Strategy.DEFAULT else [table]

        def to(child: LakeTable) -> int | Level:
            return inside if child.oid == table.oid else 1

        return above(parent, _level(parent, looked_at, root, to))

    found = above(table, 0)
    return found if isinstance(found, Level) else None


def routing_of(tree: Sequence[LakeTable], root: TableSchema) -> tuple[Level, tuple[LakeTable, ...]]:
    """Return the level that routes rows of the root, and the leaves by their numbers.

    Raises FeatureNotSupported for columns whose values cannot be compared here.
    """
    leaves: list[LakeTable] = []

    def below(table: LakeTable) -> int | Level:
        if table.partition_key is not None:
            return _level(table, tree, root, below)
        leaves.append(table)
        return len(leaves) - 1

    return _level(tree[0], tree, root, below), tuple(leaves)


def _level(
    table: LakeTable,
    tables: Iterable[LakeTable],
    root: TableSchema,
    to: Callable[[LakeTable], int | Level],
) -> Level:
    """Return the level of a partitioned table. ``to``: where the rows of a partition go."""
    key = _key(table, root)
    default: int | Level | None = None
    partitions: list[tuple[Bound, int | Level]] = []
    for child in tables:
        if child.parent != table.oid:
            continue
        bound = _bound(child)
        if bound.strategy is Strategy.DEFAULT:
            default = to(child)
        else:
            partitions.append((_convert_bound(bound, key), to(child)))
    return Level(table.name, key, tuple(partitions), default)


def _bound(partition: LakeTable) -> PartitionBound:
    return parse_partition_bound(partition.bound or "DEFAULT")


def _key(table: LakeTable, root: TableSchema) -> tuple[Column, ...]:
    assert table.partition_key is not None
    hashed = strategy_of(table.partition_key) is Strategy.HASH
    found = []
    for name in key_columns(table.partition_key):
        column = root.by_source[name]
        oid, typmod = _type(column)
        if not hashed:
            check_comparable(name, oid, column.type)
        elif not hashable(oid):
            raise FeatureNotSupported(
                f'writing to tables that are partitioned by a hash of a column like "{name}" is '
                "not supported",
                detail="The hash function of its type is not known here.",
                hint="Partition by RANGE or LIST.",
            )
        found.append(
            replace(column, attribute=replace(column.attribute, type_oid=oid, typmod=typmod))
        )
    return tuple(found)


def _convert_bound(bound: PartitionBound, key: Sequence[Column]) -> Bound:
    match bound.strategy:
        case Strategy.HASH:
            return HashBound(bound.modulus, bound.remainder)
        case Strategy.LIST:
            ends = [_constant(key[0], value) for value in bound.values if value is not None]
            values = [end.as_py() for end in ends if not isinstance(end, Limit)]
            return ListBound(pa.array(values, key[0].type), None in bound.values)
    return RangeBound(_side(key, bound.lower), _side(key, bound.upper))


def _side(key: Sequence[Column], side: Sequence[str | Limit | None]) -> tuple[End, ...]:
    return tuple(
        value if isinstance(value, Limit) else _constant(column, value or "")
        for column, value in zip(key, side, strict=True)
    )


def _constant(column: Column, text: str) -> End:
    try:
        side, value = read_constant(*_type(column), text)
        if side == 0:
            return pa.scalar(value, column.type)
    except (PenstockError, pa.ArrowException):
        raise FeatureNotSupported(
            f'the bound "{text}" of a partition is not supported for column "{column.source}"'
        ) from None
    return Limit.MINVALUE if side < 0 else Limit.MAXVALUE


def read_constant(type_oid: int, typmod: int, text: str) -> tuple[int, Any]:
    """Read a constant of a bound by its type's input function (transformPartitionBoundValue).

    Return 0 and its value; or -1 or 1 and its text if it lies below or above all values that rows
    can have, as infinity does in a date. Raises PenstockError (22P02 and the like).
    """
    if type_oid in INTEGERS and _FRACTION.fullmatch(text):
        text = str(Decimal(text).to_integral_value(ROUND_HALF_UP))
    text = input_function(type_oid, typmod)(text)
    try:
        return 0, pgtypes.find(type_oid).text_value(text.encode(), typmod)
    except Unfit:
        below = text.startswith("-") or text.endswith(" BC")
        return -1 if below else 1, text


def _type(column: Column) -> tuple[int, int]:
    attribute = column.attribute
    if attribute.type_oid:
        return attribute.type_oid, attribute.typmod
    return type_of_arrow(column.type)
