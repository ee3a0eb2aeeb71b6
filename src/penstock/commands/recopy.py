"""Tables that REFRESH copies again, and its notices about them (ours: AlterSubscription_refresh in
subscriptioncmds.c copies no table again).

In: the tables of a subscription that are published still, or again. Out: rows of
pg_subscription_rel in state i, whose copies replace the rows that are there, and notices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.catalog import (
    CatalogTransaction,
    Subscription,
    SubscriptionRel,
    SubscriptionRelState,
)
from penstock.commands.scope import notice
from penstock.commands.subscription_options import SubOpts
from penstock.protocol.answers import Notice

_RETURNED: Final = (
    "A table of that name was in the subscription before. Rows that others have changed since "
    "would be kept, and the copy refused."
)


def notices_of_returned(added: Iterable[SubscriptionRel]) -> list[Notice]:
    """Return notices for those added tables whose names were in the subscription before."""
    return [copy_notice(rel, _RETURNED) for rel in added if _comes_back(rel)]


def _comes_back(rel: SubscriptionRel) -> bool:
    return rel.returned and rel.state is SubscriptionRelState.INIT


def copy_again(
    transaction: CatalogTransaction,
    subscription: Subscription,
    kept: Sequence[tuple[SubscriptionRel, int]],
    options: SubOpts,
) -> list[Notice]:
    """Copy again the tables whose names mean other relations now, or meant others for a while, and
    those that are parked or have stopped the subscription. Return notices.

    PostgreSQL goes on with the rows that are there; here a copy replaces them. With copy_data =
    false the rows of another relation are kept, and the table follows the new one from now on; a
    table that cannot follow stays as it is, without the changes that it has missed.
    """
    notices = []
    for rel, oid in kept:
        another = rel.relid not in (None, oid) or rel.conflict is not None
        failed = _error_of(rel, subscription)
        if rel.state is SubscriptionRelState.INIT or not (another or failed):
            continue
        if options.copy_data:
            transaction.relations.copy_again(rel, oid)
            notices.append(copy_notice(rel, _why_again(rel, oid, failed)))
        elif rel.state is not SubscriptionRelState.PARKED and another:
            transaction.relations.adopt(rel, oid)
    return notices


def _error_of(rel: SubscriptionRel, subscription: Subscription) -> str | None:
    """Return the reason why a table does not follow any more, or None."""
    if rel.error is not None:
        return f"It is parked: {rel.error.message}."
    if subscription.error is not None and subscription.stopped_by == rel.sync_id:
        return f"It has stopped the subscription: {subscription.error.message}."
    return None


def copy_notice(rel: SubscriptionRel, why: str) -> Notice:
    """Return the notice for a table whose copy replaces the rows that are there."""
    return notice(
        f'table "{rel.qualified_name}" will be copied again',
        detail=f"{why} The copy replaces the rows of the Delta table in one commit; its older "
        "versions keep them.",
    )


def _why_again(rel: SubscriptionRel, oid: int, failed: str | None) -> str:
    return failed or rel.conflict or f"It had OID {rel.relid}, and has OID {oid} now."
