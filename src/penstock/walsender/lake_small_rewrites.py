"""UPDATE and DELETE of a small table by its files, without a job of Spark's.

In: what is computed of the rows, and the table. Out: one Delta commit with deletion vectors, new
files and the pairs of rows that an UPDATE identifies anew, and the number of rows. None, and
nothing is done, where the table is large or asks of its writers what Delta alone knows. Memory: a
run of rows of one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from penstock.catalog import LakeTable
from penstock.errors import CommitConflict, FeatureNotSupported, UndefinedObject
from penstock.lakehouse.files import FileWriter, WrittenFile
from penstock.lakehouse.row_pairs import NEW, OLD, pairs_folder, pairs_mark
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.pipeline.columns import Integers
from penstock.pipeline.query import Interrupts
from penstock.pipeline.scan import ScanColumn, ScanFile, scan_positions
from penstock.walsender.lake_columns import LakeColumn, columns_of
from penstock.walsender.lake_pairs import distinct_rows, pair_schema, paired_columns
from penstock.walsender.lake_rows import Computed, RowChange, altered

MAX_BYTES: Final = 8 << 20
"""Of the table's files: rows of so much are read and written here before Spark has begun."""
_TRIES: Final = 20
"""Of a statement whose table others commit to."""
_APP_ID: Final = "penstock.update"
_CHANGE_FEED: Final = "delta.enableChangeDataFeed"
"""Readers of the feed are to see which new row was which old one; Delta's own UPDATE tells them."""


class SmallRewrites:
    """For every session."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    def run(self, leaf: LakeTable, change: RowChange, interrupts: Interrupts) -> int | None:
        """Raises PenstockError (40001: the table was altered, or others were always first)."""
        for _ in range(_TRIES):
            table = self._load(leaf)
            if table is None:
                return None
            if columns_of(table.state) != change.known:
                raise altered(leaf)
            work = _Work(table, leaf, change, interrupts)
            try:
                return work.run()
            except CommitConflict:
                interrupts.check()
        raise altered(leaf)

    def _load(self, leaf: LakeTable) -> DeltaTable | None:
        warehouse, uri = self._warehouse, leaf.uri or ""
        try:
            table = DeltaTable.load(warehouse.storage, warehouse.store, uri, leaf.qualified_name)
        except FeatureNotSupported:
            return None
        if table is None:
            raise UndefinedObject(
                f'relation "{leaf.qualified_name}" does not exist', sqlstate="42P01"
            )
        large = sum(file.size for file in table.files.values()) > MAX_BYTES
        fed = table.properties.get(_CHANGE_FEED, "false").lower() == "true"
        return None if large or fed else table


@dataclass
class _Work:
    """One attempt, on one version."""

    table: DeltaTable
    leaf: LakeTable
    change: RowChange
    interrupts: Interrupts
    _gone: dict[str, BitMap] = field(default_factory=dict)
    _pairs: list[pa.Table] = field(default_factory=list)

    def run(self) -> int:
        """The number of rows. Raises CommitConflict, and then nothing is left behind."""
        table = self.table
        writer = FileWriter(table.storage, table.uri, table.schema.arrow())
        written = writer.write(self._new_rows())
        count = sum(len(positions) for positions in self._gone.values())
        if not count:
            return 0
        pairs: list[WrittenFile] = []
        try:
            table.stage(written=written, deleted=self._gone)
            pairs = self._write_pairs()
            table.commit(
                app_id=_APP_ID,
                version_marker=table.version + 1,
                operation=self.change.kind.upper(),
                user_metadata=pairs_mark(table.version, pairs),
            )
        except BaseException:
            table.discard()
            for file in pairs:  # without its commit nobody reads it
                table.storage.remove(f"{pairs_folder(table.uri)}/{file.path}")
            raise
        return count

    def _new_rows(self) -> Iterator[pa.RecordBatch]:
        """Rows as they become; which ones go is known afterwards."""
        updates = bool(self.change.settings)
        columns = self.change.known if updates else _used(self.change)
        scanned = [ScanColumn(c.delta, c.stored, c.type) for c in columns]
        paired = self._paired()
        for path, file in list(self.table.files.items()):
            batches = scan_positions(self.table.storage, self.table.uri, ScanFile.of(file), scanned)
            for positions, batch in batches:
                self.interrupts.check()
                meant, rows = self._meant(positions, batch)
                self._gone.setdefault(path, BitMap()).update(meant.tolist())
                if updates and rows.num_rows:
                    new = self._changed(rows)
                    self._pair(paired, rows, new)
                    yield new

    def _meant(self, positions: Integers, batch: pa.RecordBatch) -> tuple[Integers, pa.RecordBatch]:
        """Those that the condition holds for."""
        if self.change.where is None:
            return positions, batch
        holds = pc.fill_null(_values(self.change.where, batch), False)
        return positions[np.asarray(holds)], batch.filter(holds)

    def _changed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        settings = {column.delta: value for column, value in self.change.settings}
        schema = self.table.schema.arrow()
        columns = [
            _values(settings[name], rows) if name in settings else rows.column(name)
            for name in schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _paired(self) -> tuple[LakeColumn, ...]:
        changed = {column.delta for column, _ in self.change.settings}
        return paired_columns(self.leaf, self.change.known, changed)

    def _pair(
        self, columns: Sequence[LakeColumn], old: pa.RecordBatch, new: pa.RecordBatch
    ) -> None:
        if columns:
            cells: Mapping[str, pa.Array] = {
                **{OLD + column.name: old.column(column.delta) for column in columns},
                **{NEW + column.name: new.column(column.delta) for column in columns},
            }
            found = pa.table(list(cells.values()), schema=pair_schema(columns))
            self._pairs.append(distinct_rows(found, columns))

    def _write_pairs(self) -> list[WrittenFile]:
        pairs = [table for table in self._pairs if table.num_rows]
        if not pairs:
            return []
        folder = pairs_folder(self.table.uri)
        self.table.storage.create_folder(folder)
        return FileWriter(self.table.storage, folder, pairs[0].schema).write(pairs)


def _used(change: RowChange) -> tuple[LakeColumn, ...]:
    """What a condition reads; a column at least, which tells how many rows there are."""
    return (change.where.arguments if change.where else ()) or change.known[:1]


def _values(computed: Computed, rows: pa.RecordBatch) -> pa.Array:
    return computed.evaluation.values(*(rows.column(c.delta) for c in computed.arguments))
