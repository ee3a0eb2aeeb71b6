"""A partition to be beside a DEFAULT one (partbounds.c, check_default_partition_contents).

In: a partitioned table and the bound of a partition to be. Out: nothing, or PostgreSQL's error
where the default partition has rows that belong to the new one. Its files are read with nothing
locked, and the statement is begun again; file statistics rule most of them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from penstock.catalog import CatalogTransaction, LakeTable
from penstock.commands.namespace import open_delta
from penstock.commands.scope import CommandScope
from penstock.errors import InvalidParameterValue
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.statistics import bounds
from penstock.lakehouse.table import DeltaTable
from penstock.pipeline.partition_tree import belonging
from penstock.pipeline.routing import Level, RangeBound
from penstock.pipeline.scan import ScanColumn, ScanFile, scan
from penstock.sql.grammar.partition_bound import PartitionBound, Strategy, parse_partition_bound

_CHECK_VIOLATION: Final = "23514"


@dataclass(frozen=True)
class Unread:
    """A table of a default partition. ``named``: the one that an error is about; ``columns``: of
    the partitioned table; ``files``: those that may hold rows which ``taken`` takes."""

    named: str
    table: DeltaTable
    columns: TableSchema
    taken: Level
    files: Sequence[DataFile]


class RowsFirst(Exception):
    """Rows of a default partition are to be read before the statement can be executed."""

    def __init__(self, unread: Sequence[Unread]) -> None:
        super().__init__()
        self.unread = unread


@dataclass
class DefaultRows:
    """Which files one statement has found without rows of its partition to be. ``attaches``:
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
                files = [
                    f for f in _candidates(table, columns.schema, taken) if self._is_new(table, f)
                ]
                named = (member if self.attaches else default).name
                found.append(Unread(named, table, columns.schema, taken, files))
        if any(unread.files for unread in found):
            raise RowsFirst(found)

    def read(self, tables: Sequence[Unread]) -> None:
        """Raises InvalidParameterValue (23514), StorageError, VersionGone."""
        for unread in tables:
            for file in unread.files:
                if any((unread.taken.leaves(rows) == 0).any() for rows in _keys(unread, file)):
                    raise InvalidParameterValue(
                        f'updated partition constraint for default partition "{unread.named}" '
                        "would be violated by some row",
                        sqlstate=_CHECK_VIOLATION,
                    )
                self._known.add(_mark(unread.table, file))

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
        ScanColumn(key.delta, here[key.name].name, unread.columns.by_source[key.name].type)
        for key in unread.taken.key
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
