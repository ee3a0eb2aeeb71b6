"""Side tables, in which a node records what happens in its subscriptions' transactions.

The rows of one batch are added by one commit, with the batch's LSN as the subscription's marker,
before the batch itself is committed. If a batch is sent again, alone or with others, nothing is
added twice: its rows hold the end LSNs of their transactions. A failed batch is not committed, so
its rows do not move the marker; they are compared with the table's rows instead. Any reader
understands side tables. Users may delete rows; we delete rows only in ``keep_since``.

``conflicts``: changes that could not be applied to a target as they were sent (conflict.c);
``messages``: messages of the publisher's sessions (pg_logical_emit_message);
``verifications``: ranges of tables that were compared with the publisher's, each added once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.attribute import Attribute
from penstock.errors import CommitConflict, DuplicateObject
from penstock.lakehouse import statistics
from penstock.lakehouse.batches import read_batches
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.files import FileWriter, open_parquet
from penstock.lakehouse.log import log_folder
from penstock.lakehouse.log_store import LogStore
from penstock.lakehouse.schema import TIMESTAMP, Column, TableSchema
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.table import DeltaTable
from penstock.lsn import Lsn

CONFLICTS: Final = pa.schema(
    [
        ("log_time", TIMESTAMP),
        ("subscription", pa.string()),
        ("relation", pa.string()),
        ("conflict_type", pa.string()),
        ("replica_identity", pa.string()),
        ("remote_tuple", pa.string()),
        ("remote_commit_lsn", pa.int64()),
        ("remote_commit_time", TIMESTAMP),
        ("changes", pa.int64()),
        ("resolution", pa.string()),
        ("local_row", pa.string()),
        ("local_origin", pa.string()),
        ("local_version", pa.int64()),
        ("local_commit_time", TIMESTAMP),
        ("remote_origin", pa.string()),
        ("remote_xid", pa.int64()),
        ("finish_lsn", pa.string()),
    ]
)
MESSAGES: Final = pa.schema(
    [
        ("subscription", pa.string()),
        ("lsn", pa.int64()),
        ("commit_lsn", pa.int64()),
        ("commit_time", TIMESTAMP),
        ("xid", pa.int64()),
        ("position", pa.int64()),
        ("transactional", pa.bool_()),
        ("prefix", pa.string()),
        ("content", pa.binary()),
    ]
)
VERIFICATIONS: Final = pa.schema(
    [
        ("subscription", pa.string()),
        ("relation", pa.string()),
        ("key_column", pa.string()),
        ("low", pa.int64()),
        ("high", pa.int64()),
        ("lsn", pa.int64()),
        ("started", TIMESTAMP),
        ("ended", TIMESTAMP),
        ("publisher_rows", pa.int64()),
        ("node_rows", pa.int64()),
        ("result", pa.string()),
        ("lacking_columns", pa.string()),
        ("differences", pa.string()),
    ]
)
_TRANSACTION: Final = {"conflicts": "remote_commit_lsn", "messages": "commit_lsn"}
"""The column with the end LSN of a row's transaction, by table."""
_APP_ID: Final = "penstock.side_table"
"""The app id of commits that belong to no batch."""
_SMALL_FILES: Final = 64
_LARGE_ROWS: Final = 100_000
_TRIES: Final = 100
"""The number of races that one commit may lose: all subscriptions of a node use the table."""


class SideTable:
    """A side table of a warehouse, made when rows are first added. Several threads may use it."""

    def __init__(
        self, storage: Storage, store: LogStore, folder: str, name: str, schema: pa.Schema
    ) -> None:
        self.uri: Final = f"{folder}/{name}"
        self._name = name
        self._schema = schema
        self._names = schema.names
        self._storage = storage
        self._store = store
        self._lock = threading.Lock()

    def append(self, app_ids: Sequence[str], end_lsn: Lsn, rows: pa.Table) -> None:
        """Add a batch's rows; durable on return. Rows that exist already are left out; if all
        exist, nothing is committed. ``app_ids``: the subscription's, then those of subscriptions
        that it continues. Raises StorageError, CommitConflict."""
        app_id = app_ids[0]

        def add(table: DeltaTable) -> None:
            known = map(table.transaction_version, app_ids)
            marker = max((each for each in known if each is not None), default=None)
            new = rows if marker is None else rows.filter(self._after(rows, marker))
            self._put(table, new, app_id, max(end_lsn, marker or 0))

        self._try(add)

    def add(self, rows: pa.Table) -> None:
        """Add rows without looking for duplicates; durable on return. Raises StorageError,
        CommitConflict."""
        self._try(lambda table: self._put(table, rows, _APP_ID, None))

    def append_once(self, rows: pa.Table, same: Sequence[str]) -> None:
        """Add the rows that differ from all present rows in the columns ``same``; durable on
        return. Raises StorageError, CommitConflict."""

        def add(table: DeltaTable) -> None:
            known = self._like(table, rows, same)
            new = [tuple(row.values()) not in known for row in rows.select(same).to_pylist()]
            self._put(table, rows.filter(pa.array(new)), _APP_ID, None)

        self._try(add)

    def keep_since(self, column: str, since: datetime | None) -> None:
        """Remove files in which all times of ``column`` are before ``since``. Once there are many
        small files, merge them, without rows before ``since``. ``since`` None: keep all rows. If
        somebody else commits meanwhile, nothing is done. Raises StorageError."""
        with self._lock:
            table = DeltaTable.load(self._storage, self._store, self.uri, self._name)
            if table is None:
                return
            old = [each for each in table.files.values() if _is_before(each, column, since)]
            small = [f for f in table.files.values() if f.rows < _LARGE_ROWS and f not in old]
            if len(small) < _SMALL_FILES or set(table.schema.arrow().names) != set(self._names):
                small = []  # merging would lose columns that somebody else has added
            rows = self._rows(table, small)
            kept = rows
            if since is not None:
                kept = rows.filter(pc.fill_null(pc.greater_equal(rows[column], since), True))
            table.stage(removed=[file.path for file in (*old, *small)])
            if kept.num_rows:
                writer = FileWriter(self._storage, self.uri, self._schema)
                table.stage(written=writer.write([kept.sort_by(column)]))
            if table.has_staged:
                goes = bool(old) or kept.num_rows < rows.num_rows
                self._put_in_place(table, data_change=goes)

    def _put_in_place(self, table: DeltaTable, *, data_change: bool) -> None:
        operation = "DELETE" if data_change else "OPTIMIZE"
        try:
            table.commit(app_id=_APP_ID, operation=operation, data_change=data_change)
        except CommitConflict:
            table.discard()
        else:
            table.checkpoint()

    def _rows(self, table: DeltaTable, files: Sequence[DataFile]) -> pa.Table:
        """Return the live rows of some files."""
        found = [self._schema.empty_table()]
        for file in files:
            with open_parquet(table.uri, file.path) as parquet:
                held = [name for name in self._names if name in parquet.schema_arrow.names]
                gone = np.array(file.positions_deleted().to_array())
                for start, batch in read_batches(parquet, held):
                    at = np.arange(start, start + len(batch))
                    kept = batch.filter(pa.array(~np.isin(at, gone)))
                    found.append(pa.Table.from_batches([kept]))
        rows = pa.concat_tables(found, promote_options="default")
        return rows.select(self._names).cast(self._schema)

    def _try(self, add: Callable[[DeltaTable], None]) -> None:
        with self._lock:
            for _ in range(_TRIES):
                table = self._open()
                try:
                    add(table)
                    return
                except CommitConflict:
                    table.discard()
            raise CommitConflict(f'other writers keep committing to the table "{self.uri}"')

    def _put(self, table: DeltaTable, rows: pa.Table, app_id: str, marker: int | None) -> None:
        if not rows.num_rows:
            # The process that put the rows may have been killed before the entry was durable.
            self._storage.sync_folder(log_folder(self.uri))
            return
        writer = FileWriter(self._storage, self.uri, self._schema)
        table.stage(written=writer.write([rows]))
        table.commit(app_id=app_id, version_marker=marker, operation=self._name.upper())

    def _like(
        self, table: DeltaTable, rows: pa.Table, same: Sequence[str]
    ) -> set[tuple[object, ...]]:
        """Return the values in the columns ``same`` of the table's rows whose transactions end at
        the LSNs in ``rows``."""
        lsn = _TRANSACTION[self._name]
        asked = pc.unique(rows[lsn].combine_chunks())
        first, last = pc.min(asked).as_py(), pc.max(asked).as_py()
        found: set[tuple[object, ...]] = set()
        for file in table.files.values():
            within = statistics.bounds(file.stats, lsn, asked.type)
            if within is not None and (within[1] < first or last < within[0]):
                continue
            with open_parquet(table.uri, file.path) as parquet:
                held = [name for name in same if name in parquet.schema_arrow.names]
                gone = file.positions_deleted()
                for start, batch in read_batches(parquet, held):
                    kept = pc.is_in(batch[lsn], asked).to_numpy(zero_copy_only=False)
                    for at in np.flatnonzero(kept).tolist():
                        if start + at not in gone:
                            row = batch.slice(at, 1).to_pylist()[0]
                            found.add(tuple(row.get(name) for name in same))
        return found

    def _open(self) -> DeltaTable:
        found = DeltaTable.load(self._storage, self._store, self.uri, self._name)
        columns = tuple(Column(f.name, Attribute(f.name, 0), f.type) for f in self._schema)
        if found is not None:
            # a table of an older version may lack columns
            found.add_columns(found.schema.lacking(columns))
            return found
        try:
            return DeltaTable.create(
                self._storage, self._store, self.uri, self._name, TableSchema(columns)
            )
        except DuplicateObject:
            return self._open()

    def _after(self, rows: pa.Table, marker: int) -> pa.ChunkedArray:
        return pc.greater(rows[_TRANSACTION[self._name]], marker)


def _is_before(file: DataFile, column: str, since: datetime | None) -> bool:
    """Return whether all rows of a file are known to be older than ``since``."""
    bounds = statistics.bounds(file.stats, column, TIMESTAMP)
    return since is not None and bounds is not None and bounds[1] < since
