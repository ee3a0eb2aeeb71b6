"""A transaction that is passed by: ALTER SUBSCRIPTION ... SKIP (worker.c, is_skipping_changes).

In: the LSN that SKIP was given, and batches. Out: the batch's messages without the rows and
TRUNCATEs of the transaction that finishes there; its Relation messages stay. It is skipped whole,
whatever happens: that it is going to be is in the catalog before anything of its batch is
committed, and stays there until a cut has passed it. So it is skipped again after a crash between
two tables' commits, also when SKIP was altered meanwhile. A transaction that some tables have
already, for the same reason, is taken back from them first; where that is not possible, it cannot
be skipped any more.

As on a server, SKIP holds for what comes next: once other transactions have been applied it is
taken back, with a warning.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.errors import report
from penstock.lsn import INVALID, Lsn
from penstock.pgoutput.chunk import MessageChunk
from penstock.subscription.origin import TableProgress
from penstock.subscription.piece import Batch

log = logging.getLogger(__name__)

_BEGIN: Final = ord("B")
_COMMIT: Final = ord("C")
_CHANGES: Final = np.isin(np.arange(256), tuple(b"IUDT"))
_LSN: Final = struct.Struct("!Q")
_FINAL_LSN_AT: Final = 1


@dataclass(frozen=True, slots=True)
class SkipLsns:
    """The catalog's, of one subscription."""

    generation: Callable[[], int]
    """Grows with every change; cheap."""
    read: Callable[[], tuple[Lsn, Lsn]]
    """``skip_lsn`` and ``skipping_lsn`` of pg_subscription."""
    begin: Callable[[Lsn], bool]
    """The transaction is skipped from now on; False: SKIP was altered."""
    clear: Callable[[Lsn], object]
    """It is passed."""


class Skipping:
    """What is skipped of one stream, from its last cut on; one thread at a time."""

    def __init__(self, subscription: str, lsns: SkipLsns, last_cut: Lsn | None) -> None:
        self._subscription = subscription
        self._lsns = lsns
        self._looked_at = -1
        self._skip = self._skipping = INVALID
        self._look()
        if last_cut is not None:
            self.passed(last_cut)
            if INVALID < self._skip < last_cut:
                self._give_up(f"The last cut, at LSN {last_cut}, is after it.")

    def is_in_some(
        self, batch: Batch, tables: Iterable[TableProgress], last_cut: Lsn | None
    ) -> bool:
        """Whether some tables have the transaction of a batch that is to be skipped."""
        self._look()
        skip, begun = self._skip, self._skipping != INVALID
        if begun or skip == INVALID or skip not in finish_lsns(batch):
            return False
        return any(_has(table, skip, last_cut or INVALID) for table in tables)

    def begin(self, batch: Batch, tables: Iterable[TableProgress], last_cut: Lsn | None) -> Lsn:
        """The finish LSN of the transaction of a batch that is to be skipped; INVALID: none."""
        self._look()
        if self._skipping != INVALID:
            return self._skipping if self._skipping in finish_lsns(batch) else INVALID
        skip = self._skip
        if skip == INVALID or skip not in finish_lsns(batch):
            return INVALID
        if self.is_in_some(batch, tables, last_cut):
            self._give_up("Some tables have the transaction already: a crash came between.")
            return INVALID
        if not self._lsns.begin(skip):
            return INVALID
        self._skipping = skip
        log.info("logical replication starts skipping transaction at LSN %s", skip)
        return skip

    def after_cut(self, cut: Lsn, batch: Batch, changes: bool) -> None:
        """A batch is applied and in a cut. ``changes``: it had any that were not skipped."""
        before = self._skip
        if not self.passed(cut) and changes and before != INVALID:
            finish = max(finish_lsns(batch), default=INVALID)
            self._give_up(
                f"Remote transaction's finish WAL location (LSN) {finish} did not match skip-LSN "
                f"{before}."
            )

    def passed(self, cut: Lsn) -> bool:
        """Whether a cut has passed what was skipped."""
        skipping = self._skipping
        if skipping == INVALID or skipping >= cut:
            return False
        self._lsns.clear(skipping)
        log.info("logical replication completed skipping transaction at LSN %s", skipping)
        self._skipping = INVALID
        if self._skip == skipping:
            self._skip = INVALID
        return True

    def _give_up(self, detail: str) -> None:
        skip, self._skip = self._skip, INVALID
        if self._lsns.read()[0] != skip:
            return  # it was altered, or what it names was prepared (``prepared``)
        self._lsns.clear(skip)
        message = f'skip-LSN of subscription "{self._subscription}" cleared'
        log.warning("%s", report("WARNING", message, detail, None))

    def _look(self) -> None:
        now = self._lsns.generation()
        if now != self._looked_at:
            self._skip, self._skipping = self._lsns.read()
            self._looked_at = now


def _has(table: TableProgress, skip: Lsn, last_cut: Lsn) -> bool:
    """Whether a table is beyond the last cut, with the transaction in it."""
    points = (table.marker, table.ahead) if table.ready else ()
    return any(point is not None and point > max(skip, last_cut) for point in points)


def finish_lsns(batch: Batch) -> set[Lsn]:
    """Where the commit records of its transactions begin."""
    return {Lsn(lsn) for piece in batch.pieces for lsn in piece.finish_lsns.tolist()}


class Passing:
    """Takes one transaction's changes out of the pieces of a batch, which come in order."""

    def __init__(self, skip: Lsn) -> None:
        """``skip``: its finish LSN; INVALID: nothing is taken out."""
        self._skip = skip
        self._inside = False

    def rest(self, chunk: MessageChunk) -> MessageChunk:
        """What of a piece is to be applied."""
        if self._skip == INVALID:
            return chunk
        kinds = np.frombuffer(chunk.buffer, np.uint8)[chunk.starts]
        out = np.full(len(chunk), self._inside)
        for index in np.flatnonzero((kinds == _BEGIN) | (kinds == _COMMIT)):
            if kinds[index] == _BEGIN:
                at = int(chunk.starts[index]) + _FINAL_LSN_AT
                final = chunk.buffer[at : min(at + _LSN.size, int(chunk.ends[index]))]
                self._inside = final == _LSN.pack(self._skip)
            else:
                self._inside = False
            out[index:] = self._inside
        kept = ~(out & _CHANGES[kinds])
        return MessageChunk(chunk.buffer, chunk.starts[kept], chunk.ends[kept])
