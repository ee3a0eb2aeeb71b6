"""Spark expressions that find the partition of a row (execPartition.c, partbounds.c).

In: a partitioned table, the catalog's tables, the columns. Out: an expression that returns the
number of a row's leaf, and conditions that hold for the rows of a partition; neither is ever NULL.
The writer decides what to do with rows that belong nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.catalog import LakeTable
from penstock.errors import FeatureNotSupported
from penstock.pgtypes.registry import type_of_arrow
from penstock.pipeline.routing import check_comparable
from penstock.sql.grammar.partition_bound import (
    Limit,
    PartitionBound,
    Strategy,
    key_columns,
    parse_partition_bound,
    strategy_of,
)
from penstock.walsender.lake_columns import LakeColumn, spark_type


@dataclass(frozen=True, slots=True)
class Routing:
    """``expression`` returns an index into ``leaves``, or ``-1 - index`` for a row that belongs
    nowhere below ``roots[index]``."""

    expression: str
    leaves: tuple[LakeTable, ...]
    roots: tuple[LakeTable, ...]


class PartitionRules:
    """Know the partitions among ``tables``. ``columns``: those of the table that is written."""

    def __init__(self, tables: Sequence[LakeTable], columns: Sequence[LakeColumn]) -> None:
        self._tables = {table.oid: table for table in tables}
        self._columns = {column.name: column for column in columns}

    def routing(self, root: LakeTable) -> Routing:
        """Return how rows of a partitioned table find their leaf. Raises FeatureNotSupported."""
        leaves: list[LakeTable] = []
        roots: list[LakeTable] = []

        def of(table: LakeTable) -> str:
            if table.partition_key is None:
                leaves.append(table)
                return str(len(leaves) - 1)
            roots.append(table)
            otherwise, whens = f"-{len(roots)}", []
            for child in self._children(table):
                if _bound(child).strategy is Strategy.DEFAULT:
                    otherwise = of(child)
                else:
                    whens.append(f"WHEN {self._takes(table, _bound(child))} THEN {of(child)}")
            return f"CASE {' '.join(whens)} ELSE {otherwise} END" if whens else otherwise

        return Routing(of(root), tuple(leaves), tuple(roots))

    def constraint(self, table: LakeTable) -> str | None:
        """Return the condition that the bounds of a partition and of all tables above it put on its
        rows, or None if they put none."""
        found = []
        while table.parent is not None and table.bound is not None:
            parent = self._tables[table.parent]
            bound = _bound(table)
            if bound.strategy is not Strategy.DEFAULT:
                found.append(self._takes(parent, bound))
            else:
                others = [_bound(child) for child in self._children(parent)]
                taken = [self._takes(parent, o) for o in others if o.strategy is not bound.strategy]
                found += [f"NOT ({' OR '.join(taken)})"] if taken else []
            table = parent
        return " AND ".join(f"({condition})" for condition in found) or None

    def tree_of(self, table: LakeTable) -> tuple[LakeTable, ...]:
        """Return the topmost table that it belongs to, with all its partitions, root first."""
        while table.parent is not None:
            table = self._tables[table.parent]
        found = [table]
        for above in found:  # the loop itself makes ``found`` grow
            found += self._children(above)
        return tuple(found)

    def key(self, table: LakeTable) -> tuple[LakeColumn, ...]:
        """Return the columns of a partitioned table's key."""
        names = key_columns(table.partition_key or "()")
        return tuple(self._columns[name] for name in names)

    def keys_above(self, table: LakeTable) -> frozenset[str]:
        """Return the key columns of a table and of all tables above it, by their names in Delta."""
        found = {column.delta for column in self.key(table)} if table.partition_key else set()
        while table.parent is not None:
            table = self._tables[table.parent]
            found |= {column.delta for column in self.key(table)}
        return frozenset(found)

    def _children(self, table: LakeTable) -> list[LakeTable]:
        return [child for child in self._tables.values() if child.parent == table.oid]

    def _takes(self, parent: LakeTable, bound: PartitionBound) -> str:
        """Return the condition that a row lies within a bound that is not DEFAULT."""
        if strategy_of(parent.partition_key or "") is Strategy.HASH:
            raise FeatureNotSupported(
                "writing to tables that are partitioned by hash is not supported",
                hint="Partition by RANGE or LIST.",
            )
        key = self.key(parent)
        for column in key:
            oid = column.attribute.type_oid or type_of_arrow(column.type)[0]
            check_comparable(column.name, oid, column.type)
        if bound.strategy is Strategy.LIST:
            return _in_list(key[0], bound.values)
        known = " AND ".join(f"{_name(column)} IS NOT NULL" for column in key)
        return f"({known} AND {_from(key, bound.lower)} AND {_to(key, bound.upper)})"


def _bound(table: LakeTable) -> PartitionBound:
    return parse_partition_bound(table.bound or "DEFAULT")


def _in_list(column: LakeColumn, values: Sequence[str | None]) -> str:
    constants = [_constant(column, value) for value in values if value is not None]
    tests = [f"{_name(column)} IS NULL"] if None in values else []
    if constants:
        name = _name(column)
        tests.append(f"({name} IS NOT NULL AND {name} IN ({', '.join(constants)}))")
    return f"({' OR '.join(tests)})"


def _from(key: Sequence[LakeColumn], side: Sequence[str | Limit | None]) -> str:
    """Return the condition that a row lies at a lower bound or above it."""
    column, value = key[0], side[0]
    if isinstance(value, Limit):
        return "true" if value is Limit.MINVALUE else "false"
    constant = _constant(column, value or "")
    if len(key) == 1:
        return f"{_name(column)} >= {constant}"
    rest = _from(key[1:], side[1:])
    return f"({_name(column)} > {constant} OR ({_name(column)} = {constant} AND {rest}))"


def _to(key: Sequence[LakeColumn], side: Sequence[str | Limit | None]) -> str:
    """Return the condition that a row lies below an upper bound."""
    column, value = key[0], side[0]
    if isinstance(value, Limit):
        return "true" if value is Limit.MAXVALUE else "false"
    constant = _constant(column, value or "")
    if len(key) == 1:
        return f"{_name(column)} < {constant}"
    rest = _to(key[1:], side[1:])
    return f"({_name(column)} < {constant} OR ({_name(column)} = {constant} AND {rest}))"


def _name(column: LakeColumn) -> str:
    return "`" + column.delta.replace("`", "``") + "`"


def _constant(column: LakeColumn, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"CAST('{escaped}' AS {spark_type(column.type)})"
