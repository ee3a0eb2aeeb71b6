"""ALTER SUBSCRIPTION ... SET, ADD and DROP PUBLICATION (subscriptioncmds.c).

In: a parsed statement, the catalog, a way to the publisher. Out: the subscription's new list, and
its tables as the publications of that list have them (REFRESH), in one transaction of the catalog.
A worker that runs starts again with the new list. Before that it applies by the old one what has
been committed until now: a publisher looks publications up as they were at the time of each change.
One that was made later is an error there, or, from version 18 on, leaves the change out.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from penstock.catalog import Catalog, Subscription
from penstock.commands.scope import CommandResult, CommandScope, PublisherFactory, warning
from penstock.commands.subscription_options import (
    SET_PUBLICATION,
    parse_subscription_options,
)
from penstock.commands.subscription_targets import between_batches, check_whole_batches
from penstock.commands.subscriptioncmds import (
    ALTERED,
    ask_published,
    besides,
    check_publications_once,
    check_unchanged,
    get_subscription,
    open_session,
    take_in,
)
from penstock.commands.two_phase import check_copy
from penstock.errors import (
    DuplicateObject,
    InvalidParameterValue,
    NotInPrerequisiteState,
    PenstockError,
)
from penstock.lakehouse.cuts import CutOwner, Cuts
from penstock.lsn import Lsn
from penstock.protocol.answers import Notice
from penstock.sql.grammar.subscription import AlterSubscriptionPublications
from penstock.sqlstate import InvalidObjectDefinition
from penstock.walreceiver.publications import missing_publications_message

_REFRESH_HINT: Final = {
    "SET": "Use ALTER SUBSCRIPTION ... SET PUBLICATION ... WITH (refresh = false).",
    "ADD": "Use ALTER SUBSCRIPTION ... ADD PUBLICATION ... WITH (refresh = false) instead.",
    "DROP": "Use ALTER SUBSCRIPTION ... DROP PUBLICATION ... WITH (refresh = false) instead.",
}

_CUT_WITHIN_S: Final = 5.0
"""How long a worker is waited for: one that is far behind does not hold up ALTER."""

_LOOK_S: Final = 0.05


def alter_publications(
    statement: AlterSubscriptionPublications,
    catalog: Catalog,
    connect: PublisherFactory,
    scope: CommandScope,
) -> CommandResult:
    """Raises DuplicateObject, UndefinedObject, InvalidParameterValue, NotInPrerequisiteState, and
    ObjectInUse when the subscription was changed while the publisher was asked, or stays in the
    middle of a batch."""
    options = parse_subscription_options(statement.options, SET_PUBLICATION)
    if not options.refresh and scope.block_end is not None:
        _save(statement, catalog, scope)  # the block is waited for as a whole
        return CommandResult(ALTERED)
    with catalog.read() as transaction:
        subscription = get_subscription(transaction, statement.name)
    wanted = _altered(subscription, statement)
    if not options.refresh:
        with _applied_until_now(subscription, wanted, catalog, connect, scope) as late:
            between_batches(lambda: _save(statement, catalog, scope))
        return CommandResult(ALTERED, tuple(late))
    if not subscription.enabled:
        raise NotInPrerequisiteState(
            "ALTER SUBSCRIPTION with refresh is not allowed for disabled subscriptions",
            hint=_REFRESH_HINT[statement.verb],
        )
    check_copy(subscription, options, statement.verb)
    scope.prevent_in_block("ALTER SUBSCRIPTION with refresh")
    checked = () if statement.verb == "DROP" else statement.publications
    found = ask_published(wanted, connect, checked, besides(catalog, subscription, options))
    notices = []
    if found.missing:
        notices.append(warning(missing_publications_message(found.missing), sqlstate="42704"))

    def taken_in() -> list[Notice]:
        with catalog.write() as transaction:
            # With what was recorded of it while the publisher was asked, such as whom it follows.
            now = check_unchanged(transaction, subscription, found)
            check_whole_batches(transaction, scope, now)
            transaction.subscriptions.save(_altered(now, statement))
            return take_in(transaction, _altered(now, statement), found, options)

    with _applied_until_now(subscription, wanted, catalog, connect, scope) as late:
        notices += [*late, *between_batches(taken_in)]
    return CommandResult(ALTERED, tuple(notices))


@contextmanager
def _applied_until_now(
    subscription: Subscription,
    wanted: Subscription,
    catalog: Catalog,
    connect: PublisherFactory,
    scope: CommandScope,
) -> Iterator[list[Notice]]:
    """Before it gets publications that it did not have: its worker goes as far as the publisher is
    now, and no further while the block runs. Yields a warning where it has not come there in time.
    """
    added = set(wanted.publications) - set(subscription.publications)
    follows = scope.running and subscription.enabled and not subscription.stopped
    cuts = None if scope.warehouse is None else scope.warehouse.cuts
    owner = CutOwner(subscription.name, subscription.app_id)
    position = _position(subscription, connect) if added and follows else None
    if position is None or cuts is None or cuts.last(owner) is None:  # nothing is applied yet
        yield []
        return
    with catalog.write() as transaction:
        request = transaction.cut_requests.ask(subscription.oid, position)
    try:
        yield [] if _has_cut(cuts, owner, position) else [_behind(subscription)]
    finally:
        catalog.forget_cut_request(request.id)


def _position(subscription: Subscription, connect: PublisherFactory) -> Lsn | None:
    try:
        with open_session(connect, subscription.name, subscription.conninfo) as publisher:
            return publisher.identify_system().xlogpos
    except PenstockError:
        return None  # without refresh the statement needs no publisher


def _has_cut(cuts: Cuts, owner: CutOwner, position: Lsn) -> bool:
    deadline = time.monotonic() + _CUT_WITHIN_S
    while (cut := cuts.last(owner)) is None or cut.lsn < position:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def _behind(subscription: Subscription) -> Notice:
    return warning(
        f'subscription "{subscription.name}" has not applied all that is committed on the '
        "publisher",
        detail="The publisher sends the rest by the new list. A publication that was made later "
        "than a change is an error there, or, from version 18 on, leaves the change out.",
        hint="Where one of them is new, set the former list again, wait until penstock status "
        "shows no lag, and repeat this statement.",
    )


def _save(statement: AlterSubscriptionPublications, catalog: Catalog, scope: CommandScope) -> None:
    with catalog.write() as transaction:
        subscription = get_subscription(transaction, statement.name)
        altered = _altered(subscription, statement)
        check_whole_batches(transaction, scope, subscription)
        transaction.subscriptions.save(altered)


def _altered(subscription: Subscription, statement: AlterSubscriptionPublications) -> Subscription:
    return replace(subscription, publications=_merged(subscription, statement)).healed()


def _merged(
    subscription: Subscription, statement: AlterSubscriptionPublications
) -> tuple[str, ...]:
    """merge_publications"""
    named = statement.publications
    check_publications_once(named)
    if statement.verb == "SET":
        return named
    known = subscription.publications
    if statement.verb == "ADD":
        _refuse(subscription.name, [name for name in named if name in known])
        return (*known, *named)
    for name in named:
        if name not in known:
            raise InvalidObjectDefinition(
                f'publication "{name}" is not in subscription "{subscription.name}"',
            )
    left = tuple(name for name in known if name not in named)
    if not left:
        raise InvalidParameterValue("cannot drop all the publications from a subscription")
    return left


def _refuse(subscription: str, twice: Sequence[str]) -> None:
    if twice:
        raise DuplicateObject(
            f'publication "{twice[0]}" is already in subscription "{subscription}"'
        )
