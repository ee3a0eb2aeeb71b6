"""The options of decoding for one stream: the form of its changes, and the tables that it gets.

In: options of a subscriber. Out: frozen values, and Protocols for ``decoding``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.catalog import LakeTable, LakeTransaction, TwoPhaseKind, TwoPhaseRecord
from penstock.lsn import Lsn
from penstock.pgoutput.options import PgoutputOptions
from penstock.pipeline.change_item import PublishedTable
from penstock.walsender.lake_columns import LakeColumn


class PublishedAt(Protocol):
    """The tables that a stream publishes, for each transaction."""

    def at(self, place: Lsn) -> Published:
        """Return what is published at a transaction's place (``LakeTransaction.place``); cheap."""


class Published(Protocol):
    """The tables that a stream publishes at a place of the log (``RelationSyncCache``)."""

    def publishes(self, table: LakeTable) -> bool:
        """Tell whether any change of the table may go out; cheap."""

    def names(self, table: LakeTable) -> bool:
        """Tell whether the table, or an ancestor of it, was asked for by name."""

    def has(self, publications: Sequence[int]) -> bool:
        """Tell whether the stream loses what these publications (oids, maybe none) have lost."""

    def of(
        self, table: LakeTable, columns: tuple[LakeColumn, ...], *, rewrites: bool
    ) -> PublishedTable | None:
        """Return how the table goes out, None if it does not. ``columns`` are all of the table.
        ``rewrites``: rows are changed or deleted, so that the table may need a replica identity."""


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """The form in which a stream wants changes.

    - ``pgoutput``: options of pgoutput, whose messages are encoded where the rows are read. None:
      another output plugin, which gets everything as streams of ``pipeline.change_columns``.
    - ``two_phase_at``: what is prepared from there on goes out when it is prepared. None: it goes
      out when it is committed.
    """

    pgoutput: PgoutputOptions | None = None
    two_phase_at: Lsn | None = None

    @property
    def as_rows(self) -> bool:
        """True for an output plugin other than pgoutput."""
        return self.pgoutput is None

    @property
    def binary(self) -> bool:
        """True if values go out in binary if their types have a send function."""
        return self.pgoutput is not None and self.pgoutput.binary

    @property
    def streaming(self) -> bool:
        """True if large transactions go out in blocks."""
        return self.pgoutput is None or self.pgoutput.streaming is not None

    @property
    def messages(self) -> bool:
        """True if messages of sessions go out, too."""
        return self.pgoutput is None or self.pgoutput.messages

    def filters_origin(self, origin: str | None) -> bool:
        """Tell whether what comes from an origin is left out."""
        return self.pgoutput is not None and self.pgoutput.filters_origin(origin)

    def sends_changes(self, transaction: LakeTransaction) -> bool:
        """Tell whether a transaction's changes go out with this record of it."""
        record = transaction.two_phase
        if record is None:
            return True
        match record.kind:
            case TwoPhaseKind.PREPARE:
                return prepare_is_sent(transaction.commit, self.two_phase_at)
            case TwoPhaseKind.ROLLBACK_PREPARED:
                return False
        # An output plugin may have skipped the PREPARE (filter_prepare); it takes the changes now.
        return self.as_rows or not was_prepared(record, self.two_phase_at)


def was_prepared(record: TwoPhaseRecord, two_phase_at: Lsn | None) -> bool:
    """Tell whether the PREPARE of a committed transaction was sent (SnapBuildXactNeedsSkip)."""
    return record.prepare is not None and prepare_is_sent(record.prepare.lsn, two_phase_at)


def prepare_is_sent(prepare: Lsn, two_phase_at: Lsn | None) -> bool:
    """Tell whether a PREPARE at a position goes to a client that gets PREPAREs from
    ``two_phase_at`` on."""
    return two_phase_at is not None and prepare >= two_phase_at
