"""Rewrite: copy the live rows of data files to new files. This runs inside tasks, and in the node
if columns change.

The rows that deletion vectors leave in some files of one table go to new files in the same order,
with the columns of the table. Memory holds ``batch_bytes`` of one file and the row group that is
being gathered.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap

from penstock.errors import PenstockError, StorageError
from penstock.lakehouse.batches import BATCH_BYTES, read_batches
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.deletion_vectors import numbers_of, unique_id
from penstock.lakehouse.files import WrittenFile, open_parquet
from penstock.lakehouse.partition_values import PartitionValues, constants
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.table_layout import NO_LAYOUT, TableLayout
from penstock.lakehouse.table_writer import TableWriter
from penstock.pipeline.generated import GeneratedColumns, generated_columns
from penstock.pipeline.tasks import Failed, Written


@dataclass(frozen=True)
class RewrittenFile:
    """A file to be rewritten. ``deletion_vector``, ``partition_values``: as in DataFile."""

    path: str
    deletion_vector: bytes | None = field(default=None, repr=False)
    partition_values: PartitionValues | None = None

    @classmethod
    def of(cls, file: DataFile) -> RewrittenFile:
        """Return a table's file as one to be rewritten."""
        return cls(file.path, file.deletion_vector, file.partition_values)


@dataclass(frozen=True)
class RewriteItem:
    """Files of one table to rewrite as new files of ``target_file_bytes`` each.

    ``into``: the URI of the table that gets the new files, if it is another table; ``layout``: the
    layout of the table that gets them. ``batch_bytes``: Arrow data read at a time. ``constants``:
    by column, the value of all rows, whatever the files have under its name; ``generated``: columns
    computed from the others. ``replaced``: by column, texts and their new values. ``deleted_at``:
    rows that are not NULL in this column of the files are left out.
    """

    storage: Storage
    table_uri: str
    schema: pa.Schema
    sources: tuple[RewrittenFile, ...]
    target_file_bytes: int
    batch_bytes: int = BATCH_BYTES
    constants: Mapping[str, pa.Scalar] = field(default_factory=dict)
    generated: GeneratedColumns | None = None
    into: str | None = None
    replaced: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    deleted_at: str | None = None
    layout: TableLayout = NO_LAYOUT


def run_rewrite(item: RewriteItem) -> Iterator[Written | Failed]:
    """Rewrite the files, in a task. An expected error comes back as a value."""
    try:
        yield rewrite(item)
    except PenstockError as error:
        yield Failed(0, error)


def rewrite(item: RewriteItem) -> Written:
    """Write the live rows of all sources. Raises StorageError, ValueNotRepresentable; then no files
    are left behind."""
    writer = TableWriter(
        item.storage,
        item.into or item.table_uri,
        item.schema,
        item.layout,
        target_file_bytes=item.target_file_bytes,
    )
    left_out: list[int] = []
    files = tuple(writer.write(_live_rows(item, left_out)))
    return Written(0, files, left_out=sum(left_out))


def _live_rows(item: RewriteItem, left_out: list[int]) -> Iterator[pa.RecordBatch]:
    """Yield the live rows; append to ``left_out`` the counts of rows that ``deleted_at`` leaves
    out."""
    for source in item.sources:
        vector = source.deletion_vector
        gone = numbers_of(BitMap() if vector is None else BitMap.deserialize(vector))
        constant = {**constants(source.partition_values, item.schema), **item.constants}
        with open_parquet(item.table_uri, source.path) as parquet:
            there = parquet.schema_arrow.names
            held = [n for n in item.schema.names if n in there and n not in constant]
            dead = item.deleted_at if item.deleted_at in there else None
            held += [dead] if dead is not None and dead not in held else []
            # If the file has none of the columns, any other column gives the number of rows.
            for start, batch in read_batches(
                parquet, held or there[:1], max_bytes=item.batch_bytes
            ):
                end = start + batch.num_rows
                here = gone[slice(*np.searchsorted(gone, (start, end)))] - start
                rows = _without(batch, here)
                if dead is not None:
                    alive = rows.filter(pc.is_null(rows.column(dead)))
                    left_out.append(rows.num_rows - alive.num_rows)
                    rows = alive
                live = with_replaced(_conform(rows, item.schema, constant), item.replaced)
                yield from _fill_generated(live, item.generated)


def _without(batch: pa.RecordBatch, gone: np.ndarray) -> pa.RecordBatch:
    if not len(gone):
        return batch
    live = np.ones(batch.num_rows, bool)
    live[gone] = False
    return batch.filter(pa.array(live))


def _conform(
    batch: pa.RecordBatch, schema: pa.Schema, constants: Mapping[str, pa.Scalar]
) -> pa.RecordBatch:
    """Return the rows in the table's columns: columns added later are NULL, INT96 timestamps become
    microseconds."""
    columns = [_column(batch, field, constants) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def with_replaced(
    batch: pa.RecordBatch, replaced: Mapping[str, Mapping[str, str]]
) -> pa.RecordBatch:
    """Replace texts in some columns."""
    for name, values in replaced.items():
        number = batch.schema.get_field_index(name)
        if number >= 0:
            array = _with_values(batch.column(number), values)
            batch = batch.set_column(number, batch.schema.field(number), array)
    return batch


def _with_values(array: pa.Array, values: Mapping[str, str]) -> pa.Array:
    old = pa.array(list(values), array.type)
    at = pc.index_in(array, old)
    return pc.coalesce(pa.array(list(values.values()), array.type).take(at), array)


def _fill_generated(
    batch: pa.RecordBatch, generated: GeneratedColumns | None
) -> Iterator[pa.RecordBatch]:
    if generated is None:
        yield batch
    else:
        yield from generated.filled(pa.Table.from_batches([batch])).to_batches()


def _column(batch: pa.RecordBatch, field: pa.Field, constants: Mapping[str, pa.Scalar]) -> pa.Array:
    if field.name in constants:
        return pa.repeat(constants[field.name], batch.num_rows)
    if field.name in batch.schema.names:
        return batch.column(field.name).cast(field.type)
    return pa.nulls(batch.num_rows, field.type)


# Files rewritten because the columns of their table change: one new file for each old one.
#
# The tables' new columns are staged first, then files with the same rows. A dropped column is
# removed from the files, so that its values do not appear in a column of the same name that is
# added later. An added column holds its default or its generated value in existing rows. Older
# versions keep their files until VACUUM. The work is done before anything is locked: rewritten
# files are remembered by their old file, and after a lost race only newer files are rewritten.

DDL_APP_ID: Final = "penstock_ddl"
"""The transaction marker of commits that change columns."""

_Key = tuple[str, str, str, TableSchema]
"""URI of the table, path of the file, its deletion vector, the new columns."""


@dataclass(frozen=True)
class ColumnChange:
    """A table with its new columns staged. ``dropped``: names that are only in files, and no longer
    in rows; ``constants``: by Delta name, the value of all rows in each added column; an added
    column that is generated is computed from the other columns instead. ``replaced``: by Delta
    name, texts and their new values.
    """

    table: DeltaTable
    dropped: frozenset[str] = frozenset()
    constants: Mapping[str, pa.Scalar] = field(default_factory=dict)
    replaced: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def concerns_files(self) -> bool:
        """Return whether files must be rewritten. Added NULL columns need no rewrite: a column that
        a file lacks is NULL."""
        return bool(self.dropped) or bool(self.replaced) or self.fills

    @property
    def fills(self) -> bool:
        """Return whether every row gets a value in an added column."""
        return bool(self.generated.columns) or any(v.is_valid for v in self.constants.values())

    @property
    def generated(self) -> GeneratedColumns:
        """The generated columns among the added ones. Raises RelationChanged."""
        every = generated_columns(self.table.schema, self.table.name)
        added = tuple(column for column in every.columns if column.name in self.constants)
        return replace(every, columns=added)


class ColumnRewrites:
    """The files that one statement has rewritten; a context manager that removes those not
    staged."""

    def __init__(self) -> None:
        self._done: dict[_Key, tuple[DeltaTable, WrittenFile | None]] = {}

    def __enter__(self) -> ColumnRewrites:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for table, file in self._done.values():
            if file is not None:
                table.storage.remove(f"{table.uri}/{file.path}")

    def is_complete(self, change: ColumnChange) -> bool:
        """Return whether all files of the table's version have been rewritten."""
        files = change.table.files.values()
        return not change.concerns_files or all(_key(change, f) in self._done for f in files)

    def prepare(self, change: ColumnChange) -> None:
        """Rewrite the remaining files, which takes long for a large table. Raises StorageError."""
        for file in change.table.files.values():
            if _key(change, file) not in self._done:
                new = _rewritten(change, file) if _is_due(change, file) else None
                self._done[_key(change, file)] = change.table, new

    def stage(self, change: ColumnChange) -> None:
        """Stage the new files of a complete change on its table."""
        if change.concerns_files:
            found = {f.path: self._done.pop(_key(change, f)) for f in change.table.files.values()}
            ready = {path: file for path, (_, file) in found.items() if file is not None}
            if not change.replaced:
                change.table.stage(rewritten=ready)
                return
            # Rows get new values: this is a change of data that readers of changes must see.
            change.table.stage(removed=ready, written=tuple(ready.values()))


def _key(change: ColumnChange, file: DataFile) -> _Key:
    table = change.table
    return table.uri, file.path, unique_id(file.descriptor), table.schema


def _is_due(change: ColumnChange, file: DataFile) -> bool:
    if change.fills:
        return True
    with open_parquet(change.table.uri, file.path) as parquet:
        names = parquet.schema_arrow.names
        if not change.dropped.isdisjoint(names):
            return True
        return any(
            _holds_any(parquet, name, values)
            for name, values in change.replaced.items()
            if name in names
        )


def _holds_any(parquet: pq.ParquetFile, name: str, values: Mapping[str, str]) -> bool:
    for batch in parquet.iter_batches(columns=[name]):
        array = batch.column(0)
        if pc.any(pc.is_in(array, pa.array(list(values), array.type))).as_py():
            return True
    return False


def _rewritten(change: ColumnChange, file: DataFile) -> WrittenFile:
    table = change.table
    item = RewriteItem(
        table.storage,
        table.uri,
        table.schema.arrow(),
        (RewrittenFile.of(file),),
        target_file_bytes=sys.maxsize,
        constants=change.constants,
        generated=change.generated if change.generated.columns else None,
        replaced=change.replaced,
        layout=table.layout,
    )
    files = rewrite(item).files
    if len(files) == 1 and files[0].rows == file.live_rows:
        return files[0]
    for written in files:
        table.storage.remove(f"{table.uri}/{written.path}")
    raise StorageError(
        f'file "{file.path}" of table "{table.name}" has {sum(f.rows for f in files)} rows where '
        f"there are {file.live_rows}",
        hint="Data files are damaged: put them back from a copy.",
        sqlstate="XX001",
    )
