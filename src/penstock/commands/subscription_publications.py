"""ALTER SUBSCRIPTION ... SET, ADD and DROP PUBLICATION (subscriptioncmds.c).

In: a parsed statement, the catalog, a way to the publisher. Out: the subscription's new list, and
its tables as the publications of that list have them (REFRESH), in one transaction of the catalog.
A worker that runs starts again with the new list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    take_in,
)
from penstock.commands.two_phase import check_copy
from penstock.errors import (
    DuplicateObject,
    InvalidParameterValue,
    NotInPrerequisiteState,
)
from penstock.protocol.answers import Notice
from penstock.sql.grammar.subscription import AlterSubscriptionPublications
from penstock.sqlstate import InvalidObjectDefinition
from penstock.walreceiver.publications import missing_publications_message

_REFRESH_HINT: Final = {
    "SET": "Use ALTER SUBSCRIPTION ... SET PUBLICATION ... WITH (refresh = false).",
    "ADD": "Use ALTER SUBSCRIPTION ... ADD PUBLICATION ... WITH (refresh = false) instead.",
    "DROP": "Use ALTER SUBSCRIPTION ... DROP PUBLICATION ... WITH (refresh = false) instead.",
}


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
    if not options.refresh:
        _patiently(lambda: _save(statement, catalog, scope), scope)
        return CommandResult(ALTERED)
    with catalog.read() as transaction:
        subscription = get_subscription(transaction, statement.name)
    wanted = _altered(subscription, statement)
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

    notices += between_batches(taken_in)
    return CommandResult(ALTERED, tuple(notices))


def _patiently(save: Callable[[], None], scope: CommandScope) -> None:
    """A transaction block is waited for as a whole."""
    if scope.block_end is None:
        between_batches(save)
    else:
        save()


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
