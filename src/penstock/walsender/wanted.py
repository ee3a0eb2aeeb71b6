"""The tables that one stream gets, and the form in which it gets them.

In: options of a subscriber. Out: frozen values, and Protocols for ``decoding``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.catalog import LakeTable, LakeTransaction, TwoPhaseKind, TwoPhaseRecord
from penstock.lsn import Lsn
from penstock.pgoutput.options import PgoutputOptions
from penstock.pipeline.change_item import PublishedTable
from penstock.walsender.lake_columns import LakeColumn

_ORIGIN_NONE: Final = "none"


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
class Wanted:
    """The form in which a stream wants changes.

    - ``binary``: values in binary if their types have a send function.
    - ``streaming``: large transactions in blocks.
    - ``local_only``: no transaction with an origin.
    - ``messages``: messages of sessions, too.
    - ``as_rows``: pieces are streams of ``pipeline.change_columns``, for output plugins.
    - ``two_phase_at``: what is prepared from there on goes out when it is prepared. None: it goes
      out when it is committed.
    """

    binary: bool = False
    streaming: bool = False
    local_only: bool = False
    messages: bool = False
    as_rows: bool = False
    two_phase_at: Lsn | None = None

    def sends_changes(self, transaction: LakeTransaction) -> bool:
        """Tell whether a transaction's changes go out with this record of it."""
        record = transaction.two_phase
        if record is None:
            return True
        match record.kind:
            case TwoPhaseKind.PREPARE:
                return self.two_phase_at is not None and transaction.commit >= self.two_phase_at
            case TwoPhaseKind.ROLLBACK_PREPARED:
                return False
        # An output plugin may have skipped the PREPARE (filter_prepare); it takes the changes now.
        return self.as_rows or not was_prepared(record, self.two_phase_at)

    @classmethod
    def by(cls, options: PgoutputOptions, two_phase_at: Lsn | None = None) -> Wanted:
        """Return the form that a subscriber's options ask for."""
        return cls(
            options.binary,
            options.streaming is not None,
            options.origin == _ORIGIN_NONE,
            options.messages,
            two_phase_at=two_phase_at,
        )


def was_prepared(record: TwoPhaseRecord, two_phase_at: Lsn | None) -> bool:
    """Tell whether the PREPARE of a committed transaction was sent (SnapBuildXactNeedsSkip)."""
    prepare = record.prepare
    return two_phase_at is not None and prepare is not None and prepare.lsn >= two_phase_at
