"""Two-phase commit in the statements of subscriptions (subscriptioncmds.c).

In: options as parsed, the subscription. Out: the state to store, PostgreSQL's errors, the slot
changed on the publisher. When a pending state becomes an enabled one is the worker's business.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from penstock.catalog import CatalogTransaction, Subscription, TwoPhaseState
from penstock.commands.scope import PublisherFactory
from penstock.commands.subscription_options import SubscriptionOptions
from penstock.errors import NotInPrerequisiteState, PenstockError, SqlSyntaxError

_OPTION: Final = "two_phase"


def first_state(options: SubscriptionOptions, *, has_tables: bool) -> TwoPhaseState:
    """Of a new subscription. Enabled at once where nothing is to be copied, and its slot is made
    so."""
    if not options.two_phase:
        return TwoPhaseState.DISABLED
    at_once = options.connect and options.create_slot and not options.copy_data and has_tables
    return TwoPhaseState.ENABLED if at_once else TwoPhaseState.PENDING


def check_copy(subscription: Subscription, options: SubscriptionOptions, form: str) -> None:
    """What was prepared before a table is copied is in neither the copy nor the stream. ``form``:
    the statement's beginning. Raises NotInPrerequisiteState."""
    if subscription.two_phase_state is not TwoPhaseState.ENABLED or not options.copy_data:
        return
    if form == "REFRESH":
        raise NotInPrerequisiteState(
            "ALTER SUBSCRIPTION ... REFRESH with copy_data is not allowed when two_phase is "
            "enabled",
            hint="Use ALTER SUBSCRIPTION ... REFRESH with copy_data = false, or use DROP/CREATE "
            "SUBSCRIPTION.",
        )
    raise NotInPrerequisiteState(
        "ALTER SUBSCRIPTION with refresh and copy_data is not allowed when two_phase is enabled",
        hint=f"Use ALTER SUBSCRIPTION ... {form} PUBLICATION with refresh = false, or with "
        "copy_data = false, or use DROP/CREATE SUBSCRIPTION.",
    )


def check_copy_of_table(subscription: Subscription) -> None:
    """As ``check_copy``, of a table that is to be copied again. Raises NotInPrerequisiteState."""
    if subscription.two_phase_state is TwoPhaseState.ENABLED:
        raise NotInPrerequisiteState(
            "ALTER SUBSCRIPTION ... REFRESH TABLE is not allowed when two_phase is enabled",
            hint="Disable the subscription, SET (two_phase = false), enable it, and refresh the "
            "table; then two_phase can be set again in the same way.",
        )


def check_alter(
    transaction: CatalogTransaction, subscription: Subscription, options: SubscriptionOptions
) -> TwoPhaseState:
    """SET (two_phase = ...): the new state. Raises SqlSyntaxError, NotInPrerequisiteState."""
    if "slot_name" in options.specified and not options.two_phase:
        raise SqlSyntaxError('"slot_name" and "two_phase" cannot be altered at the same time')
    if subscription.enabled:  # CheckAlterSubOption
        raise NotInPrerequisiteState(f'cannot set option "{_OPTION}" for enabled subscription')
    if subscription.slot_name is None and not options.two_phase:
        raise NotInPrerequisiteState(
            f'cannot set option "{_OPTION}" for a subscription that does not have a slot name'
        )
    if options.two_phase:
        already = subscription.two_phase_state is not TwoPhaseState.DISABLED
        return subscription.two_phase_state if already else TwoPhaseState.PENDING
    if transaction.prepared_xacts.all(subscription.oid):
        raise NotInPrerequisiteState(
            'cannot disable "two_phase" when prepared transactions exist',
            hint="Resolve these transactions and try again.",
        )
    return TwoPhaseState.DISABLED


def alter_slot(subscription: Subscription, connect: PublisherFactory) -> None:
    """Tell the publisher that the slot has two-phase commit no more. Raises PublisherError: a
    worker still uses it (55006), or the publisher is older than 18."""
    if subscription.two_phase_state is TwoPhaseState.DISABLED or subscription.slot_name is None:
        return
    with closing(connect(subscription.conninfo, subscription.name)) as publisher:
        try:
            publisher.alter_slot(subscription.slot_name, two_phase=False)
        except PenstockError as error:
            if error.sqlstate != "55006":
                raise
            raise NotInPrerequisiteState(
                'cannot alter "two_phase" when logical replication worker is still running',
                hint="Try again after some time.",
            ) from None
