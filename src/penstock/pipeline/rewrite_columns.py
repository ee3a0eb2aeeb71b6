"""Files rewritten because the columns of their table change: one new file for each old one.

In: tables whose new columns are staged, and what all rows hold in the added ones. Out: files with
the same rows, staged with them. A dropped column leaves the files, so that no column of its name
that is added later shows what it held; an added one holds its default, or what it is made of, in
the rows that are there. Older versions keep their files until VACUUM. The work is done before
anything is locked: what was rewritten is kept by file, and after a lost race only what has come
since is rewritten.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap

from penstock.errors import StorageError
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.deletion_vectors import unique_id
from penstock.lakehouse.files import WrittenFile, open_parquet
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.table import DeltaTable
from penstock.pipeline.generated import GeneratedColumns, generated_columns
from penstock.pipeline.rewrite import RewriteItem, RewrittenFile, rewrite

DDL_APP_ID: Final = "penstock_ddl"
"""The transaction marker of commits that change columns."""

_Key = tuple[str, str, str, TableSchema]
"""URI of the table, path of the file, its deletion vector, the columns to be."""


@dataclass(frozen=True)
class ColumnChange:
    """A table with its new columns staged. ``dropped``: names that files may have and rows have no
    more; ``constants``: what all rows hold in the added columns, by Delta names. Those that are
    generated are made of the others. ``replaced``: by Delta name, texts that become others.
    """

    table: DeltaTable
    dropped: frozenset[str] = frozenset()
    constants: Mapping[str, pa.Scalar] = field(default_factory=dict)
    replaced: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def concerns_files(self) -> bool:
        """Whether files can be left as they are: a column that they lack is NULL."""
        return bool(self.dropped) or bool(self.replaced) or self.fills

    @property
    def fills(self) -> bool:
        """Whether every row gets a value in an added column."""
        return bool(self.generated.columns) or any(v.is_valid for v in self.constants.values())

    @property
    def generated(self) -> GeneratedColumns:
        """Those of the added columns. Raises RelationChanged."""
        every = generated_columns(self.table.schema, self.table.name)
        added = tuple(column for column in every.columns if column.name in self.constants)
        return replace(every, columns=added)


class ColumnRewrites:
    """What one statement has rewritten; a context manager that removes what was not staged."""

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
        """Whether every file of the table's version is rewritten, or need not be."""
        files = change.table.files.values()
        return not change.concerns_files or all(_key(change, f) in self._done for f in files)

    def prepare(self, change: ColumnChange) -> None:
        """Rewrite the files that are not yet; long for a large table. Raises StorageError."""
        for file in change.table.files.values():
            if _key(change, file) not in self._done:
                new = _rewritten(change, file) if _is_due(change, file) else None
                self._done[_key(change, file)] = change.table, new

    def stage(self, change: ColumnChange) -> None:
        """Hand the new files of a complete change over to its table."""
        if change.concerns_files:
            found = {f.path: self._done.pop(_key(change, f)) for f in change.table.files.values()}
            ready = {path: file for path, (_, file) in found.items() if file is not None}
            if not change.replaced:
                change.table.stage(rewritten=ready)
                return
            # rows are others by then, which readers of changes are told
            gone = {path: BitMap(range(change.table.files[path].rows)) for path in ready}
            change.table.stage(deleted=gone, written=tuple(ready.values()))


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
