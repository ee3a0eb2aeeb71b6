"""Two-phase commit in the statements of subscriptions (subscriptioncmds.c).

In: options as parsed, the subscription. Out: the state to store, PostgreSQL's errors. The worker
decides when a pending state becomes an enabled one.
"""

from __future__ import annotations

from typing import Final

from penstock.catalog import CatalogTransaction, Subscription, TwoPhaseState
from penstock.commands.subscription_options import SubOpts
from penstock.errors import NotInPrerequisiteState, SqlSyntaxError

_OPTION: Final = "two_phase"


def first_state(options: SubOpts, *, has_tables: bool) -> TwoPhaseState:
    """Return the state of a new subscription. It is enabled at once if its slot is made with
    two-phase commit, as nothing has to be copied."""
    if not options.two_phase:
        return TwoPhaseState.DISABLED
    at_once = options.connect and options.create_slot and not options.copy_data and has_tables
    return TwoPhaseState.ENABLED if at_once else TwoPhaseState.PENDING


def check_copy(subscription: Subscription, options: SubOpts, form: str) -> None:
    """Refuse to copy tables when two_phase is enabled: a transaction that was prepared before a
    table is copied is in neither the copy nor the stream. ``form``: the statement's beginning.
    Raises NotInPrerequisiteState."""
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
    """Refuse to copy a table again when two_phase is enabled, for the reason that ``check_copy``
    gives. Raises NotInPrerequisiteState."""
    if subscription.two_phase_state is TwoPhaseState.ENABLED:
        raise NotInPrerequisiteState(
            "ALTER SUBSCRIPTION ... REFRESH TABLE is not allowed when two_phase is enabled",
            hint="Disable the subscription, SET (two_phase = false), enable it, and refresh the "
            "table; then two_phase can be set again in the same way.",
        )


def check_alter_sub_option(subscription: Subscription, name: str, *, alters_slot: bool) -> None:
    """Check that an option which the slot has, too, may be set (CheckAlterSubOption). Raises
    NotInPrerequisiteState."""
    if subscription.enabled:
        raise NotInPrerequisiteState(f'cannot set option "{name}" for enabled subscription')
    if alters_slot and subscription.slot_name is None:
        raise NotInPrerequisiteState(
            f'cannot set option "{name}" for a subscription that does not have a slot name'
        )


def check_alter(
    transaction: CatalogTransaction, subscription: Subscription, options: SubOpts
) -> TwoPhaseState:
    """Return the new state after SET (two_phase = ...). Raises SqlSyntaxError,
    NotInPrerequisiteState."""
    if "slot_name" in options.specified and not options.two_phase:
        raise SqlSyntaxError('"slot_name" and "two_phase" cannot be altered at the same time')
    check_alter_sub_option(subscription, _OPTION, alters_slot=not options.two_phase)
    if options.two_phase:
        already = subscription.two_phase_state is not TwoPhaseState.DISABLED
        return subscription.two_phase_state if already else TwoPhaseState.PENDING
    if transaction.prepared_xacts.all(subscription.oid):
        raise NotInPrerequisiteState(
            'cannot disable "two_phase" when prepared transactions exist',
            hint="Resolve these transactions and try again.",
        )
    return TwoPhaseState.DISABLED


def ends(subscription: Subscription, options: SubOpts) -> bool:
    """Tell whether the statement ends two-phase commit of the slot, so that the publisher must be
    asked."""
    had = subscription.two_phase_state is not TwoPhaseState.DISABLED
    return had and _OPTION in options.specified and not options.two_phase


def still_running() -> NotInPrerequisiteState:
    """Return the error for a slot that the worker of a disabled subscription still uses (55006)."""
    return NotInPrerequisiteState(
        'cannot alter "two_phase" when logical replication worker is still running',
        hint="Try again after some time.",
    )
