"""What a task is told of the changes of one table.

In: how a table is published, parts of files whose rows went or came. Out: frozen values that cross
to the executors. What is done with them is ``change_rows``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from penstock.pgoutput.columnar_encoder import XLogDataHeader
from penstock.pipeline.scan import ScanColumn, ScanFile
from penstock.relation import Relation


class Operation(IntEnum):
    """In the order in which a table's changes are sent."""

    DELETE = 0
    UPDATE = 1
    INSERT = 2


@dataclass(frozen=True)
class PublishedTable:
    """How a table is published.

    ``relation``: as the subscriber sees it, columns in the order of the tuples. ``name``: with the
    schema. ``columns``: every column of the table. ``key``: what old and new rows are paired by, ()
    for nothing. ``identity``: the replica identity's columns; None: there is none. ``covered``:
    they are all published. ``filters``: DuckDB's SQL by operation, None or missing: all rows.
    ``published``: operations that are published.
    """

    relation: Relation
    name: str
    columns: tuple[ScanColumn, ...]
    key: tuple[str, ...]
    identity: tuple[str, ...] | None
    filters: Mapping[Operation, str | None]
    published: frozenset[Operation]
    covered: bool = True


@dataclass(frozen=True)
class ChangeItem:
    """A share of one table's changes: of ``shares``, by the hash of the key, this is ``share``.

    ``work``: number of the table in the transaction. ``xid``: of a streamed transaction.
    """

    work: int
    table: PublishedTable
    table_uri: str
    removed: tuple[ScanFile, ...]
    added: tuple[ScanFile, ...]
    header: XLogDataHeader
    binary: bool = False
    xid: int | None = None
    share: int = 0
    shares: int = 1

    @property
    def cost(self) -> float:
        """An estimate, to be compared with that of others."""
        size = sum(file.size for file in (*self.removed, *self.added))
        return 1.0 + size / self.shares


def quoted(name: str) -> str:
    """An identifier of DuckDB."""
    return '"' + name.replace('"', '""') + '"'
