"""Checks of a new partition's bound against the other partitions (partbounds.c).

In: a partitioned table, the bound of a partition to be. Out: nothing, or PostgreSQL's error. Values
are compared as numbers if the column holds numbers, else as text, which is the order of ISO dates
and of collation C.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Final

from penstock.catalog import CatalogTransaction, LakeTable
from penstock.commands.namespace import table_columns
from penstock.commands.scope import CommandScope
from penstock.errors import InvalidParameterValue
from penstock.pgtypes.pg_type import FLOATS, INTEGERS, NUMERIC, OID
from penstock.sql import Limit, PartitionBound, Strategy, parse_partition_bound
from penstock.sql.grammar.partition_bound import key_columns, strategy_of
from penstock.sqlstate import InvalidTextRepresentation

Comparable = tuple[int, Decimal | str]

_NUMBERS: Final = INTEGERS | FLOATS | {OID, NUMERIC}
_INVALID_OBJECT: Final = "42P17"
_INVALID_TABLE: Final = "42P16"


def check_new_partition(
    transaction: CatalogTransaction,
    scope: CommandScope,
    parent: LakeTable,
    name: str,
    bound: PartitionBound,
) -> None:
    """Check the bound of a new partition (check_new_partition_bound). Raises InvalidParameterValue
    (42P16, 42P17)."""
    assert parent.partition_key is not None
    strategy = strategy_of(parent.partition_key)
    if strategy is Strategy.HASH and bound.strategy is Strategy.DEFAULT:
        raise InvalidParameterValue(
            "a hash-partitioned table may not have a default partition", sqlstate=_INVALID_TABLE
        )
    if bound.strategy not in (strategy, Strategy.DEFAULT):
        raise InvalidParameterValue(
            f"invalid bound specification for a {strategy.value} partition",
            sqlstate=_INVALID_TABLE,
        )
    columns = key_columns(parent.partition_key)
    types = {column.name: column.type_oid for column in table_columns(scope, parent)}
    compared = _Comparison([types[column] in _NUMBERS for column in columns])
    compared.check_shape(name, bound, len(columns))
    for sibling in transaction.tables.all():
        if sibling.parent == parent.oid and sibling.bound is not None:
            other = parse_partition_bound(sibling.bound)
            if compared.overlap(bound, other):
                raise _overlap(name, sibling.name, bound)


def _overlap(name: str, other: str, bound: PartitionBound) -> InvalidParameterValue:
    if bound.strategy is Strategy.DEFAULT:
        text = f'partition "{name}" conflicts with existing default partition "{other}"'
    else:
        text = f'partition "{name}" would overlap partition "{other}"'
    return InvalidParameterValue(text, sqlstate=_INVALID_OBJECT)


class _Comparison:
    """Compare bounds. It knows which columns of the key hold numbers."""

    def __init__(self, numbers: Sequence[bool]) -> None:
        self._numbers = numbers

    def check_shape(self, name: str, bound: PartitionBound, columns: int) -> None:
        """Check a bound's number of values (transformPartitionBound), and that a range is not
        empty."""
        if bound.strategy is Strategy.HASH:
            _check_hash(bound)
        if bound.strategy is not Strategy.RANGE:
            return
        for word, side in (("FROM", bound.lower), ("TO", bound.upper)):
            if len(side) != columns:
                raise InvalidParameterValue(
                    f"{word} must specify exactly one value per partitioning column",
                    sqlstate=_INVALID_TABLE,
                )
            if None in side:
                raise InvalidParameterValue(
                    "cannot specify NULL in range bound", sqlstate=_INVALID_OBJECT
                )
        if self._side(bound.lower) >= self._side(bound.upper):
            raise InvalidParameterValue(
                f'empty range bound specified for partition "{name}"',
                detail=f"Specified lower bound ({_show_side(bound.lower)}) is greater than or "
                f"equal to upper bound ({_show_side(bound.upper)}).",
                sqlstate=_INVALID_OBJECT,
            )

    def overlap(self, one: PartitionBound, other: PartitionBound) -> bool:
        """Tell whether a row could belong to both."""
        if Strategy.DEFAULT in (one.strategy, other.strategy):
            return one.strategy is other.strategy
        match one.strategy:
            case Strategy.LIST:
                return bool(self._members(one) & self._members(other))
            case Strategy.RANGE:
                return self._side(one.lower) < self._side(other.upper) and self._side(
                    other.lower
                ) < self._side(one.upper)
        smaller = min(one.modulus, other.modulus)
        return one.remainder % smaller == other.remainder % smaller

    def _members(self, bound: PartitionBound) -> set[Comparable | None]:
        return {None if v is None else self._value(0, v) for v in bound.values}

    def _side(self, side: Sequence[str | Limit | None]) -> list[Comparable]:
        found = []
        for position, value in enumerate(side):
            found.append(self._value(position, value or ""))
            if isinstance(value, Limit):
                break
        return found

    def _value(self, position: int, value: str | Limit) -> Comparable:
        if isinstance(value, Limit):
            return (-1 if value is Limit.MINVALUE else 1, "")
        if not self._numbers[min(position, len(self._numbers) - 1)]:
            return 0, value
        try:
            return 0, Decimal(value)
        except InvalidOperation:
            raise InvalidTextRepresentation(
                f'invalid input syntax for type numeric: "{value}"'
            ) from None


def _check_hash(bound: PartitionBound) -> None:
    if bound.modulus <= 0:
        raise InvalidParameterValue(
            "modulus for hash partition must be an integer value greater than zero",
            sqlstate=_INVALID_TABLE,
        )
    if bound.remainder >= bound.modulus:
        raise InvalidParameterValue(
            "remainder for hash partition must be less than modulus", sqlstate=_INVALID_TABLE
        )


def _show_side(side: Sequence[str | Limit | None]) -> str:
    bound = PartitionBound(Strategy.LIST, values=side)  # type: ignore[arg-type]
    return str(bound).removeprefix("FOR VALUES IN (").removesuffix(")")
