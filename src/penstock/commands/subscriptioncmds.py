"""CREATE and ALTER SUBSCRIPTION (subscriptioncmds.c); SET is in ``subscription_set``, DROP in
``drop_subscription``.

In: a parsed statement, the catalog, a way to the publisher. Out: rows in the catalog and notices. A
running node sees the change by the catalog's generation; nothing here waits for it. The publisher
is asked before the catalog is written, so that no transaction stays open over the network, and what
was made on the publisher is taken back when the catalog cannot be written.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from penstock.catalog import (
    Catalog,
    CatalogTransaction,
    Subscription,
    SubscriptionRelState,
    TwoPhaseState,
)
from penstock.catalog.publisher_identity import PublisherIdentity, alter, check_identity
from penstock.commands.copied_again import notices_of_returned, take_in_again
from penstock.commands.scope import (
    CommandResult,
    CommandScope,
    PublisherFactory,
    PublisherSession,
    notice,
    warning,
)
from penstock.commands.subscription_options import (
    CREATE,
    KEPT,
    REFRESH,
    SubscriptionOptions,
    different_origin,
    parse_subscription_options,
    without_effect,
    without_identity,
)
from penstock.commands.subscription_targets import (
    between_batches,
    check_targets,
    check_whole_batches,
)
from penstock.commands.two_phase import check_copy, first_state
from penstock.errors import (
    ConnectionFailure,
    DuplicateObject,
    NotInPrerequisiteState,
    ObjectInUse,
    PenstockError,
)
from penstock.lakehouse.cuts import CutOwner, Cuts
from penstock.protocol.answers import Notice
from penstock.relation import TableName
from penstock.sql import (
    AlterSubscriptionConnection,
    AlterSubscriptionEnabled,
    AlterSubscriptionRefresh,
    CreateSubscription,
)
from penstock.sql.text.quoting import quote_identifier
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.publications import missing_publications_message

logger = logging.getLogger(__name__)

CONNECT_PREFIX: Final = "could not connect to the publisher: "
"""How walreceiver's message begins; libpq's own words follow."""

ALTERED: Final = "ALTER SUBSCRIPTION"
"""The command tag."""
_ENABLE: Final = "ENABLE"
_REFRESH: Final = "REFRESH PUBLICATION"


def create_subscription(
    statement: CreateSubscription, catalog: Catalog, connect: PublisherFactory, scope: CommandScope
) -> CommandResult:
    """CreateSubscription. Nothing is left behind on either side when it raises.

    Cuts of a dropped subscription stay readable until there is another one of its name.
    """
    options = parse_subscription_options(statement.options, CREATE)
    if options.create_slot:
        scope.prevent_in_block("CREATE SUBSCRIPTION ... WITH (create_slot = true)")
    if "slot_name" not in options.specified:
        options.slot_name = statement.name
    if "unsent_changes" not in options.specified:
        options.unsent_changes = scope.unsent_changes
    with catalog.read() as transaction:
        if transaction.subscriptions.find(statement.name) is not None:
            raise DuplicateObject(f'subscription "{statement.name}" already exists')
    ConnInfo.parse(statement.conninfo)
    check_publications_once(statement.publications)
    notices = list(without_effect(options))
    if not options.connect:
        _insert(statement, catalog, scope, options, {}, None)
        notices.append(
            warning(
                "subscription was created, but is not connected",
                hint="To initiate replication, you must manually create the replication slot, "
                "enable the subscription, and refresh the subscription.",
            )
        )
        return CommandResult("CREATE SUBSCRIPTION", tuple(notices))
    with open_session(connect, statement.name, statement.conninfo) as publisher:
        identity = _identity(publisher)
        missing = publisher.missing_publications(statement.publications)
        if missing:
            notices.append(warning(missing_publications_message(missing), sqlstate="42704"))
        if options.copy_data and options.origin.lower() == "none":
            mixed = publisher.publications_of_different_origin(statement.publications)
            notices += different_origin(statement.name, mixed)
        tables = publisher.tables(statement.publications)
        with catalog.read() as transaction:
            check_targets(transaction, tables)
        notices += without_identity(
            publisher.tables_without_replica_identity(statement.publications)
        )
        two_phase = first_state(options, has_tables=bool(tables)) is TwoPhaseState.ENABLED
        with _new_slot(publisher, options, two_phase=two_phase) as created:
            notices += created
            _insert(statement, catalog, scope, options, tables, identity)
    return CommandResult("CREATE SUBSCRIPTION", tuple(notices))


def alter_enabled(statement: AlterSubscriptionEnabled, catalog: Catalog) -> CommandResult:
    """ENABLE and DISABLE; both forget the recorded error."""
    with catalog.write() as transaction:
        subscription = get_subscription(transaction, statement.name)
        if statement.enabled and subscription.slot_name is None:
            raise NotInPrerequisiteState(
                "cannot enable subscription that does not have a slot name",
                hint=f"Give it one: {alter(subscription.name)} SET (slot_name = '...').",
            )
        save_healed(transaction, replace(subscription, enabled=statement.enabled))
    return CommandResult(ALTERED)


def alter_connection(statement: AlterSubscriptionConnection, catalog: Catalog) -> CommandResult:
    """CONNECTION; a worker that runs starts again with the new one."""
    with catalog.write() as transaction:
        subscription = get_subscription(transaction, statement.name)
        ConnInfo.parse(statement.conninfo)
        save_healed(transaction, replace(subscription, conninfo=statement.conninfo))
    return CommandResult(ALTERED)


def alter_refresh(
    statement: AlterSubscriptionRefresh,
    catalog: Catalog,
    connect: PublisherFactory,
    scope: CommandScope,
) -> CommandResult:
    """REFRESH PUBLICATION: add tables that are new, remove those that are gone, and copy those
    again whose name belongs to another relation now, that are parked, or have stopped it.

    Raises ObjectInUse when the subscription was changed while the publisher was asked."""
    with catalog.read() as transaction:
        subscription = get_subscription(transaction, statement.name)
    check_enabled(subscription, "REFRESH")
    options = parse_subscription_options(statement.options, REFRESH)
    check_copy(subscription, options, "REFRESH")
    scope.prevent_in_block("ALTER SUBSCRIPTION ... REFRESH")
    found = ask_published(subscription, connect, besides=besides(catalog, subscription, options))

    def refreshed() -> list[Notice]:
        with catalog.write() as transaction:
            now = check_unchanged(transaction, subscription, found)
            check_whole_batches(transaction, scope, now)
            return take_in(transaction, now, found, options)

    return CommandResult(ALTERED, tuple(between_batches(refreshed)))


def take_in(
    transaction: CatalogTransaction,
    subscription: Subscription,
    found: PublisherTables,
    options: SubscriptionOptions,
) -> list[Notice]:
    """AlterSubscription_refresh: the subscription's tables become those that were found."""
    known = {rel.table_name: rel for rel in transaction.relations.all(subscription.oid)}
    new = {table: oid for table, oid in found.tables.items() if table not in known}
    check_targets(transaction, found.tables)
    added = transaction.relations.add(subscription.oid, new, _first_state(options))
    for table in known.keys() - set(found.tables):
        transaction.relations.remove(known[table])
    kept = [(known[table], oid) for table, oid in found.tables.items() if table in known]
    notices = notices_of_returned(added)
    notices += take_in_again(transaction, subscription, kept, options)
    if "copy_target" in options.specified:
        transaction.relations.set_copy_target(subscription.oid, options.copy_target)
    unwarned = [table for table in found.without_identity if table in new]
    notices += different_origin(subscription.name, found.different_origin)
    return [*notices, *without_identity(unwarned)]


def besides(
    catalog: Catalog, subscription: Subscription, options: SubscriptionOptions
) -> Sequence[TableName] | None:
    """Tables of the subscription, which are not copied by a refresh; None where it matters not
    what has another origin."""
    if not (options.copy_data and subscription.own_changes_only):
        return None
    with catalog.read() as transaction:
        return [rel.table_name for rel in transaction.relations.all(subscription.oid)]


def check_enabled(subscription: Subscription, form: str) -> None:
    """Raises NotInPrerequisiteState. ``form``: of ALTER SUBSCRIPTION."""
    # What an error has disabled may need it before it can go on.
    if not subscription.enabled and not subscription.stopped:
        raise NotInPrerequisiteState(
            f"ALTER SUBSCRIPTION ... {form} is not allowed for disabled subscriptions",
            hint=f"Enable it first: {alter(subscription.name)} ENABLE.",
        )


@dataclass(frozen=True, slots=True)
class PublisherTables:
    """What a publisher has for a subscription: tables with their OIDs, those without a replica
    identity, and who it is."""

    identity: PublisherIdentity
    tables: Mapping[TableName, int]
    without_identity: Sequence[TableName]
    missing: Sequence[str] = ()
    """Publications that were looked for and are not there."""
    different_origin: Sequence[str] = ()
    """Publications with new tables that the publisher subscribes to."""


def ask_published(
    subscription: Subscription,
    connect: PublisherFactory,
    look_for: Sequence[str] = (),
    besides: Sequence[TableName] | None = None,
) -> PublisherTables:
    """Ask the publisher that a subscription follows; for different origins unless ``besides`` is
    None. Raises StateMismatch for another one."""
    try:
        with open_session(connect, subscription.name, subscription.conninfo) as publisher:
            identity = _identity(publisher)
            check_identity(subscription.name, subscription.publisher, identity)
            names = subscription.publications
            return PublisherTables(
                identity,
                publisher.tables(names),
                publisher.tables_without_replica_identity(names),
                publisher.missing_publications(look_for) if look_for else (),
                ()
                if besides is None
                else publisher.publications_of_different_origin(names, besides),
            )
    except PenstockError as error:
        if error.alter == _ENABLE:  # what makes a worker try again does not say this again
            error = error.changed(alter=_REFRESH)
        raise error.with_statement(alter(subscription.name)) from None


def _insert(
    statement: CreateSubscription,
    catalog: Catalog,
    scope: CommandScope,
    options: SubscriptionOptions,
    tables: Mapping[TableName, int],
    publisher: PublisherIdentity | None,
) -> None:
    """The last step: the cuts of a dropped one go with it, or nothing does."""
    cuts = None if scope.warehouse is None else scope.warehouse.cuts
    with catalog.write() as transaction:
        others = transaction.subscriptions.all()
        subscription = transaction.subscriptions.create(
            statement.name,
            conninfo=statement.conninfo,
            publications=statement.publications,
            slot_name=options.slot_name,
            enabled=options.enabled,
            two_phase_state=first_state(options, has_tables=bool(tables)),
            **{name: getattr(options, name) for name in KEPT},
            owner=scope.role.oid,
        )
        # Tables and slot are of this one: a worker that is led elsewhere stops.
        transaction.subscriptions.save(replace(subscription, publisher=publisher))
        transaction.relations.add(subscription.oid, tables, _first_state(options))
        if cuts is not None:
            living = [CutOwner(known.name, known.app_id) for known in others]
            owner = CutOwner(subscription.name, subscription.app_id)
            scope.before_commit(partial(_take_over, cuts, owner, living))


def _take_over(cuts: Cuts, owner: CutOwner, living: Sequence[CutOwner]) -> None:
    cuts.adopt(living)
    cuts.forget_others(owner, living)


def _first_state(options: SubscriptionOptions) -> SubscriptionRelState:
    return SubscriptionRelState.INIT if options.copy_data else SubscriptionRelState.READY


@contextmanager
def open_session(connect: PublisherFactory, name: str, conninfo: str) -> Iterator[PublisherSession]:
    """A session on the publisher under the subscription's name."""
    try:
        publisher = connect(conninfo, name)
    except ConnectionFailure as error:
        raise error.changed(message=f'subscription "{name}" {error.message}') from None
    with closing(publisher):
        yield publisher


def _identity(publisher: PublisherSession) -> PublisherIdentity:
    system = publisher.identify_system()
    database_oid, _ = publisher.database()
    return PublisherIdentity(system.system_id, system.timeline, database_oid)


@contextmanager
def _new_slot(
    publisher: PublisherSession, options: SubscriptionOptions, *, two_phase: bool
) -> Iterator[list[Notice]]:
    """Create the slot where it is wanted; drop it again when what follows fails. One that is there
    stays as it is, as with PostgreSQL."""
    name = options.slot_name
    if name is None or not options.create_slot:
        yield []
        return
    publisher.create_slot(name, two_phase=two_phase, failover=options.failover)
    try:
        yield [notice(f'created replication slot "{name}" on publisher')]
    except BaseException:
        try:
            publisher.drop_slot(name, missing_ok=True)
        except PenstockError as error:
            logger.warning("replication slot %s is left on the publisher: %s", name, error.message)
        raise


def get_subscription(transaction: CatalogTransaction, name: str) -> Subscription:
    """Raises UndefinedObject, and ObjectInUse for one that is being dropped."""
    subscription = transaction.subscriptions.get(name)
    if subscription.dropping:
        raise ObjectInUse(
            f'subscription "{name}" is being dropped',
            hint=f"If that was interrupted, finish it: DROP SUBSCRIPTION {quote_identifier(name)}.",
        )
    return subscription


def check_unchanged(
    transaction: CatalogTransaction, asked_for: Subscription, found: PublisherTables
) -> Subscription:
    """The subscription, for which a publisher was asked; PostgreSQL locks it meanwhile. Raises
    ObjectInUse, and StateMismatch where it follows another publisher by now."""
    now = transaction.subscriptions.find_oid(asked_for.oid)
    if now is None or now != asked_for or now.dropping:
        raise ObjectInUse(
            f'subscription "{asked_for.name}" was changed while its publisher was asked',
            hint="Run the statement again.",
        )
    check_identity(now.name, now.publisher, found.identity)
    return now


def save_healed(transaction: CatalogTransaction, subscription: Subscription) -> None:
    """Write it back without the recorded error, so that a node tries again."""
    transaction.subscriptions.save(subscription.healed())


def check_publications_once(names: Sequence[str]) -> None:
    """Raises DuplicateObject."""
    for position, name in enumerate(names):
        if name in names[:position]:
            raise DuplicateObject(f'publication name "{name}" used more than once')
