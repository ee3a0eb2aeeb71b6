"""Owners of subscriptions: what they may do, and OWNER TO (subscriptioncmds.c,
AlterSubscriptionOwner_internal).

In: a statement, the catalog, who executes it. Out: the new owner, or PostgreSQL's refusal. A node
connects to publishers and writes its tables as itself, whoever owns a subscription: so an owner who
is no superuser starts and ends what a superuser has set up, and does not choose what is written.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.catalog import Catalog, CatalogTransaction, Subscription
from penstock.commands.aclchk import (
    check_can_set_role,
    check_create_in_database,
    check_owner,
    role_of,
)
from penstock.commands.define import def_get_boolean
from penstock.commands.scope import CommandResult, CommandScope, CurrentRole
from penstock.commands.subscriptioncmds import ALTERED, get_subscription
from penstock.errors import InsufficientPrivilege
from penstock.sql import (
    AlterSubscriptionConnection,
    AlterSubscriptionEnabled,
    AlterSubscriptionOwner,
    AlterSubscriptionPublications,
    AlterSubscriptionRefresh,
    AlterSubscriptionRefreshTables,
    AlterSubscriptionSet,
    AlterSubscriptionSkip,
    CreateSubscription,
    DropSubscription,
    RenameSubscription,
    Statement,
)
from penstock.sqlstate import ProhibitedSqlStatementAttempted
from penstock.walreceiver.conninfo import ConnInfo

_OWNERS_SINCE: Final = 16
"""Before, subscriptions were the superusers' alone."""

_OF_OWNERS: Final = frozenset(
    {"synchronous_commit", "binary", "streaming", "disable_on_error", "origin"}
    | {"password_required", "run_as_owner"}
)
"""Options of SET that neither ask the publisher nor decide what tables hold."""


def check_rights(statement: Statement, catalog: Catalog, scope: CommandScope) -> None:
    """Whether the role may execute a statement about a subscription.

    Raises InsufficientPrivilege (42501), ProhibitedSqlStatementAttempted (2F003).
    """
    if scope.role.superuser:
        if isinstance(statement, AlterSubscriptionConnection):
            _check_new_password(statement.name, statement.conninfo, catalog)
        return
    match statement:
        case CreateSubscription():
            raise _no_creator(scope.version)
        case (
            AlterSubscriptionConnection(name=name)
            | AlterSubscriptionEnabled(name=name)
            | AlterSubscriptionPublications(name=name)
            | AlterSubscriptionRefresh(name=name)
            | AlterSubscriptionRefreshTables(name=name)
            | AlterSubscriptionSet(name=name)
            | AlterSubscriptionSkip(name=name)
            | DropSubscription(name=name)
            | RenameSubscription(name=name)
        ):
            with catalog.read() as transaction:
                found = transaction.subscriptions.find(name)
            if found is not None:
                _check_owner(statement, found, scope)


def _no_creator(version: int) -> InsufficientPrivilege:
    if version < _OWNERS_SINCE:
        return InsufficientPrivilege("must be superuser to create subscriptions")
    return InsufficientPrivilege(
        "permission denied to create subscription",
        detail='Only roles with privileges of the "pg_create_subscription" role may create '
        "subscriptions.",
    )


def _check_owner(statement: Statement, subscription: Subscription, scope: CommandScope) -> None:
    check_owner(scope.role, subscription.owner, "subscription", subscription.name)
    match statement:
        case RenameSubscription():
            check_create_in_database(scope)
            _check_password_required(subscription.password_required)
        case DropSubscription():
            if subscription.slot_name is not None and subscription.password_required:
                check_password(subscription.conninfo)
        case _:
            _check_password_required(subscription.password_required)
    match statement:
        case AlterSubscriptionSet(options=options):
            for option in options:
                if option.name == "password_required":
                    _check_password_required(def_get_boolean(option))
            if not {option.name for option in options} <= _OF_OWNERS:
                raise _of_superusers(subscription)
        case (
            AlterSubscriptionConnection()
            | AlterSubscriptionPublications()
            | AlterSubscriptionRefresh()
            | AlterSubscriptionRefreshTables()
        ):
            raise _of_superusers(subscription)


def _check_password_required(required: bool) -> None:
    if not required:
        raise InsufficientPrivilege(
            "password_required=false is superuser-only",
            hint="Subscriptions with the password_required option set to false may only be created "
            "or modified by the superuser.",
        )


def _of_superusers(subscription: Subscription) -> InsufficientPrivilege:
    return InsufficientPrivilege(
        f'permission denied to change what subscription "{subscription.name}" replicates',
        detail="The node writes its tables as itself, whoever owns the subscription.",
        hint="Ask a superuser.",
    )


def _check_new_password(name: str, conninfo: str, catalog: Catalog) -> None:
    """A superuser gives the connection string, but it is the owner who uses it."""
    with catalog.read() as transaction:
        subscription = transaction.subscriptions.find(name)
        if subscription is None or not subscription.password_required:
            return
        if not _owner_is_superuser(transaction, subscription):
            check_password(conninfo)


def _owner_is_superuser(transaction: CatalogTransaction, subscription: Subscription) -> bool:
    if subscription.owner is None:
        return True
    role = transaction.roles.find_oid(subscription.owner)
    return role is not None and role.superuser


def check_password(conninfo: str) -> None:
    """libpqrcv_check_conninfo, with must_use_password. Raises SqlSyntaxError, too."""
    if not ConnInfo.parse(conninfo).parameters.get("password"):
        raise ProhibitedSqlStatementAttempted(
            "password is required",
            detail="Non-superusers must provide a password in the connection string.",
        )


def alter_owner(
    statement: AlterSubscriptionOwner, catalog: Catalog, scope: CommandScope
) -> CommandResult:
    """OWNER TO. A worker that runs goes on as it was."""
    with catalog.write() as transaction:
        owner = role_of(transaction, statement.owner, scope)
        subscription = get_subscription(transaction, statement.name)
        if subscription.owner != owner.oid:
            _check_new_owner(subscription, owner, scope)
            transaction.subscriptions.save(replace(subscription, owner=owner.oid))
    return CommandResult(ALTERED)


def _check_new_owner(subscription: Subscription, owner: CurrentRole, scope: CommandScope) -> None:
    check_owner(scope.role, subscription.owner, "subscription", subscription.name)
    if scope.version < _OWNERS_SINCE:
        if not owner.superuser:
            raise InsufficientPrivilege(
                f'permission denied to change owner of subscription "{subscription.name}"',
                hint="The owner of a subscription must be a superuser.",
            )
        return
    if not scope.role.superuser:
        _check_password_required(subscription.password_required)
        check_can_set_role(scope, owner)
        check_create_in_database(scope)
