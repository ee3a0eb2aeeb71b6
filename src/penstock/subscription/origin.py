"""Replication progress: where the stream starts, where a cut is allowed, what to acknowledge
(origin.c).

All of this is computed from the last cut and the LSNs in the tables' own commits. The functions are
pure: they apply laws 1 and 3, and ``streaming`` and ``apply`` act on the results. ``check_state``
decides which subscriptions can have progress at all.

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
    """The progress of one table.

    ``ready``: the table is part of the cuts. ``marker``: the table's own LSN, if it has one.
    ``half_applied``: the LSN of a batch that its history or some of its partitions have and the
    rest may lack.
    """

    ready: bool
    marker: Lsn | None
    half_applied: Lsn | None = None

    def within(self, lsn: Lsn) -> bool:
        """Return whether all of the table is at an LSN or before."""
        return all(point is None or point <= lsn for point in (self.marker, self.half_applied))


def start_lsn(last_cut: Lsn | None, tables: Iterable[TableProgress]) -> Lsn:
    """Return the start of START_REPLICATION: the last cut, or earlier for a table copied before it.

    A table that was copied at X while the others went on to the cut at L > X still needs the
    changes of (X, L]; the others skip them by their own LSNs. Without a cut the stream begins at
    the earliest copy; without cut and copy, at 0/0, which means the slot's confirmed LSN.
    """
    joining = [t.marker for t in tables if not t.ready and t.marker is not None]
    points = joining + ([last_cut] if last_cut is not None else [])
    return min(points, default=INVALID)


def may_cut(end_lsn: Lsn, last_cut: Lsn | None, tables: Iterable[TableProgress]) -> bool:
    """Return whether a cut at ``end_lsn`` holds whole transactions: no ready table is ahead of it.

    After a crash between two tables' commits, the first one is ahead of the other until the stream
    has caught up.
    """
    if last_cut is not None and end_lsn < last_cut:
        return False
    return all(t.within(end_lsn) for t in tables if t.ready)


def joins(end_lsn: Lsn, table: TableProgress) -> bool:
    """Return whether a copied table becomes part of the cut at ``end_lsn``."""
    return not table.ready and table.marker is not None and table.within(end_lsn)


def flush_lsn(
    last_cut: Lsn | None, tables: Iterable[TableProgress], copy_began_at: Lsn | None
) -> Lsn:
    """Return the LSN to acknowledge: the last cut (law 1), or less while tables are joining.

    A table copied at X needs every change after X until it is part of the cuts. A running copy will
    get a consistent point after the cut at which it began. The slot must not pass X or that cut.
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
    """Check that a subscription's origin gets one of ``most`` states (replorigin_session_setup).

    Subscriptions with progress keep their states until they are dropped. The remaining states go to
    the oldest other subscriptions that should run. ``followed``: oids of the subscriptions with
    progress. Raises ConfigurationLimitExceeded (53400).
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


# An advanced origin: pg_replication_origin_advance has moved it forward (origin.c).
#
# A cut of the present tables is made at the advanced LSN, which the catalog has, and the stream
# goes on from there. It is an error if some tables are ahead of others, or if transactions are
# prepared. Transactions in between are never sent, as on a server.

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AdvancedOrigin:
    """The advanced LSN that the catalog has for one subscription."""

    read: Callable[[], Lsn]
    """Return the LSN; INVALID if the origin was not advanced."""
    clear: Callable[[Lsn], object]
    """Forget the given LSN, which the last cut has reached. A newer LSN stays."""


def are_beyond(wanted: Lsn, last_cut: Lsn | None, tables: Iterable[TableProgress]) -> bool:
    """Return whether some tables have transactions that others may lack, and would never get."""
    # If no cut exists, another subscription filled the tables, each to its own LSN.
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
    """Return the LSN of the cut to make, or None if the last cut has reached ``wanted``.

    ``prepared``: transactions wait for their second phase. Raises NotInPrerequisiteState if some
    tables are ahead of others, or if transactions are prepared.
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
