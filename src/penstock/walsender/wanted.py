"""What one stream gets: of which tables, and in which form.

In: options of a subscriber. Out: frozen values and a Protocol for ``decoding``.
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
    """What goes out of each transaction."""

    def at(self, place: Lsn) -> Published:
        """What goes out of one (``LakeTransaction.place``); cheap."""


class Published(Protocol):
    """What of each table goes out at a place of the log (``relation_sync_cache``)."""

    def publishes(self, table: LakeTable) -> bool:
        """Whether anything of it may go out; cheap."""

    def names(self, table: LakeTable) -> bool:
        """Whether the table, or what it is a partition of, was asked for by its own name."""

    def has(self, publications: Sequence[int]) -> bool:
        """Whether what was lost to these (oids, may be none) is lost to the stream."""

    def of(
        self, table: LakeTable, columns: tuple[LakeColumn, ...], *, rewrites: bool
    ) -> PublishedTable | None:
        """How it goes out, None: not at all. ``columns``: all of the table. ``rewrites``: rows are
        changed or deleted, so that the table may need an identity."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """How changes are wanted. ``binary``: values where types have a send function; ``streaming``:
    large transactions in blocks; ``local_only``: none with an origin; ``messages``: those of
    sessions, too; ``as_rows``: for output plugins, pieces are streams of
    ``pipeline.change_columns``; ``two_phase_at``: what is prepared from there on goes out when it
    is prepared, None: all of it when it is committed."""

    binary: bool = False
    streaming: bool = False
    local_only: bool = False
    messages: bool = False
    as_rows: bool = False
    two_phase_at: Lsn | None = None

    def sends_changes(self, transaction: LakeTransaction) -> bool:
        """Whether what it changes goes out with this record of it."""
        record = transaction.two_phase
        if record is None:
            return True
        match record.kind:
            case TwoPhaseKind.PREPARE:
                return self.two_phase_at is not None and transaction.commit >= self.two_phase_at
            case TwoPhaseKind.ROLLBACK_PREPARED:
                return False
        # What an output plugin has left until now (filter_prepare) goes out now.
        return self.as_rows or not was_prepared(record, self.two_phase_at)

    @classmethod
    def by(cls, options: PgoutputOptions, two_phase_at: Lsn | None = None) -> Wanted:
        """As a subscriber asks for it."""
        return cls(
            options.binary,
            options.streaming is not None,
            options.origin == _ORIGIN_NONE,
            options.messages,
            two_phase_at=two_phase_at,
        )


def was_prepared(record: TwoPhaseRecord, two_phase_at: Lsn | None) -> bool:
    """Whether the PREPARE of what is committed has gone out (SnapBuildXactNeedsSkip)."""
    prepare = record.prepare
    return two_phase_at is not None and prepare is not None and prepare.lsn >= two_phase_at
