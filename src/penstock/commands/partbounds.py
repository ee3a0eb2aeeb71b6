"""Check a new partition's bound against the other partitions (partbounds.c).

A wrong bound raises PostgreSQL's error. Constants are compared as ``pipeline.routing`` compares
rows with them. If rows cannot be routed by a type, its constants are compared as text.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

import penstock.pgtypes as pgtypes
from penstock.catalog import CatalogTransaction, LakeTable
from penstock.commands.namespace import table_columns
from penstock.commands.scope import CommandScope
from penstock.errors import InvalidParameterValue
from penstock.pgtypes.pg_type import NUMERIC, OID
from penstock.pipeline.partition_tree import read_constant
from penstock.pipeline.routing import comparable
from penstock.sql import Limit, PartitionBound, Strategy, parse_partition_bound
from penstock.sql.grammar.partition_bound import key_columns, strategy_of
from penstock.sql.typed.input_functions import has_input
from penstock.sqlstate import InvalidTableDefinition

Comparable = tuple[int, Any]
"""(side, value). The side is 0; -1 or 1 for a value below or above all values that rows can have;
-2 for MINVALUE, 2 for MAXVALUE."""

_INVALID_OBJECT: Final = "42P17"


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
        raise InvalidTableDefinition("a hash-partitioned table may not have a default partition")
    if bound.strategy not in (strategy, Strategy.DEFAULT):
        raise InvalidTableDefinition(
            f"invalid bound specification for a {strategy.value} partition"
        )
    columns = key_columns(parent.partition_key)
    types = {c.name: (c.type_oid, c.typmod) for c in table_columns(scope, parent)}
    compared = _Comparison([types[column] for column in columns])
    compared.check_shape(name, bound, len(columns))
    siblings = [
        (parse_partition_bound(each.bound), each.name)
        for each in transaction.tables.all()
        if each.parent == parent.oid and each.bound is not None
    ]
    if bound.strategy is Strategy.HASH:
        _check_modulus(bound, siblings)
    for other, sibling in siblings:
        if compared.overlap(bound, other):
            raise _overlap(name, sibling, bound)


def _check_modulus(bound: PartitionBound, others: Sequence[tuple[PartitionBound, str]]) -> None:
    """Check that of any two moduli one divides the other, so that no row fits two partitions."""
    ordered = sorted((other.modulus, other.remainder, name) for other, name in others)
    modulus, remainder = bound.modulus, bound.remainder
    smaller = [other for other in ordered if other[:2] <= (modulus, remainder)]
    detail = None
    if smaller and modulus % smaller[-1][0]:
        detail = f"The new modulus {modulus} is not divisible by {smaller[-1][0]}"
        name = smaller[-1][2]
    elif len(smaller) < len(ordered) and ordered[len(smaller)][0] % modulus:
        detail = f"The new modulus {modulus} is not a factor of {ordered[len(smaller)][0]}"
        name = ordered[len(smaller)][2]
    if detail is not None:
        raise InvalidParameterValue(
            "every hash partition modulus must be a factor of the next larger modulus",
            detail=f'{detail}, the modulus of existing partition "{name}".',
            sqlstate=_INVALID_OBJECT,
        )


def _overlap(name: str, other: str, bound: PartitionBound) -> InvalidParameterValue:
    if bound.strategy is Strategy.DEFAULT:
        text = f'partition "{name}" conflicts with existing default partition "{other}"'
    else:
        text = f'partition "{name}" would overlap partition "{other}"'
    return InvalidParameterValue(text, sqlstate=_INVALID_OBJECT)


class _Comparison:
    """Compares bounds. ``types``: (oid, typmod) of the columns of the partition key."""

    def __init__(self, types: Sequence[tuple[int, int]]) -> None:
        self._types = types

    def check_shape(self, name: str, bound: PartitionBound, columns: int) -> None:
        """Check the number of values in a bound (transformPartitionBound), and that a range is not
        empty."""
        if bound.strategy is Strategy.HASH:
            _check_hash(bound)
        if bound.strategy is not Strategy.RANGE:
            return
        for word, side in (("FROM", bound.lower), ("TO", bound.upper)):
            if len(side) != columns:
                raise InvalidTableDefinition(
                    f"{word} must specify exactly one value per partitioning column"
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
        """Tell whether a row could fit both bounds."""
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
            return (-2 if value is Limit.MINVALUE else 2, "")
        oid, typmod = self._types[position]
        if not has_input(oid, typmod):
            return 0, value
        side, read = read_constant(oid, typmod, value)
        if side == 0 and oid in (NUMERIC, OID) and isinstance(read, str):
            return (1, read) if read == "NaN" else (0, Decimal(read))
        if side == 0 and isinstance(read, list):
            return 0, tuple((item is None, item) for item in read)  # NULL sorts after all values
        if side == 0:
            read = comparable(pa.array([read], pgtypes.arrow_type(oid, typmod)))[0].as_py()
        return side, read


def _check_hash(bound: PartitionBound) -> None:
    if bound.modulus <= 0:
        raise InvalidTableDefinition(
            "modulus for hash partition must be an integer value greater than zero"
        )
    if bound.remainder >= bound.modulus:
        raise InvalidTableDefinition("remainder for hash partition must be less than modulus")


def _show_side(side: Sequence[str | Limit | None]) -> str:
    bound = PartitionBound(Strategy.LIST, values=side)  # type: ignore[arg-type]
    return str(bound).removeprefix("FOR VALUES IN (").removesuffix(")")
