"""Transactions and their changes as a source gives them, in commit order (reorderbuffer.h).

In: nothing. Out: frozen values. ``LogicalDecodingContext.process`` takes an iterator of ``Item``:

- ``Transaction``: one that ended, its changes given by an iterator that is gone through once, when
  it is its turn, or not at all (a filter passes it by);
- ``MessageChange`` that is not transactional, between transactions or within;
- ``StreamBlock`` and ``StreamAbort``: of a transaction that goes on. Only for sources that read a
  log of changes, and only where the context's ``streaming`` is true.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from penstock.decoding.relation_data import RelationData
from penstock.decoding.tuple_columns import Tuple, TupleColumns
from penstock.lsn import INVALID, Lsn


class Action(StrEnum):
    """ReorderBufferChangeType of row changes."""

    INSERT = "INSERT"
    UPDATE = "UPDATE"
    DELETE = "DELETE"


@dataclass(frozen=True, slots=True, eq=False)
class RowBatch:
    """Changes of one table and one kind, in order.

    ``new``: None for DELETE. ``old``: None where no row has an old tuple; otherwise all have one.
    An old tuple of the replica identity's key alone has its other columns not sent; with REPLICA
    IDENTITY FULL it has all. ``lsn``: of all rows, or (n,) of each. ``xid``: of the subtransaction
    that made the changes, where it is not the transaction's.
    """

    relation: RelationData
    action: Action
    new: TupleColumns | None
    old: TupleColumns | None
    lsn: Lsn | NDArray[np.uint64]
    xid: int | None = None
    rows: int = -1
    """Of a batch without any tuple: deleted rows of a table that has no replica identity."""

    def __len__(self) -> int:
        for side in (self.new, self.old):
            if side is not None:
                return side.rows
        return self.rows

    def lsn_at(self, row: int) -> Lsn:
        """Where a row's change stands in the log."""
        return self.lsn if isinstance(self.lsn, Lsn) else Lsn(int(self.lsn[row]))

    @property
    def first_lsn(self) -> Lsn:
        return self.lsn_at(0)

    def changes(self) -> Iterator[Change]:
        """Row by row."""
        return (Change(self, row) for row in range(len(self)))

    def slice(self, offset: int, length: int) -> RowBatch:
        """A run of rows, without a copy."""
        return replace(
            self,
            new=None if self.new is None else self.new.slice(offset, length),
            old=None if self.old is None else self.old.slice(offset, length),
            lsn=self.lsn if isinstance(self.lsn, Lsn) else self.lsn[offset : offset + length],
            rows=min(length, len(self) - offset),
        )

    @property
    def nbytes(self) -> int:
        """Bytes of both tuples, roughly."""
        return sum(side.nbytes for side in (self.new, self.old) if side is not None)


class Change:
    """One row change, as a plugin's ``change`` gets it (ReorderBufferChange). ``new``, ``old``:
    views of its tuples, None where there is none."""

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
    """pg_logical_emit_message. ``origin``: of one that is not transactional."""

    transactional: bool
    prefix: str
    content: bytes
    lsn: Lsn
    xid: int | None = None
    origin: str | None = None


class Catalogs(Protocol):
    """Catalogs as they were at the change (a historic snapshot)."""

    def relation(self, oid: int) -> RelationData | None:
        """A table, None where there was none."""

    def rows(self, catalog: str) -> Iterable[Mapping[str, object]]:
        """Rows of a catalog, ``pg_class`` for instance. Raises UndefinedObject."""


Changes = Iterable[RowBatch | TruncateChange | MessageChange]


class TransactionKind(Enum):
    """How it ended. What was prepared comes twice: as PREPARE, and with its verdict."""

    COMMIT = "commit"
    PREPARE = "prepare"
    COMMIT_PREPARED = "commit prepared"
    ROLLBACK_PREPARED = "rollback prepared"


@dataclass(frozen=True, slots=True)
class Prepared:
    """The PREPARE that a verdict is of. ``time``: as ``Transaction.commit_time``.

    ``sent``: whether it went to the slot's client at its time, false for one that stands before
    the slot's two_phase_at; its changes then go out with the verdict.
    """

    lsn: Lsn
    end_lsn: Lsn
    time: int
    sent: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Transaction:
    """A transaction that ended (ReorderBufferTXN).

    - ``first_lsn``: of its first change; ``final_lsn``: of the commit record, or of PREPARE's or
      the verdict's; ``end_lsn``: behind that record.
    - ``commit_time``: of that record, microseconds since the Unix epoch.
    - ``origin``: the replication origin it came from, None for a local one; ``origin_lsn`` there.
    - ``gid``, for all kinds but COMMIT. ``prepared``, for verdicts.
    - ``changes``: of COMMIT and PREPARE; and of COMMIT_PREPARED, where they go out again or for
      the first time: plugins without two-phase get them there.
    - ``streamed``: send it in blocks (``stream_start`` ...), where the plugin does so; ``changes``
      are those behind the blocks that went before.
    - ``catalogs``: as they were at its changes (base_snapshot), None: as the context has them.
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
    """Changes of a transaction that has not ended. ``last_lsn``: where it ends in the log, where
    that is not the last of ``changes``."""

    xid: int
    first_lsn: Lsn
    changes: Changes
    origin: str | None = None
    origin_lsn: Lsn = INVALID
    last_lsn: Lsn = INVALID


@dataclass(frozen=True, slots=True)
class StreamAbort:
    """A transaction of which blocks were sent, or a subtransaction of it, rolled back. ``time``: as
    ``Transaction.commit_time``."""

    xid: int
    subxid: int
    abort_lsn: Lsn
    time: int


Item = Transaction | MessageChange | StreamBlock | StreamAbort


@dataclass(slots=True)
class ReorderBufferTXN:
    """A transaction as callbacks get it. Fields as ``Transaction`` has them; those of its end are
    known when it has ended. ``output_plugin_private``: the plugin's own, while the transaction
    goes on."""

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
