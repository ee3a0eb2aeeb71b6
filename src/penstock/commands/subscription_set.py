"""ALTER SUBSCRIPTION ... SET (options) (subscriptioncmds.c, AlterSubscription).

In: a parsed statement, the catalog, a way to the publisher. Out: the subscription's row, and the
slot changed where an option is the slot's, too: the publisher first, as PostgreSQL does it, so that
the row never promises what the slot has not. A running node sees the change by the catalog's
generation.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.catalog import Catalog, CatalogTransaction, Subscription
from penstock.catalog.publisher_identity import alter
from penstock.commands import two_phase, upgraded_publisher
from penstock.commands.scope import CommandResult, CommandScope, PublisherFactory
from penstock.commands.subscription_options import (
    KEPT,
    SET,
    SYSTEM_IDENTIFIER,
    SubscriptionOptions,
    parse_subscription_options,
    without_effect,
)
from penstock.commands.subscriptioncmds import (
    ALTERED,
    get_subscription,
    open_session,
    save_healed,
)
from penstock.commands.upgraded_publisher import UpgradedPublisher
from penstock.errors import NotInPrerequisiteState, ObjectInUse, PenstockError
from penstock.lakehouse.cuts import CutOwner
from penstock.lakehouse.layout_options import NewTableLayouts
from penstock.lsn import Lsn
from penstock.protocol.answers import Notice
from penstock.sql import AlterSubscriptionSet


def alter_options(
    statement: AlterSubscriptionSet,
    catalog: Catalog,
    connect: PublisherFactory,
    scope: CommandScope,
) -> CommandResult:
    """SET (...). Raises SqlSyntaxError, NotInPrerequisiteState, ObjectInUse, StateMismatch, and
    what the publisher says of its slot."""
    with catalog.read() as transaction:
        asked = get_subscription(transaction, statement.name)
        options = parse_subscription_options(statement.options, SET)
        _altered(transaction, asked, options)
    _check_block(options, scope)
    server = _ask_upgraded(asked, options, connect)
    told = _alter_slot(asked, options, connect)
    notices: list[Notice] = []
    with catalog.write() as transaction:
        subscription = get_subscription(transaction, statement.name)
        if (told or server is not None) and _asked_for(subscription) != _asked_for(asked):
            raise ObjectInUse(
                f'subscription "{asked.name}" was changed while its publisher was asked',
                hint="Run the statement again.",
            )
        altered = _altered(transaction, subscription, options)
        if server is not None:
            altered, notices = upgraded_publisher.follow(
                *(transaction, altered, options.system_identifier, server),
                _last_cut(subscription, scope),
            )
        save_healed(transaction, altered)
    return CommandResult(ALTERED, (*without_effect(options), *notices))


def _asked_for(subscription: Subscription) -> tuple[object, ...]:
    """What the publisher's answers hang on."""
    return subscription.oid, subscription.slot_name, subscription.conninfo


def _ask_upgraded(
    subscription: Subscription, options: SubscriptionOptions, connect: PublisherFactory
) -> UpgradedPublisher | None:
    """None where it is not told that pg_upgrade has moved the publisher."""
    if SYSTEM_IDENTIFIER not in options.specified:
        return None
    upgraded_publisher.check_slot_name(subscription)
    with open_session(connect, subscription.name, subscription.conninfo) as publisher:
        return UpgradedPublisher.ask(subscription, publisher)


def _last_cut(subscription: Subscription, scope: CommandScope) -> Lsn | None:
    if scope.warehouse is None:
        return None
    cut = scope.warehouse.cuts.last(CutOwner(subscription.name, subscription.app_id))
    return None if cut is None else cut.lsn


def _check_block(options: SubscriptionOptions, scope: CommandScope) -> None:
    """CheckAlterSubOption, of options that the slot has, too."""
    if "two_phase" in options.specified and not options.two_phase:
        scope.prevent_in_block("ALTER SUBSCRIPTION ... SET (two_phase)")
    if "failover" in options.specified:
        scope.prevent_in_block("ALTER SUBSCRIPTION ... SET (failover)")


def _altered(
    transaction: CatalogTransaction, subscription: Subscription, options: SubscriptionOptions
) -> Subscription:
    """With the options that were written, after PostgreSQL's checks in its order."""
    altered = subscription
    if "slot_name" in options.specified:
        if subscription.enabled and options.slot_name is None:
            raise NotInPrerequisiteState(
                "cannot set slot_name = NONE for enabled subscription",
                hint=f"Disable it first: {alter(subscription.name)} DISABLE.",
            )
        altered = replace(altered, slot_name=options.slot_name)
    if "two_phase" in options.specified:
        state = two_phase.check_alter(transaction, subscription, options)
        altered = replace(altered, two_phase_state=state)
    if "failover" in options.specified:
        two_phase.check_alter_sub_option(subscription, "failover", alters_slot=True)
    kept = {name: getattr(options, name) for name in KEPT if name in options.specified}
    altered = replace(altered, **kept)
    NewTableLayouts.of(altered.partition_by, altered.cluster_by)
    return altered


def _alter_slot(
    subscription: Subscription, options: SubscriptionOptions, connect: PublisherFactory
) -> bool:
    """Whether the publisher had to be told; PostgreSQL tells it whatever the slot has."""
    failover = options.failover if "failover" in options.specified else None
    ends = False if two_phase.ends(subscription, options) else None
    slot = subscription.slot_name
    if slot is None or (failover is None and ends is None):
        return False
    with open_session(connect, subscription.name, subscription.conninfo) as publisher:
        try:
            publisher.alter_slot(slot, failover=failover, two_phase=ends)
        except PenstockError as error:
            if error.sqlstate == "55006" and ends is not None:
                raise two_phase.still_running() from None
            raise
    return True
