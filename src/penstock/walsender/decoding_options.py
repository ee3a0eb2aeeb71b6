"""The options of decoding for one stream: the form of its changes, and the tables that it gets.

A subscriber's options become frozen values. The Protocols are for ``decoding``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.catalog import LakeTable, LakeTransaction, TwoPhaseKind, TwoPhaseRecord
from penstock.lsn import Lsn
from penstock.pgoutput.options import PgoutputOptions
from penstock.pipeline.change_item import PublishedTable
from penstock.protocol.answers import Notice
from penstock.walsender.lake_columns import LakeColumn

Context = Callable[[str, Lsn], str]
"""A function that takes a callback and an LSN, and returns the CONTEXT of messages."""


class PublishedAt(Protocol):
    """The tables that a stream publishes, for each transaction."""

    def at(self, place: Lsn) -> Published:
        """Return what is published at a transaction's ``LakeTransaction.place``. Cheap."""

    def warnings(self) -> Sequence[Notice]:
        """Return the warnings since the last call."""


class Published(Protocol):
    """The tables that a stream publishes at a position of the log (``RelationSyncCache``)."""

    def publishes(self, table: LakeTable) -> bool:
        """Tell whether any change of the table may be sent. Cheap."""

    def names(self, table: LakeTable) -> bool:
        """Tell whether the table, or an ancestor of it, is published by name."""

    def has(self, publications: Sequence[int]) -> bool:
        """Tell whether the stream has any of these publications (oids), whose changes are lost."""

    def of(
        self, table: LakeTable, columns: tuple[LakeColumn, ...], *, rewrites: bool
    ) -> PublishedTable | None:
        """Return how the table is published, None if it is not. ``columns`` are all of the table.
        ``rewrites``: rows are changed or deleted, so the table may need a replica identity."""


@dataclass(frozen=True, slots=True)
class DecodingOptions:
    """The form in which a stream wants changes.

    - ``pgoutput``: options of pgoutput, whose messages are encoded where the rows are read. None:
      another output plugin, which gets all changes as streams of ``pipeline.change_columns``.
    - ``two_phase_at``: transactions prepared from this position on are sent at PREPARE. None: all
      are sent at COMMIT PREPARED.
    - ``streaming``: large transactions are sent in blocks.
    """

    pgoutput: PgoutputOptions | None = None
    two_phase_at: Lsn | None = None
    streaming: bool = False

    @property
    def as_rows(self) -> bool:
        """True for an output plugin other than pgoutput."""
        return self.pgoutput is None

    @property
    def binary(self) -> bool:
        """True if values whose types have a send function are sent in binary."""
        return self.pgoutput is not None and self.pgoutput.binary

    @property
    def messages(self) -> bool:
        """True if messages of sessions are sent, too."""
        return self.pgoutput is None or self.pgoutput.messages

    def filters_origin(self, origin: str | None) -> bool:
        """Tell whether changes from an origin are left out."""
        return self.pgoutput is not None and self.pgoutput.filters_origin(origin)

    def sends_changes(self, transaction: LakeTransaction) -> bool:
        """Tell whether this entry of the log (PREPARE, for example) is sent with its changes."""
        record = transaction.two_phase
        if record is None:
            return True
        match record.kind:
            case TwoPhaseKind.PREPARE:
                return prepare_is_sent(transaction.commit, self.two_phase_at)
            case TwoPhaseKind.ROLLBACK_PREPARED:
                return False
        # An output plugin may have skipped the PREPARE (filter_prepare): it takes the changes now.
        return self.as_rows or not was_prepared(record, self.two_phase_at)


def was_prepared(record: TwoPhaseRecord, two_phase_at: Lsn | None) -> bool:
    """Tell whether the PREPARE of a committed transaction was sent (SnapBuildXactNeedsSkip)."""
    return record.prepare is not None and prepare_is_sent(record.prepare.lsn, two_phase_at)


def prepare_is_sent(prepare: Lsn, two_phase_at: Lsn | None) -> bool:
    """Tell whether a PREPARE at a position is sent to a client that gets PREPAREs from
    ``two_phase_at`` on."""
    return two_phase_at is not None and prepare >= two_phase_at
