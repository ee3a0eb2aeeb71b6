"""Tables of a node beside those of its subscriptions: what is told of their transactions.

In: rows of one batch. Out: one commit, with the batch's LSN as the subscription's marker, before
the batch itself is committed. A batch that comes again, with whatever others, adds nothing twice:
its rows tell where their transactions ended. Plain Delta tables that any reader understands; what
is in them is the user's to delete.

``conflicts``: changes that could not be applied to a target as they came (conflict.c);
``messages``: what the publisher's sessions have emitted (pg_logical_emit_message).
"""

from __future__ import annotations

import threading
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import CommitConflict, DuplicateObject
from penstock.lakehouse.delta_types import TIMESTAMP
from penstock.lakehouse.files import FileWriter
from penstock.lakehouse.log import log_folder
from penstock.lakehouse.log_store import LogStore
from penstock.lakehouse.schema import Column, TableSchema
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
_TRANSACTION: Final = {"conflicts": "remote_commit_lsn", "messages": "commit_lsn"}
"""Which column tells where a row's transaction ended."""
_TRIES: Final = 100
"""Races that one commit may lose: all subscriptions of a node use the table."""


class SideTable:
    """Of a warehouse; made with its first row. Used by several threads."""

    def __init__(
        self, storage: Storage, store: LogStore, folder: str, name: str, schema: pa.Schema
    ) -> None:
        self.uri: Final = f"{folder}/{name}"
        self._name = name
        self._schema = schema
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
                new = rows if marker is None else rows.filter(self._after(rows, marker))
                if not new.num_rows:
                    # Put by a process that may have been killed before it was durable.
                    self._storage.sync_folder(log_folder(self.uri))
                    return
                writer = FileWriter(self._storage, self.uri, self._schema)
                table.stage(written=writer.write([new]))
                try:
                    table.commit(
                        app_id=app_id,
                        version_marker=max(end_lsn, marker or 0),
                        operation=self._name.upper(),
                    )
                except CommitConflict:
                    table.discard()
                    continue
                return
            raise CommitConflict(f'other writers keep committing to the table "{self.uri}"')

    def _open(self) -> DeltaTable:
        found = DeltaTable.load(self._storage, self._store, self.uri, self._name)
        columns = tuple(Column(name=f.name, source=f.name, type=f.type) for f in self._schema)
        if found is not None:
            # One that an older version has made lacks what it did not tell.
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
