"""Rows that a partition to be decides about (partbounds.c, check_default_partition_contents;
tablecmds.c, QueuePartitionConstraintValidation).

In: a partitioned table and the bound of a partition to be; a table that is to be it. Out: nothing,
or PostgreSQL's error where the default partition has rows that belong to the new one, or the table
has rows that do not. Files are read with nothing locked, and the statement is begun again; of a
default partition, file statistics rule most of them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from penstock.catalog import CatalogTransaction, LakeTable
from penstock.commands.namespace import open_delta
from penstock.commands.scope import CommandScope
from penstock.errors import InvalidParameterValue
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.statistics import bounds
from penstock.lakehouse.table import DeltaTable
from penstock.pipeline.partition_tree import anywhere, belonging, routing_of
from penstock.pipeline.routing import Level, RangeBound
from penstock.pipeline.scan import ScanColumn, ScanFile, scan
from penstock.sql.grammar.partition_bound import PartitionBound, Strategy, parse_partition_bound

_CHECK_VIOLATION: Final = "23514"
_OTHERS: Final = frozenset((1,))
"""Where ``belonging`` sends rows that do not belong within the bound."""


@dataclass(frozen=True)
class Unread:
    """Files of a table that may hold rows which are in the way. ``columns``: of the partitioned
    table; ``routing``: where rows of its go; ``allowed``: the numbers that they may go to;
    ``error``: what is raised for others."""

    table: DeltaTable
    columns: TableSchema
    routing: Level
    allowed: frozenset[int]
    files: Sequence[DataFile]
    error: str

    def check(self, file: DataFile) -> None:
        """Raises InvalidParameterValue (23514), StorageError, VersionGone."""
        for rows in _keys(self, file):
            if not self.allowed.issuperset(np.unique(self.routing.leaves(rows)).tolist()):
                raise InvalidParameterValue(self.error, sqlstate=_CHECK_VIOLATION)


class RowsFirst(Exception):
    """Rows are to be read before the statement can be executed."""

    def __init__(self, unread: Sequence[Unread]) -> None:
        super().__init__()
        self.unread = unread


@dataclass
class PartitionRows:
    """Which files one statement has found without rows that are in the way. ``attaches``:
    PostgreSQL names the leaf then, where it is the default partition that is partitioned, too."""

    attaches: bool = False
    _known: set[tuple[str, str, int]] = field(default_factory=set)

    def check(
        self,
        transaction: CatalogTransaction,
        scope: CommandScope,
        parent: LakeTable,
        bound: PartitionBound,
    ) -> None:
        """Raises RowsFirst before all files are known; FeatureNotSupported, StorageError."""
        if bound.strategy is Strategy.DEFAULT:
            return
        default = _default_of(transaction, parent)
        columns = open_delta(scope, parent)
        if default is None or columns is None:
            return
        found = []
        for member in transaction.tables.family(default):
            table = None if member.partition_key else open_delta(scope, member)
            if table is not None and table.rows:
                taken = belonging(parent, bound, columns.schema)
                files = _candidates(table, columns.schema, taken)
                named = (member if self.attaches else default).name
                error = (
                    f'updated partition constraint for default partition "{named}" would be '
                    "violated by some row"
                )
                found.append(Unread(table, columns.schema, taken, _OTHERS, files, error))
        self._check_read(found)

    def check_attached(
        self,
        transaction: CatalogTransaction,
        scope: CommandScope,
        parent: LakeTable,
        members: Sequence[LakeTable],
    ) -> None:
        """``members``: the table to be attached, with its parent and bound, and its partitions.

        Raises RowsFirst before all files are known; FeatureNotSupported, StorageError.
        """
        root = parent
        while (above := transaction.tables.find_oid(root.parent or 0)) is not None:
            root = above
        columns = open_delta(scope, root)
        if columns is None:
            return
        oids = {member.oid for member in members}
        others = [table for table in transaction.tables.family(root) if table.oid not in oids]
        level, leaves = routing_of([*others, *members], columns.schema)
        found = []
        for number, leaf in enumerate(leaves):
            table = open_delta(scope, leaf) if leaf.oid in oids else None
            if table is not None and table.rows:
                files = [file for file in table.files.values() if file.live_rows]
                error = f'partition constraint of relation "{leaf.name}" is violated by some row'
                own = frozenset((number,))
                found.append(Unread(table, columns.schema, anywhere(level), own, files, error))
        self._check_read(found)

    def read(self, tables: Sequence[Unread]) -> None:
        """Raises InvalidParameterValue (23514), StorageError, VersionGone."""
        for unread in tables:
            for file in unread.files:
                unread.check(file)
                self._known.add(_mark(unread.table, file))

    def _check_read(self, tables: Sequence[Unread]) -> None:
        new = [
            replace(each, files=[file for file in each.files if self._is_new(each.table, file)])
            for each in tables
        ]
        if any(unread.files for unread in new):
            raise RowsFirst(new)

    def _is_new(self, table: DeltaTable, file: DataFile) -> bool:
        return _mark(table, file) not in self._known


def _mark(table: DeltaTable, file: DataFile) -> tuple[str, str, int]:
    return table.uri, file.path, file.live_rows


def _default_of(transaction: CatalogTransaction, parent: LakeTable) -> LakeTable | None:
    siblings = [table for table in transaction.tables.all() if table.parent == parent.oid]
    return next((s for s in siblings if s.bound is not None and _is_default(s.bound)), None)


def _is_default(bound: str) -> bool:
    return parse_partition_bound(bound).strategy is Strategy.DEFAULT


def _keys(unread: Unread, file: DataFile) -> Iterator[pa.Table]:
    """The columns of the partition key, by their names in the partitioned table."""
    here = unread.table.schema.by_source
    columns = [
        ScanColumn(column.name, here[column.source].name, column.type)
        for column in unread.columns.columns
        if column.name in unread.routing.columns
    ]
    table = unread.table
    for batch in scan(table.storage, table.uri, ScanFile.of(file), columns):
        yield pa.Table.from_batches([batch])


def _candidates(table: DeltaTable, columns: TableSchema, taken: Level) -> list[DataFile]:
    """Those that may hold a row within the bound: ranges are ruled out by their first column."""
    files = [file for file in table.files.values() if file.live_rows]
    bound, _ = taken.partitions[0]
    if not isinstance(bound, RangeBound):
        return files
    column = columns.by_source[taken.key[0].name]
    low, high = (_value(side[0]) for side in (bound.lower, bound.upper))
    name = table.schema.by_source[column.source].name

    def may_hold(file: DataFile) -> bool:
        known = bounds(file.stats, name, column.type)
        if known is None or pa.types.is_floating(column.type) or pa.types.is_string(column.type):
            return True
        least, greatest = known
        return (low is None or greatest >= low) and (high is None or least <= high)

    return [file for file in files if may_hold(file)]


def _value(end: object) -> Any:
    return end.as_py() if isinstance(end, pa.Scalar) else None
