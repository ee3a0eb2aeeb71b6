"""Replication progress: where the stream starts, what may be cut, what may be acknowledged
(origin.c).

In: the last cut and the LSNs that tables carry in their own commits. Out: LSNs. Pure; law 1 and law
3 are decided here and carried out by the worker.

How many subscriptions can have progress at all is decided here, too (``check_state``).

A table's own LSN (``marker``) is the end LSN of the last batch that touched it, or the consistent
point of its copy. Every change at or below it is in the table already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.publisher_identity import alter
from penstock.errors import ConfigurationLimitExceeded, NotInPrerequisiteState
from penstock.lsn import INVALID, Lsn


@dataclass(frozen=True, slots=True)
class TableProgress:
    """``ready``: the table is part of the cuts. ``marker``: the table's own LSN, if it has one.
    ``ahead``: the LSN of a batch that its history or some of its partitions have, and the others
    may not have."""

    ready: bool
    marker: Lsn | None
    ahead: Lsn | None = None

    def within(self, lsn: Lsn) -> bool:
        """Whether nothing of it is beyond an LSN."""
        return all(point is None or point <= lsn for point in (self.marker, self.ahead))


def start_lsn(last_cut: Lsn | None, tables: Iterable[TableProgress]) -> Lsn:
    """Where START_REPLICATION begins: the last cut, or earlier for a table copied before it.

    A table that has joined at X while the others went on to the cut at L > X still needs the
    changes of (X, L]; the others skip them by their own LSNs. Without a cut: the earliest copy;
    without both: 0/0, the slot's own position.
    """
    joining = [t.marker for t in tables if not t.ready and t.marker is not None]
    points = joining + ([last_cut] if last_cut is not None else [])
    return min(points, default=INVALID)


def may_cut(end_lsn: Lsn, last_cut: Lsn | None, tables: Iterable[TableProgress]) -> bool:
    """Whether a cut at ``end_lsn`` holds whole transactions: no ready table is ahead of it.

    After a crash between the commits of two tables, the one that was committed is ahead of the
    others until the stream has caught up with it.
    """
    if last_cut is not None and end_lsn < last_cut:
        return False
    return all(t.within(end_lsn) for t in tables if t.ready)


def joins(end_lsn: Lsn, table: TableProgress) -> bool:
    """Whether a copied table becomes part of the cut at ``end_lsn``."""
    return not table.ready and table.marker is not None and table.within(end_lsn)


def flush_lsn(
    last_cut: Lsn | None, tables: Iterable[TableProgress], copy_began_at: Lsn | None
) -> Lsn:
    """The LSN to acknowledge: the last cut (law 1), held back for tables that are joining.

    A table copied at X needs every change after X until it is part of the cuts, and a copy that
    runs will have a point after the cut at which it began; the slot must not pass either.
    """
    if last_cut is None:
        return INVALID
    joining = [t.marker for t in tables if not t.ready and t.marker is not None]
    held = joining if copy_began_at is None else [*joining, copy_began_at]
    return min([last_cut, *held])


def check_state(
    subscription: Subscription,
    subscriptions: Sequence[Subscription],
    followed: Collection[int],
    most: int,
) -> None:
    """A subscription's origin needs one of ``most`` states (replorigin_session_setup). Those that
    have progress keep theirs until they are dropped; then it is the turn of the oldest that run.

    ``followed``: oids of those with progress. Raises ConfigurationLimitExceeded (53400).
    """
    if not most:
        raise ConfigurationLimitExceeded(
            'cannot start logical replication workers when "max_active_replication_origins" is 0'
        )
    others = [s for s in subscriptions if s.oid in followed or s.should_run]
    before = sum(
        (other.oid not in followed, other.oid)
        < (subscription.oid not in followed, subscription.oid)
        for other in others
    )
    if before >= most:
        raise ConfigurationLimitExceeded(
            "could not find free replication state slot for replication origin with ID "
            f"{subscription.origin_id}",
            hint='Increase "max_active_replication_origins" and try again.',
        )


# A replication origin that was put further on: pg_replication_origin_advance (origin.c).
#
# In: where it was put, by the catalog, and where the last cut and the tables are. Out: the LSN of
# a cut with the tables as they are, after which the stream goes on; or the error for what must not
# be passed by like that. Transactions in between never come: on a server they would be skipped
# likewise.

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdvancedOrigin:
    """The catalog's, of one subscription."""

    read: Callable[[], Lsn]
    """INVALID: it was not put anywhere."""
    clear: Callable[[Lsn], object]
    """The last cut is there, or beyond it. One that it was put to since stays."""


def are_beyond(wanted: Lsn, last_cut: Lsn | None, tables: Iterable[TableProgress]) -> bool:
    """Whether tables have transactions that others may lack, and which would be passed by."""
    # Without a cut the tables are another subscription's, each with a position of its own.
    together = wanted if last_cut is None else last_cut
    beyond = any(table.ready and not table.within(together) for table in tables)
    return beyond and wanted > (last_cut or INVALID)


def advance_to(
    subscription: str,
    wanted: Lsn,
    last_cut: Lsn | None,
    tables: Iterable[TableProgress],
    *,
    prepared: bool,
) -> Lsn | None:
    """Where a cut is to be made; None: nowhere, as the last one is there or beyond.

    ``prepared``: transactions wait for their second phase. Raises NotInPrerequisiteState.
    """
    cut = last_cut or INVALID
    if wanted <= cut:
        return None
    if are_beyond(wanted, last_cut, tables):
        raise _refused(
            subscription,
            wanted,
            "Some tables have transactions that others may lack, and which would be passed by: a "
            "crash came between.",
        )
    if prepared:
        raise _refused(
            subscription,
            wanted,
            "There are prepared transactions, and how they end would be passed by.",
        )
    log.info('subscription "%s" goes on from %s, where its origin was put', subscription, wanted)
    return wanted


def _refused(subscription: str, wanted: Lsn, detail: str) -> NotInPrerequisiteState:
    return NotInPrerequisiteState(
        f'cannot go on with subscription "{subscription}" from {wanted}, where its replication '
        "origin was put",
        detail=detail,
        hint="Put it back, to let the subscription come to where all tables are together: "
        f"{alter(subscription)} DISABLE, pg_replication_origin_advance(origin, '0/0'), "
        f"{alter(subscription)} ENABLE.",
    )
