"""The conflicts table: changes that could not be applied to a target as they came (conflict.c).

In: rows of one batch. Out: one commit, with the batch's LSN as the subscription's marker, before
the batch itself is committed. A batch that comes again, with whatever others, adds nothing twice:
its rows tell where their transactions ended. A plain Delta table that any reader understands; what
is in it is the user's to delete.
"""

from __future__ import annotations

import threading
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import CommitConflict, DuplicateObject
from penstock.lakehouse.delta_types import TIMESTAMP
from penstock.lakehouse.files import FileWriter
from penstock.lakehouse.log_store import LogStore
from penstock.lakehouse.schema import Column, TableSchema
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.table import DeltaTable
from penstock.lsn import Lsn

SCHEMA: Final = pa.schema(
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
    ]
)
_NAME: Final = "conflicts"
_OPERATION: Final = "CONFLICTS"
_TRIES: Final = 100
"""Races that one commit may lose: all subscriptions of a node use the table."""


class ConflictTable:
    """Of a warehouse; made with the first conflict. Used by several threads."""

    def __init__(self, storage: Storage, store: LogStore, uri: str) -> None:
        self.uri: Final = uri
        self._storage = storage
        self._store = store
        self._lock = threading.Lock()

    def append(self, app_id: str, end_lsn: Lsn, rows: pa.Table) -> None:
        """Add a batch's rows; durable on return. Those that are there already are left out, and so
        is nothing where all are. Raises StorageError, CommitConflict."""
        with self._lock:
            for _ in range(_TRIES):
                table = self._open()
                marker = table.transaction_version(app_id)
                new = rows if marker is None else rows.filter(_after(rows, marker))
                if not new.num_rows:
                    return
                writer = FileWriter(self._storage, self.uri, SCHEMA)
                table.stage(written=writer.write([new]))
                try:
                    table.commit(
                        app_id=app_id,
                        version_marker=max(end_lsn, marker or 0),
                        operation=_OPERATION,
                    )
                except CommitConflict:
                    table.discard()
                    continue
                return
            raise CommitConflict(f'other writers keep committing to the table "{self.uri}"')

    def _open(self) -> DeltaTable:
        found = DeltaTable.load(self._storage, self._store, self.uri, _NAME)
        if found is not None:
            return found
        columns = tuple(Column(name=f.name, source=f.name, type=f.type) for f in SCHEMA)
        try:
            return DeltaTable.create(
                self._storage, self._store, self.uri, _NAME, TableSchema(columns)
            )
        except DuplicateObject:
            return self._open()


def _after(rows: pa.Table, marker: int) -> pa.ChunkedArray:
    return pc.greater(rows["remote_commit_lsn"], marker)
