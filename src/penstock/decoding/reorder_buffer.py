"""Transactions and their changes as a source gives them, in commit order (reorderbuffer.h).

``LogicalDecodingContext.process`` takes an iterator of ``Item``, which are frozen values:

- ``Transaction``: a transaction that ended. The iterator of its changes is read once, at the
  transaction's turn, or never if a filter skips the transaction.
- ``MessageChange``: a message that is not transactional, between transactions or within one.
- ``StreamBlock`` and ``StreamAbort``: parts of a transaction that has not ended. Only sources that
  read a log of changes give them, and only if the context's ``streaming`` is true.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.decoding.relation_data import RelationData
from penstock.decoding.tuple_columns import Tuple, TupleColumns
from penstock.lsn import INVALID, Lsn

CHANGE_BYTES: Final = 128
"""The memory that a change takes beside its values on a server (ReorderBufferChangeSize)."""


@dataclass(slots=True)
class DecodingStats:
    """The counts of what was decoded from a slot, with the names of pg_stat_replication_slots
    (UpdateDecodingStats). ``stats_reset``: seconds since 1970; None: never."""

    total_txns: int = 0
    total_bytes: int = 0
    stream_txns: int = 0
    stream_count: int = 0
    stream_bytes: int = 0
    stats_reset: float | None = None

    def reset(self, now: float) -> None:
        """Begin again with zero."""
        self.total_txns = self.total_bytes = 0
        self.stream_txns = self.stream_count = self.stream_bytes = 0
        self.stats_reset = now


class Action(StrEnum):
    """The kinds of row changes (ReorderBufferChangeType)."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True, eq=False)
class RowBatch:
    """Changes of one table and one kind, in order.

    ``new`` is None for DELETE. ``old`` is None if no row has an old tuple; otherwise all have one.
    With REPLICA IDENTITY FULL, an old tuple has all columns; otherwise only the columns of the
    replica identity. ``lsn`` is one LSN for all rows, or an array (n,). ``xid`` is a
    subtransaction's if it made the changes.

    ``messages`` is set by a source that has encoded the rows for pgoutput, as CopyData messages
    with XLogData. Then there are no tuples.
    """

    relation: RelationData
    action: Action
    new: TupleColumns | None
    old: TupleColumns | None
    lsn: Lsn | NDArray[np.uint64]
    xid: int | None = None
    rows: int = -1
    """The count of rows that have no tuples: rows deleted from a table without replica identity,
    and rows of ``messages``."""
    messages: bytes | None = None

    def __len__(self) -> int:
        for side in (self.new, self.old):
            if side is not None:
                return side.rows
        return self.rows

    def lsn_at(self, row: int) -> Lsn:
        """Return the position of a row's change in the log."""
        return self.lsn if isinstance(self.lsn, Lsn) else Lsn(int(self.lsn[row]))

    @property
    def first_lsn(self) -> Lsn:
        return self.lsn_at(0)

    def changes(self) -> Iterator[Change]:
        """Return the changes row by row."""
        return (Change(self, row) for row in range(len(self)))

    def slice(self, offset: int, length: int) -> RowBatch:
        """Return a run of rows, without a copy."""
        return replace(
            self,
            new=None if self.new is None else self.new.slice(offset, length),
            old=None if self.old is None else self.old.slice(offset, length),
            lsn=self.lsn if isinstance(self.lsn, Lsn) else self.lsn[offset : offset + length],
            rows=min(length, len(self) - offset),
        )

    @property
    def nbytes(self) -> int:
        """The bytes of both tuples, roughly, or of the messages."""
        if self.messages is not None:
            return len(self.messages)
        return sum(side.nbytes for side in (self.new, self.old) if side is not None)

    @property
    def memory(self) -> int:
        """The memory that the changes would take on a server, roughly."""
        return self.nbytes + CHANGE_BYTES * len(self)


class Change:
    """One row change, as a plugin's ``change`` gets it (ReorderBufferChange). ``new`` and ``old``
    are views of its tuples, or None."""

    __slots__ = ("_batch", "_row", "action", "lsn", "new", "old", "xid")

    def __init__(self, batch: RowBatch, row: int) -> None:
        self._batch = batch
        self._row = row
        self.action: Action = batch.action
        self.new: Tuple | None = None if batch.new is None else batch.new.row(row)
        self.old: Tuple | None = None if batch.old is None else batch.old.row(row)
        self.lsn: Lsn = batch.lsn_at(row)
        self.xid: int | None = batch.xid

    @property
    def batch(self) -> RowBatch:
        """A batch of this change alone."""
        return self._batch.slice(self._row, 1)


@dataclass(frozen=True, slots=True)
class TruncateChange:
    """TRUNCATE of one table or several."""

    relations: tuple[RelationData, ...]
    lsn: Lsn
    cascade: bool = False
    restart_identity: bool = False
    xid: int | None = None


@dataclass(frozen=True, slots=True)
class MessageChange:
    """A message of pg_logical_emit_message; ``origin`` is set only if it is not transactional."""

    transactional: bool
    prefix: str
    content: bytes
    lsn: Lsn
    xid: int | None = None
    origin: str | None = None


class Catalogs(Protocol):
    """Catalogs as they were at the change (a historic snapshot)."""

    def relation(self, oid: int) -> RelationData | None:
        """Return a table, None if it did not exist."""

    def rows(self, catalog: str) -> Iterable[Mapping[str, object]]:
        """Return the rows of a catalog such as ``pg_class``. Raises UndefinedObject."""


Changes = Iterable[RowBatch | TruncateChange | MessageChange]


class TransactionKind(Enum):
    """The end of a transaction. A prepared one ends twice: by PREPARE, and by COMMIT or ROLLBACK
    PREPARED, its verdict."""

    COMMIT = "commit"
    PREPARE = "prepare"
    COMMIT_PREPARED = "commit prepared"
    ROLLBACK_PREPARED = "rollback prepared"


@dataclass(frozen=True, slots=True)
class Prepared:
    """The PREPARE that a verdict belongs to. ``time`` has the form of ``Transaction.commit_time``.
    ``sent`` is false if the PREPARE comes before the slot's two_phase_at and so was not sent to the
    client; its changes are then sent with the verdict.
    """

    lsn: Lsn
    end_lsn: Lsn
    time: int
    sent: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Transaction:
    """A transaction that ended (ReorderBufferTXN).

    - ``first_lsn``: the LSN of its first change. ``final_lsn``: the LSN of the record of its
      commit, PREPARE or verdict. ``end_lsn``: the end of that record.
    - ``commit_time``: the time of that record, in microseconds since the Unix epoch.
    - ``origin``: the replication origin it came from, None if it is local. ``origin_lsn``: its LSN
      there.
    - ``gid``: set for all kinds but COMMIT. ``prepared``: set for verdicts.
    - ``changes``: set for COMMIT and PREPARE, and for COMMIT_PREPARED if the plugin may need them
      there, since it skipped the PREPARE or has no two-phase.
    - ``streamed``: send it in blocks (``stream_start`` ...) if the plugin takes blocks; ``changes``
      are then those after the blocks that were sent before.
    - ``catalogs``: the catalogs as they were at its changes (base_snapshot), if the source has
      them.
    """

    xid: int
    first_lsn: Lsn
    final_lsn: Lsn
    end_lsn: Lsn
    commit_time: int
    changes: Changes = ()
    origin: str | None = None
    origin_lsn: Lsn = INVALID
    gid: str | None = None
    kind: TransactionKind = TransactionKind.COMMIT
    prepared: Prepared | None = None
    streamed: bool = False
    catalogs: Catalogs | None = None


@dataclass(frozen=True, slots=True, eq=False)
class StreamBlock:
    """Changes of a transaction that has not ended. ``last_lsn`` is the block's end in the log, if
    not the last change's LSN."""

    xid: int
    first_lsn: Lsn
    changes: Changes
    origin: str | None = None
    origin_lsn: Lsn = INVALID
    last_lsn: Lsn = INVALID


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """The rollback of a transaction whose blocks were sent, or of a subtransaction of it. ``time``
    has the form of ``Transaction.commit_time``."""

    xid: int
    subxid: int
    abort_lsn: Lsn
    time: int


Item = Transaction | MessageChange | StreamBlock | StreamAbort


@dataclass(slots=True)
class ReorderBufferTXN:
    """A transaction as callbacks get it, with the fields of ``Transaction``. Fields about its end
    are set once it has ended. ``output_plugin_private`` belongs to the plugin during the
    transaction."""

    xid: int
    first_lsn: Lsn
    final_lsn: Lsn = INVALID
    end_lsn: Lsn = INVALID
    commit_time: int = 0
    origin: str | None = None
    origin_lsn: Lsn = INVALID
    gid: str | None = None
    prepared: Prepared | None = None
    toptxn: ReorderBufferTXN | None = None
    output_plugin_private: Any = field(default=None, repr=False)
