"""CREATE, ALTER and DROP SUBSCRIPTION (subscriptioncmds.c).

In: a parsed statement, the catalog, a way to the publisher. Out: rows in the catalog and notices. A
running node sees the change by the catalog's generation. The publisher is asked before the catalog
is written, so that no transaction stays open over the network; if the catalog cannot be written,
the slot that was made on the publisher is dropped again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from penstock.catalog import (
    Catalog,
    CatalogTransaction,
    PreparedXact,
    Subscription,
    SubscriptionRel,
    SubscriptionRelState,
    TwoPhaseState,
)
from penstock.catalog.publisher_identity import (
    PublisherIdentity,
    PublisherUpgrade,
    alter,
    check_identity,
    copy_anew,
)
from penstock.commands import two_phase
from penstock.commands.aclchk import (
    check_can_set_role,
    check_create_in_database,
    check_owner,
    role_of,
)
from penstock.commands.define import def_get_boolean
from penstock.commands.recopy import copy_again, notices_of_returned
from penstock.commands.scope import (
    CommandResult,
    CommandScope,
    CurrentRole,
    PublisherFactory,
    PublisherSession,
    notice,
    warning,
)
from penstock.commands.subscription_options import (
    CREATE,
    KEPT,
    REFRESH,
    SET,
    SET_PUBLICATION,
    SKIP,
    SYSTEM_IDENTIFIER,
    SubOpts,
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
    InsufficientPrivilege,
    InvalidParameterValue,
    NotInPrerequisiteState,
    ObjectInUse,
    PenstockError,
    StateMismatch,
    UndefinedObject,
)
from penstock.identifiers import simple_quote_literal
from penstock.lakehouse.cuts import Cut, CutOwner, Cuts
from penstock.lakehouse.table_layout import NewTableLayouts
from penstock.lsn import INVALID, Lsn
from penstock.protocol.answers import Notice
from penstock.relation import TableName
from penstock.sql import (
    AlterSubscriptionConnection,
    AlterSubscriptionEnabled,
    AlterSubscriptionOwner,
    AlterSubscriptionRefresh,
    AlterSubscriptionRefreshTables,
    AlterSubscriptionSet,
    AlterSubscriptionSkip,
    CreateSubscription,
    DropSubscription,
    RenameSubscription,
    Statement,
)
from penstock.sql.grammar.subscription import AlterSubscriptionPublications
from penstock.sql.text.quoting import quote_identifier
from penstock.sqlstate import InvalidObjectDefinition, ProhibitedSqlStatementAttempted
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.publications import missing_publications_message
from penstock.walreceiver.publisher import SystemIdentity
from penstock.walreceiver.slots import RemoteSlot

logger = logging.getLogger(__name__)

CONNECT_PREFIX: Final = "could not connect to the publisher: "
"""The beginning of walreceiver's message; libpq's own words follow."""

ALTERED: Final = "ALTER SUBSCRIPTION"
"""The command tag."""
_ENABLE: Final = "ENABLE"
_REFRESH: Final = "REFRESH PUBLICATION"


def create_subscription(
    statement: CreateSubscription, catalog: Catalog, connect: PublisherFactory, scope: CommandScope
) -> CommandResult:
    """Run CREATE SUBSCRIPTION (CreateSubscription). If it raises, nothing is left behind on either
    side.

    Cuts of a dropped subscription stay readable until there is another one of its name.
    """
    options = parse_subscription_options(statement.options, CREATE)
    if options.create_slot:
        scope.prevent_in_block("CREATE SUBSCRIPTION ... WITH (create_slot = true)")
    if "slot_name" not in options.specified:
        options = replace(options, slot_name=statement.name)
    if "unsent_changes" not in options.specified:
        options = replace(options, unsent_changes=scope.unsent_changes)
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
    """Run ENABLE or DISABLE; both forget the recorded error."""
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
    """Run CONNECTION; a running worker starts again with the new one."""
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
    """Run REFRESH PUBLICATION: add tables that are new, remove those that are gone, and copy again
    those whose name belongs to another relation now, that are parked, or that have stopped the
    subscription.

    Raises ObjectInUse if the subscription was changed while the publisher was asked."""
    with catalog.read() as transaction:
        subscription = get_subscription(transaction, statement.name)
    check_enabled(subscription, "REFRESH")
    options = parse_subscription_options(statement.options, REFRESH)
    check_copy(subscription, options, "REFRESH")
    scope.prevent_in_block("ALTER SUBSCRIPTION ... REFRESH")
    found = ask_published(
        subscription, connect, besides=already_copied(catalog, subscription, options)
    )

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
    options: SubOpts,
) -> list[Notice]:
    """Make the tables that were found the subscription's tables (AlterSubscription_refresh). Return
    notices."""
    known = {rel.table_name: rel for rel in transaction.relations.all(subscription.oid)}
    new = {table: oid for table, oid in found.tables.items() if table not in known}
    check_targets(transaction, found.tables)
    added = transaction.relations.add(subscription.oid, new, _first_state(options))
    for table in known.keys() - set(found.tables):
        transaction.relations.remove(known[table])
    kept = [(known[table], oid) for table, oid in found.tables.items() if table in known]
    notices = notices_of_returned(added)
    notices += copy_again(transaction, subscription, kept, options)
    if "copy_target" in options.specified:
        transaction.relations.set_copy_target(subscription.oid, options.copy_target)
    unwarned = [table for table in found.without_identity if table in new]
    notices += different_origin(subscription.name, found.different_origin)
    return [*notices, *without_identity(unwarned)]


def already_copied(
    catalog: Catalog, subscription: Subscription, options: SubOpts
) -> Sequence[TableName] | None:
    """Return the subscription's tables, which a refresh does not copy; None if origins need no
    check."""
    if not (options.copy_data and subscription.own_changes_only):
        return None
    with catalog.read() as transaction:
        return [rel.table_name for rel in transaction.relations.all(subscription.oid)]


def check_enabled(subscription: Subscription, form: str) -> None:
    """Raise NotInPrerequisiteState for a disabled subscription. ``form``: of ALTER SUBSCRIPTION."""
    # A subscription that an error has disabled may need this command before it can go on.
    if not subscription.enabled and not subscription.stopped:
        raise NotInPrerequisiteState(
            f"ALTER SUBSCRIPTION ... {form} is not allowed for disabled subscriptions",
            hint=f"Enable it first: {alter(subscription.name)} ENABLE.",
        )


@dataclass(frozen=True, slots=True)
class PublisherTables:
    """The publisher's answers for a subscription: its identity, the tables with their OIDs, and
    those without a replica identity."""

    identity: PublisherIdentity
    tables: Mapping[TableName, int]
    without_identity: Sequence[TableName]
    missing: Sequence[str] = ()
    """The publications that were looked for and are not there."""
    different_origin: Sequence[str] = ()
    """The publications with new tables that the publisher subscribes to."""


def ask_published(
    subscription: Subscription,
    connect: PublisherFactory,
    look_for: Sequence[str] = (),
    besides: Sequence[TableName] | None = None,
) -> PublisherTables:
    """Ask the publisher that a subscription follows, also for different origins unless ``besides``
    is None. Raises StateMismatch for another publisher."""
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
        if error.alter == _ENABLE:  # ENABLE is the remedy for a worker; here it is REFRESH
            error = error.changed(alter=_REFRESH)
        raise error.with_statement(alter(subscription.name)) from None


def _insert(
    statement: CreateSubscription,
    catalog: Catalog,
    scope: CommandScope,
    options: SubOpts,
    tables: Mapping[TableName, int],
    publisher: PublisherIdentity | None,
) -> None:
    """Write the subscription's rows, and take over the cuts of a dropped one of its name, as the
    last step: either all happens or nothing."""
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
        # The tables and the slot are this publisher's: a worker that is led to another one stops.
        transaction.subscriptions.save(replace(subscription, publisher=publisher))
        transaction.relations.add(subscription.oid, tables, _first_state(options))
        if cuts is not None:
            living = [CutOwner(known.name, known.app_id) for known in others]
            owner = CutOwner(subscription.name, subscription.app_id)
            scope.before_commit(partial(_take_over, cuts, owner, living))


def _take_over(cuts: Cuts, owner: CutOwner, living: Sequence[CutOwner]) -> None:
    cuts.adopt(living)
    cuts.forget_others(owner, living)


def _first_state(options: SubOpts) -> SubscriptionRelState:
    return SubscriptionRelState.INIT if options.copy_data else SubscriptionRelState.READY


@contextmanager
def open_session(connect: PublisherFactory, name: str, conninfo: str) -> Iterator[PublisherSession]:
    """Open a session on the publisher under the subscription's name."""
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
    publisher: PublisherSession, options: SubOpts, *, two_phase: bool
) -> Iterator[list[Notice]]:
    """Create the slot if it is wanted, and drop it again if the block fails. A slot that was there
    before stays as it is, as with PostgreSQL."""
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
    """Return a subscription. Raises UndefinedObject, and ObjectInUse for one that is being
    dropped."""
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
    """Return the subscription again after its publisher was asked; PostgreSQL locks it meanwhile.
    Raises ObjectInUse if it was changed, and StateMismatch if it follows another publisher now."""
    now = transaction.subscriptions.find_oid(asked_for.oid)
    if now is None or now != asked_for or now.dropping:
        raise ObjectInUse(
            f'subscription "{asked_for.name}" was changed while its publisher was asked',
            hint="Run the statement again.",
        )
    check_identity(now.name, now.publisher, found.identity)
    return now


def save_healed(transaction: CatalogTransaction, subscription: Subscription) -> None:
    """Save a subscription without the recorded error, so that a node tries again."""
    transaction.subscriptions.save(subscription.healed())


def check_publications_once(names: Sequence[str]) -> None:
    """Raise DuplicateObject if a publication is named twice."""
    for position, name in enumerate(names):
        if name in names[:position]:
            raise DuplicateObject(f'publication name "{name}" used more than once')


# ALTER SUBSCRIPTION ... SKIP (AlterSubscription, ALTER_SUBSCRIPTION_SKIP).
#
# In: the statement, and the catalog. Out: a changed catalog, which the worker reads before each
# batch; ``subscription.apply_error`` decides what is skipped, and when that is over. A prepared
# transaction is named by the LSN of its PREPARE, whether that has come already
# (``subscription.prepared``) or not. Once it is committed at the publisher, it is named by its
# COMMIT PREPARED, like other transactions by their commit.


def alter_skip(
    statement: AlterSubscriptionSkip, catalog: Catalog, scope: CommandScope
) -> CommandResult:
    """Run SKIP (...); a subscription that an error has stopped goes on."""
    with catalog.read() as transaction:
        subscription = get_subscription(transaction, statement.name)
    lsn = parse_subscription_options(statement.options, SKIP).lsn
    reached = INVALID
    if lsn != INVALID and scope.warehouse is not None:
        cut = scope.warehouse.cuts.last(CutOwner(subscription.name, subscription.app_id))
        reached = INVALID if cut is None else cut.lsn
    with catalog.write() as transaction:
        subscription = get_subscription(transaction, statement.name)
        prepared = None if lsn == INVALID else _prepared(transaction, subscription.oid, lsn)
        if prepared is not None and (prepared.finish_lsn or reached + 1) > reached:
            lsn = _skip_prepared(transaction, prepared)
        elif lsn != INVALID and lsn < reached:
            raise InvalidParameterValue(
                f"skip WAL location (LSN {lsn}) must be greater than origin LSN {reached}"
            )
        transaction.subscriptions.save(replace(subscription, skip_lsn=lsn).healed())
    return CommandResult(ALTERED)


def _prepared(transaction: CatalogTransaction, subid: int, lsn: Lsn) -> PreparedXact | None:
    """Return the prepared transaction whose PREPARE ends there, if it has come."""
    xacts = transaction.prepared_xacts.all(subid)
    return next((xact for xact in xacts if xact.prepare_lsn == lsn), None)


def _skip_prepared(transaction: CatalogTransaction, xact: PreparedXact) -> Lsn:
    """Skip a prepared transaction, and return the LSN that must still be skipped. The rows of one
    that waits for its end are left out from now on, so that nothing more must be skipped. Some
    tables may already have the rows of a committed one, which is skipped by its commit."""
    if xact.commit_lsn is not None and not xact.skipped:
        return xact.commit_lsn
    transaction.prepared_xacts.put(replace(xact, skipped=True))
    return INVALID


# ALTER SUBSCRIPTION ... SET (options) (subscriptioncmds.c, AlterSubscription).
#
# In: a parsed statement, the catalog, a way to the publisher. Out: the subscription's changed row,
# and its changed slot if the slot has the option, too. As in PostgreSQL the slot is changed first,
# so that the row never promises what the slot lacks. A running node sees the change by the
# catalog's generation.


def alter_options(
    statement: AlterSubscriptionSet,
    catalog: Catalog,
    connect: PublisherFactory,
    scope: CommandScope,
) -> CommandResult:
    """Run SET (...). Raises SqlSyntaxError, NotInPrerequisiteState, ObjectInUse, StateMismatch, and
    the publisher's errors about its slot."""
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
            altered, notices = follow(
                *(transaction, altered, options.system_identifier, server),
                _last_cut_lsn(subscription, scope),
            )
        save_healed(transaction, altered)
    return CommandResult(ALTERED, (*without_effect(options), *notices))


def _asked_for(subscription: Subscription) -> tuple[object, ...]:
    """Return the fields that the publisher's answers depend on."""
    return subscription.oid, subscription.slot_name, subscription.conninfo


def _ask_upgraded(
    subscription: Subscription, options: SubOpts, connect: PublisherFactory
) -> UpgradedPublisher | None:
    """Ask the server if SET (system_identifier) says that pg_upgrade has moved the publisher; else
    return None."""
    if SYSTEM_IDENTIFIER not in options.specified:
        return None
    check_slot_name(subscription)
    with open_session(connect, subscription.name, subscription.conninfo) as publisher:
        return UpgradedPublisher.ask(subscription, publisher)


def _last_cut_lsn(subscription: Subscription, scope: CommandScope) -> Lsn | None:
    if scope.warehouse is None:
        return None
    cut = scope.warehouse.cuts.last(CutOwner(subscription.name, subscription.app_id))
    return None if cut is None else cut.lsn


def _check_block(options: SubOpts, scope: CommandScope) -> None:
    """Refuse options in a block that the slot has, too (CheckAlterSubOption)."""
    if "two_phase" in options.specified and not options.two_phase:
        scope.prevent_in_block("ALTER SUBSCRIPTION ... SET (two_phase)")
    if "failover" in options.specified:
        scope.prevent_in_block("ALTER SUBSCRIPTION ... SET (failover)")


def _altered(
    transaction: CatalogTransaction, subscription: Subscription, options: SubOpts
) -> Subscription:
    """Return the subscription with the options that were written, after PostgreSQL's checks in its
    order."""
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
    altered = replace(altered, **options.kept)
    NewTableLayouts.of(altered.partition_by, altered.cluster_by)
    return altered


def _alter_slot(subscription: Subscription, options: SubOpts, connect: PublisherFactory) -> bool:
    """Change the slot if an option is the slot's, too, and return whether the publisher was asked
    to. Like PostgreSQL, do so even if the slot has the value already."""
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


# ALTER SUBSCRIPTION ... SET (system_identifier): the publisher was moved by pg_upgrade.
#
# In: the subscription, its tables and its last cut, a session on the server that the connection
# string leads to. Out: the row with another publisher, or an error that says why that server cannot
# be what pg_upgrade has made of the publisher. pg_upgrade refuses a server whose logical slots have
# not sent all changes, keeps OIDs of databases and tables, and makes each slot again where the new
# cluster's WAL begins, beyond the old one's. So the cuts hold every change of the old cluster, and
# the stream goes on at the new slot.
#
# PostgreSQL: check_old_cluster_for_valid_slots (pg_upgrade/check.c),
# create_logical_replication_slots


@dataclass(frozen=True, slots=True)
class UpgradedPublisher:
    """The answers of a server. ``slot``: the subscription's; ``missing``: publications that the
    server lacks; ``tables``: published ones with their OIDs."""

    system: SystemIdentity
    database_oid: int
    in_recovery: bool
    slot: RemoteSlot | None
    missing: tuple[str, ...]
    tables: Mapping[TableName, int]

    @classmethod
    def ask(cls, subscription: Subscription, publisher: PublisherSession) -> UpgradedPublisher:
        """Ask the server. Raises PublisherError, ConnectionFailure."""
        slot, names = subscription.slot_name, subscription.publications
        found = None if slot is None else publisher.slot_state(slot)
        system, (database_oid, in_recovery) = publisher.identify_system(), publisher.database()
        missing = tuple(publisher.missing_publications(names))
        there = [name for name in names if name not in missing]
        tables = publisher.tables(there) if there else {}
        return cls(system, database_oid, in_recovery, found, missing, tables)


def follow(
    transaction: CatalogTransaction,
    subscription: Subscription,
    system_id: str,
    server: UpgradedPublisher,
    last_cut: Lsn | None,
) -> tuple[Subscription, list[Notice]]:
    """Check the server and return the subscription that follows it, with notices. Raises
    StateMismatch, UndefinedObject, NotInPrerequisiteState, ObjectInUse."""
    known, name = subscription.publisher, subscription.name
    if server.system.system_id != system_id:
        raise StateMismatch(
            f'the publisher of subscription "{name}" has the system identifier '
            f"{server.system.system_id}, and not {system_id}",
            hint=f"Connect the subscription to the upgraded server first: {alter(name)} CONNECTION "
            "'...'.",
        )
    if known is None or known.system_id == system_id:
        return subscription, []
    rels = transaction.relations.all(subscription.oid)
    _check_objects(subscription, known, server, rels)
    slot = _checked_slot(subscription, server, last_cut)
    if transaction.prepared_xacts.all(subscription.oid):
        raise NotInPrerequisiteState(
            f'cannot set option "{SYSTEM_IDENTIFIER}" when prepared transactions exist',
            detail="pg_upgrade refuses a server that has some, so that the server cannot be what "
            "it has made of the publisher.",
            hint=_another(subscription),
        )
    at = slot.confirmed_flush_lsn or INVALID
    transaction.verifications.forget(subscription.oid)
    identity = PublisherIdentity(
        system_id, server.system.timeline, server.database_oid, server.in_recovery
    )
    told = notice(
        f'subscription "{name}" follows system identifier {system_id} from {at}',
        detail="penstock verify tells whether its tables are equal to the publisher's; with "
        "verify_interval each of them is compared now.",
    )
    upgraded = PublisherUpgrade(at, slot.catalog_xmin or 0)
    origin_lsn = max(subscription.origin_lsn, at)
    return replace(subscription, publisher=identity, upgraded=upgraded, origin_lsn=origin_lsn), [
        told
    ]


def _check_objects(
    subscription: Subscription,
    known: PublisherIdentity,
    server: UpgradedPublisher,
    rels: Iterable[SubscriptionRel],
) -> None:
    if known.database_oid != server.database_oid:
        raise _not_upgraded(
            subscription,
            f"The database has OID {server.database_oid} there, and {known.database_oid} at the "
            "publisher.",
        )
    if server.missing:
        raise UndefinedObject(
            f'publication "{server.missing[0]}" does not exist',
            detail="pg_upgrade keeps publications.",
            hint=f"Create it again, or {alter(subscription.name)} SET PUBLICATION ... WITH "
            f"(refresh = false) with those that there are. {_another(subscription)}",
        )
    both = [rel for rel in rels if rel.relid is not None and rel.table_name in server.tables]
    # A single table with another OID was dropped and made again; the worker reports that as always.
    if both and all(server.tables[rel.table_name] != rel.relid for rel in both):
        rel = both[0]
        raise _not_upgraded(
            subscription,
            f'Table "{rel.qualified_name}" has OID {server.tables[rel.table_name]} there, and '
            f"{rel.relid} at the publisher.",
        )


def _checked_slot(
    subscription: Subscription, server: UpgradedPublisher, last_cut: Lsn | None
) -> RemoteSlot:
    slot, name = server.slot, subscription.slot_name
    if slot is None or slot.database != server.system.database or slot.plugin != "pgoutput":
        raise UndefinedObject(
            f'replication slot "{name}" does not exist',
            detail="pg_upgrade keeps logical slots of a publisher from PostgreSQL 17 on. Without "
            "it, nothing tells what the server has sent."
            if slot is None
            else "A slot of that name has another database or output plugin.",
            hint=copy_anew(subscription.name, name),
        )
    if slot.active_pid is not None:
        raise ObjectInUse(
            f'replication slot "{name}" is active for PID {slot.active_pid}',
            detail="Somebody else reads what is this subscription's.",
            hint="End that session, and see what it has taken.",
        )
    confirmed = slot.confirmed_flush_lsn or INVALID
    if confirmed < (last_cut or INVALID):
        raise _not_upgraded(
            subscription,
            f'Replication slot "{name}" is at {confirmed} there, and what the subscription has '
            f"ends at {last_cut}: pg_upgrade makes slots again beyond all that was.",
        )
    return slot


def _not_upgraded(subscription: Subscription, detail: str) -> PenstockError:
    return StateMismatch(
        "the server is not what pg_upgrade has made of the publisher of subscription "
        f'"{subscription.name}"',
        detail=detail,
        hint=_another(subscription),
    )


def _another(subscription: Subscription) -> str:
    return (
        f"{alter(subscription.name)} CONNECTION '...' leads back to the one that it follows. "
        f"{copy_anew(subscription.name, subscription.slot_name)}"
    )


def check_slot_name(subscription: Subscription) -> None:
    """Raise NotInPrerequisiteState for a subscription without a slot name, as for options that the
    slot has, too."""
    if subscription.slot_name is None:
        raise NotInPrerequisiteState(
            f'cannot set option "{SYSTEM_IDENTIFIER}" for a subscription that does not have a slot '
            "name",
            hint=f"{alter(subscription.name)} SET (slot_name = "
            f"{simple_quote_literal(subscription.name)}), if that is its slot.",
        )


# ALTER SUBSCRIPTION ... SET, ADD and DROP PUBLICATION (subscriptioncmds.c).
#
# In: a parsed statement, the catalog, a way to the publisher. Out: the subscription's new list, and
# its tables as the publications of that list have them (REFRESH), in one transaction of the
# catalog. A running worker starts again with the new list. Before that it applies with the old list
# what has been committed until now, as a publisher looks publications up as they were at the time
# of each change. A publication that was made later is an error there; from version 18 on the
# publisher leaves the change out.

_REFRESH_HINT: Final = {
    "SET": "Use ALTER SUBSCRIPTION ... SET PUBLICATION ... WITH (refresh = false).",
    "ADD": "Use ALTER SUBSCRIPTION ... ADD PUBLICATION ... WITH (refresh = false) instead.",
    "DROP": "Use ALTER SUBSCRIPTION ... DROP PUBLICATION ... WITH (refresh = false) instead.",
}

_CUT_WITHIN_S: Final = 5.0
"""Seconds that ALTER waits for a worker: one that is far behind must not hold it up."""

_PUBLICATIONS_LOOK_S: Final = 0.05


def alter_publications(
    statement: AlterSubscriptionPublications,
    catalog: Catalog,
    connect: PublisherFactory,
    scope: CommandScope,
) -> CommandResult:
    """Run SET, ADD or DROP PUBLICATION. Raises DuplicateObject, UndefinedObject,
    InvalidParameterValue, NotInPrerequisiteState, and ObjectInUse if the subscription was changed
    while the publisher was asked, or stays in the middle of a batch."""
    options = parse_subscription_options(statement.options, SET_PUBLICATION)
    if not options.refresh and scope.block_end is not None:
        _save(statement, catalog, scope)  # ``execute_block`` waits between batches
        return CommandResult(ALTERED)
    with catalog.read() as transaction:
        subscription = get_subscription(transaction, statement.name)
    wanted = _with_publications(subscription, statement)
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
    found = ask_published(wanted, connect, checked, already_copied(catalog, subscription, options))
    notices = []
    if found.missing:
        notices.append(warning(missing_publications_message(found.missing), sqlstate="42704"))

    def taken_in() -> list[Notice]:
        with catalog.write() as transaction:
            # ``now`` has what was recorded while the publisher was asked, such as its identity.
            now = check_unchanged(transaction, subscription, found)
            check_whole_batches(transaction, scope, now)
            transaction.subscriptions.save(_with_publications(now, statement))
            return take_in(transaction, _with_publications(now, statement), found, options)

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
    """Let the worker of a subscription that will get new publications first apply everything up to
    the publisher's position of now, and nothing beyond while the block runs. Yield a warning if the
    worker has not come there in time.
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
        time.sleep(_PUBLICATIONS_LOOK_S)
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
        altered = _with_publications(subscription, statement)
        check_whole_batches(transaction, scope, subscription)
        transaction.subscriptions.save(altered)


def _with_publications(
    subscription: Subscription, statement: AlterSubscriptionPublications
) -> Subscription:
    return replace(subscription, publications=_merged(subscription, statement)).healed()


def _merged(
    subscription: Subscription, statement: AlterSubscriptionPublications
) -> tuple[str, ...]:
    """Return the list of publications after the statement (merge_publications)."""
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


# Rights of subscriptions' owners, and OWNER TO (subscriptioncmds.c,
# AlterSubscriptionOwner_internal).
#
# In: a statement, the catalog, the executing role. Out: the new owner, or PostgreSQL's refusal. A
# node connects to publishers and writes its tables as itself, whoever owns a subscription. So an
# owner who is no superuser may start and end what a superuser has set up, but not choose what is
# written.

_OWNERS_SINCE: Final = 16
"""The first version in which other roles than superusers may own subscriptions."""

_OF_OWNERS: Final = frozenset(
    {"synchronous_commit", "binary", "streaming", "disable_on_error", "origin"}
    | {"password_required", "run_as_owner"}
)
"""Options of SET that neither need the publisher nor change what the tables hold."""


def check_rights(statement: Statement, catalog: Catalog, scope: CommandScope) -> None:
    """Check that the role may execute a statement about a subscription.

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
    """Check the connection string that a superuser gives to an owner's subscription: the owner
    needs a password in it."""
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
    """Check that a connection string has a password (libpqrcv_check_conninfo with
    must_use_password). Raises ProhibitedSqlStatementAttempted (2F003), SqlSyntaxError."""
    if not ConnInfo.parse(conninfo).parameters.get("password"):
        raise ProhibitedSqlStatementAttempted(
            "password is required",
            detail="Non-superusers must provide a password in the connection string.",
        )


def alter_owner(
    statement: AlterSubscriptionOwner, catalog: Catalog, scope: CommandScope
) -> CommandResult:
    """Run OWNER TO. A running worker goes on as it was."""
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


# DROP SUBSCRIPTION (subscriptioncmds.c, DropSubscription).
#
# In: a statement, the catalog, a way to the publisher. Out: no subscription, no slot. Delta tables
# and cuts stay, and a row of the catalog tells which subscription the markers in the tables' logs
# belong to. A running node lets go of the slot first:
#
# 1. The row is marked as dropping, which moves the catalog's generation: a running node stops the
#    worker and its copies; without one nothing needs to be stopped. No copy is committed any more.
# 2. When the temporary slots of its copies are gone, no copy runs.
# 3. ``DROP_REPLICATION_SLOT ... WAIT`` returns when nobody streams from the slot any more.
# 4. The rows are deleted, with transactions that are prepared and not committed.
#
# If step 3 fails, the mark is removed and the subscription is as before. If the process dies, the
# mark stays and DROP can be repeated; then a slot that is already gone is no error.

log = logging.getLogger(__name__)

_TAG = "DROP SUBSCRIPTION"
_DISASSOCIATE = (
    "Use ALTER SUBSCRIPTION ... DISABLE to disable the subscription, and then use "
    "ALTER SUBSCRIPTION ... SET (slot_name = NONE) to disassociate it from the slot."
)


_COPIES_END_S = 30.0
"""Seconds that DROP waits for copies to end. Spark kills a task within seconds; the server's
keepalives end a session that has lost its client."""

_LOOK_S = 0.1


def drop_subscription(
    statement: DropSubscription, catalog: Catalog, connect: PublisherFactory, scope: CommandScope
) -> CommandResult:
    """Run DROP SUBSCRIPTION. Raises UndefinedObject, ConnectionFailure, PublisherError."""
    with catalog.write() as transaction:
        subscription = transaction.subscriptions.find(statement.name)
        if subscription is None and statement.missing_ok:
            missing = notice(f'subscription "{statement.name}" does not exist, skipping')
            return CommandResult(_TAG, (missing,))
        subscription = transaction.subscriptions.get(statement.name)
        if subscription.slot_name is not None:
            scope.prevent_in_block("DROP SUBSCRIPTION")
        transaction.subscriptions.save(replace(subscription, dropping=True))
    notices = []
    if subscription.slot_name is not None:
        try:
            running = _drop_slot(connect, subscription, subscription.slot_name)
        except BaseException:
            _unmark(catalog, subscription.oid)
            raise
        notices += [_still_copying(slot) for slot in running]
        notices.append(notice(f'dropped replication slot "{subscription.slot_name}" on publisher'))
    cut = _readable_last_cut(scope, subscription)
    with catalog.write() as transaction:
        transaction.relations.delete_all(subscription.oid)
        if cut is None:
            transaction.subscriptions.delete(subscription.oid)
        else:
            ids = [table.id for table in cut.tables.values() if table.id is not None]
            transaction.subscriptions.delete(subscription.oid, cut.lsn, ids)
        transaction.cut_requests.forget_all(subscription.oid)
        transaction.prepared_xacts.delete_all(subscription.oid)
    if scope.warehouse is not None:
        storage, prepared = scope.warehouse.storage, scope.warehouse.prepared_uri
        scope.after_commit(partial(storage.discard_folder, prepared(subscription.app_id)))
    return CommandResult(_TAG, tuple(notices))


def _readable_last_cut(scope: CommandScope, subscription: Subscription) -> Cut | None:
    """Return the last cut; None, too, if the warehouse cannot be read, as a subscription can be
    dropped without it."""
    if scope.warehouse is None:
        return None
    try:
        return scope.warehouse.cuts.last(CutOwner(subscription.name, subscription.app_id))
    except PenstockError as error:
        log.warning('the last cut of subscription "%s": %s', subscription.name, error.message)
        return None


def _drop_slot(connect: PublisherFactory, subscription: Subscription, slot: str) -> list[str]:
    """Drop the slot after the copies have ended. Return the temporary slots of copies that have
    not ended in time."""
    with closing(_connect(connect, subscription, slot)) as publisher:
        try:
            running = _wait_for_copies(publisher, subscription.app_id)
            publisher.drop_slot(slot, missing_ok=subscription.dropping)
        except PenstockError as error:
            error.hint = error.hint or _DISASSOCIATE
            raise
    return running


def _wait_for_copies(publisher: PublisherSession, app_id: str) -> list[str]:
    """Wait until no copy runs, and return the slots of those that still run after a while."""
    deadline = time.monotonic() + _COPIES_END_S
    while (running := publisher.sync_slots(app_id)) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return running


def _still_copying(slot: str) -> Notice:
    return warning(
        f'the session of a copy still holds temporary replication slot "{slot}" on the publisher, '
        "which ends with that session; nothing of it will be committed"
    )


def _connect(connect: PublisherFactory, subscription: Subscription, slot: str) -> PublisherSession:
    """Connect to the publisher, or raise the error of ReportSlotConnectionError."""
    try:
        return connect(subscription.conninfo, subscription.name)
    except ConnectionFailure as error:
        raise error.changed(
            message="could not connect to publisher when attempting to drop replication slot "
            f'"{slot}": {error.message.removeprefix(CONNECT_PREFIX)}',
            hint=_DISASSOCIATE,
        ) from None


def _unmark(catalog: Catalog, oid: int) -> None:
    with catalog.write() as transaction:
        subscription = transaction.subscriptions.find_oid(oid)
        if subscription is not None:
            transaction.subscriptions.save(replace(subscription, dropping=False))
