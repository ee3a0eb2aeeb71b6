"""Change items: the changes of one table as a task gets them, and rows stored by an earlier job.

An item names parts of files with removed and added rows, and how the table is published. Items are
frozen values that cross to executors. The earlier job divides large changes and writes their rows
to the staging area; this module reads them. ``publish_changes`` runs both jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from penstock.errors import PenstockError
from penstock.identifiers import quoted
from penstock.lakehouse.row_pairs import PairFile
from penstock.lakehouse.storage import resolve, storage_errors
from penstock.pipeline.payload import Run
from penstock.pipeline.scan import ScanColumn, ScanFile
from penstock.publication.members import Operation
from penstock.relation import Relation, ReplicaIdentity

SENT_ORDER: Final = (Operation.DELETE, Operation.UPDATE, Operation.INSERT)
"""The order in which a table's changes are sent."""


@dataclass(frozen=True)
class PublishedTable:
    """A published table.

    ``relation``: as the subscriber sees it, columns in the order of the tuples. ``name``: with the
    schema. ``columns``: every column of the table. ``key``: columns that pair old and new rows, ()
    if none do. ``identity``: the replica identity's columns, or None. ``filters``: DuckDB's SQL by
    operation; None or missing: all rows. ``published``: operations that are published. ``refused``:
    operations for which the identity is not sufficient, with their errors.
    """

    relation: Relation
    name: str
    columns: tuple[ScanColumn, ...]
    key: tuple[str, ...]
    identity: tuple[str, ...] | None
    filters: Mapping[Operation, str | None]
    published: frozenset[Operation]
    refused: Mapping[Operation, PenstockError] = field(default_factory=dict)


@dataclass(frozen=True)
class StoredRows:
    """Rows in the staging area: some record batches of a file, which are IPC messages."""

    uri: str
    schema: pa.Schema
    runs: tuple[Run, ...]

    @property
    def size(self) -> int:
        """Bytes of the record batches."""
        return sum(run.size for run in self.runs)


@dataclass(frozen=True)
class ChangeItem:
    """One table's changes, or a share of them.

    ``work``: number of the table in the transaction. ``header``: the head of each message
    (``xlog_data_head``). ``divided``: the item is a share, with
    all rows of its keys (``publish_changes.shares``). ``pairs``: files that record which old row
    became which new row, if the writer made them. ``as_rows``: make columns for output plugins
    instead of messages.
    """

    work: int
    table: PublishedTable
    table_uri: str
    removed: tuple[ScanFile | StoredRows, ...]
    added: tuple[ScanFile | StoredRows, ...]
    header: bytes
    binary: bool = False
    divided: bool = False
    pairs: tuple[PairFile | StoredRows, ...] = ()
    as_rows: bool = False

    @property
    def size(self) -> int:
        """Bytes of the files."""
        return sum(file.size for file in (*self.removed, *self.added, *self.pairs))


def needed_columns(item: ChangeItem) -> tuple[ScanColumn, ...]:
    """Return the columns to read. For deletes alone, these are the identifying columns and those of
    the filters."""
    table = item.table
    identity = frozenset((*table.key, *(table.identity or ())))
    whole = table.relation.replica_identity is ReplicaIdentity.FULL
    if item.added or item.divided or whole or not identity:
        return table.columns
    filters = " ".join(text for text in table.filters.values() if text is not None)
    return tuple(c for c in table.columns if c.name in identity or quoted(c.name) in filters)


def read_stored(rows: StoredRows, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a share has in one file. Raises StorageError."""
    with storage_errors("read file", rows.uri):
        filesystem, path = resolve(rows.uri)
        with filesystem.open_input_file(path) as source:
            for run in rows.runs:
                for message in pa.ipc.MessageReader.open_stream(run.read(rows.uri, source)):
                    if message.type == "record batch":  # the first one follows the schema
                        batch = pa.ipc.read_record_batch(message, rows.schema)
                        yield batch.select(list(columns))
