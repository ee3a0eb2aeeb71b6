"""A replication origin that was put further on: pg_replication_origin_advance (origin.c).

In: where it was put, by the catalog, and where the last cut and the tables are. Out: the LSN of a
cut with the tables as they are, after which the stream goes on; or the error for what must not be
passed by like that. Transactions in between never come: on a server they would be skipped likewise.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from penstock.catalog.publisher_identity import alter
from penstock.errors import NotInPrerequisiteState
from penstock.lsn import INVALID, Lsn
from penstock.subscription.origin import TableProgress

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
