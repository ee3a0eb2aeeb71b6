"""CREATE, ALTER and DROP SUBSCRIPTION (subscriptioncmds.c).

A running node notices the change by the catalog's generation. The publisher is asked before the
catalog is written, so that no transaction is open while the network answers. If writing the catalog
fails, a slot that was created on the publisher is dropped again.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from penstock import guc
from penstock.catalog import (
    Catalog,
    CatalogTransaction,
    PreparedXact,
    Subscription,
    SubscriptionRel,
    SubscriptionRelState,
    TwoPhaseState,
)
from penstock.catalog.pg_subscription import (
    COPY_TARGETS,
    SCHEMA_CHANGES,
    UNSENT_CHANGES,
    SubscriptionOptions,
    TableChoice,
    being_dropped,
    read_choice,
)
from penstock.catalog.publisher_identity import (
    PublisherIdentity,
    PublisherUpgrade,
    alter,
    check_identity,
    copy_anew,
)
from penstock.commands.aclchk import (
    check_can_set_role,
    check_create_in_database,
    check_owner,
    role_of,
)
from penstock.commands.define import (
    conflicting_options,
    def_get_boolean,
    def_get_streaming_mode,
    def_get_string,
)
from penstock.commands.scope import (
    CommandResult,
    CommandScope,
    CurrentRole,
    PublisherFactory,
    notice,
    warning,
)
from penstock.commands.subscription_targets import (
    between_batches,
    check_targets,
    check_whole_batches,
)
from penstock.errors import (
    ConnectionFailure,
    DuplicateObject,
    FeatureNotSupported,
    InsufficientPrivilege,
    InvalidParameterValue,
    NotInPrerequisiteState,
    ObjectInUse,
    PenstockError,
    SqlSyntaxError,
    StateMismatch,
    StorageError,
    UndefinedObject,
)
from penstock.identifiers import simple_quote_literal
from penstock.lakehouse.cuts import Cut, CutOwner, Cuts
from penstock.lakehouse.identity import newest_table_id
from penstock.lakehouse.schema_changes import JSONB_AS
from penstock.lakehouse.table_layout import (
    CLUSTER_BY,
    PARTITION_BY,
    NewTableLayouts,
    column_lists,
)
from penstock.lsn import INVALID, Lsn
from penstock.pgtypes.out_of_range import OUT_OF_RANGE
from penstock.pipeline.conflict import CONFLICT_RESOLUTIONS
from penstock.protocol.answers import Notice
from penstock.relation import TableName, qualified
from penstock.sql import (
    AlterSubscriptionConnection,
    AlterSubscriptionEnabled,
    AlterSubscriptionOwner,
    AlterSubscriptionRefresh,
    AlterSubscriptionRefreshTables,
    AlterSubscriptionSet,
    AlterSubscriptionSkip,
    CreateSubscription,
    DefElem,
    DropSubscription,
    RenameSubscription,
    Statement,
)
from penstock.sql.grammar.parsenodes import RangeVar
from penstock.sql.grammar.subscription import AlterSubscriptionPublications
from penstock.sql.text.interval_literals import read_interval
from penstock.sqlstate import (
    InvalidName,
    InvalidObjectDefinition,
    NameTooLong,
    ProhibitedSqlStatementAttempted,
    UndefinedTable,
)
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.publisher import Publisher, SystemIdentity, missing_publications_message
from penstock.walreceiver.slots import RemoteSlot

log = logging.getLogger(__name__)


# Options of subscriptions (subscriptioncmds.c, parse_subscription_options).


@dataclass(frozen=True, slots=True, kw_only=True)
class SubOpts(SubscriptionOptions):
    """Options, with PostgreSQL's defaults. ``specified``: the names of the given options.

    ``slot_name``: None means NONE if it is specified, otherwise the subscription's name. ``lsn``:
    the LSN to skip; INVALID means NONE.
    """

    connect: bool = True
    enabled: bool = True
    create_slot: bool = True
    slot_name: str | None = None
    copy_data: bool = True
    refresh: bool = True
    two_phase: bool = False
    lsn: Lsn = INVALID
    system_identifier: str = ""
    specified: frozenset[str] = frozenset()

    @property
    def kept(self) -> dict[str, Any]:
        """The specified options that the catalog keeps."""
        return {name: getattr(self, name) for name in KEPT if name in self.specified}


_SYNCHRONOUS_COMMIT: Final = ("local", "remote_write", "remote_apply", "on", "off")
_SYNCHRONOUS_COMMIT_HIDDEN: Final = ("true", "false", "yes", "no", "1", "0")

KEPT: Final = frozenset(each.name for each in fields(SubscriptionOptions))
"""Options that the catalog keeps unchanged, under their own names."""
CREATE: Final = KEPT | {"connect", "enabled", "create_slot", "slot_name", "copy_data", "two_phase"}
SYSTEM_IDENTIFIER: Final = "system_identifier"
SET: Final = CREATE - {"connect", "enabled", "create_slot", "copy_data"} | {SYSTEM_IDENTIFIER}
REFRESH: Final = frozenset({"copy_data", "copy_target"})
SKIP: Final = frozenset({"lsn"})
SET_PUBLICATION: Final = frozenset({"copy_data", "copy_target", "refresh"})


def parse_subscription_options(options: Sequence[DefElem], supported: frozenset[str]) -> SubOpts:
    """Check options in the order of the statement, then their combination.

    Raises SqlSyntaxError, InvalidParameterValue.
    """
    values: dict[str, Any] = {}
    for option in options:
        if option.name not in supported:
            raise SqlSyntaxError(f'unrecognized subscription parameter: "{option.name}"')
        if option.name in values:
            raise conflicting_options()
        values[option.name] = _READERS.get(option.name, def_get_boolean)(option)
    parsed = SubOpts(**values, specified=frozenset(values))
    NewTableLayouts.of(parsed.partition_by, parsed.cluster_by)
    if "connect" in supported:
        parsed = _without_connection(parsed)
        _check_slot_name(parsed)
    return parsed


def _without_connection(options: SubOpts) -> SubOpts:
    """Apply connect = false to the options: without a connection the subscription cannot be
    enabled, no slot can be created and no data copied."""
    if options.connect:
        return options
    for name in ("enabled", "create_slot", "copy_data"):
        if getattr(options, name) and name in options.specified:
            raise _mutually_exclusive("connect = false", f"{name} = true")
    return replace(options, enabled=False, create_slot=False, copy_data=False)


def _check_slot_name(options: SubOpts) -> None:
    """Check slot_name = NONE: without a slot nothing can be streamed."""
    if options.slot_name is not None or "slot_name" not in options.specified:
        return
    for name in ("enabled", "create_slot"):
        if not getattr(options, name):
            continue
        if name in options.specified:
            raise _mutually_exclusive("slot_name = NONE", f"{name} = true")
        raise SqlSyntaxError(f"subscription with slot_name = NONE must also set {name} = false")


def _mutually_exclusive(one: str, other: str) -> SqlSyntaxError:
    return SqlSyntaxError(f"{one} and {other} are mutually exclusive options")


def _slot_name(option: DefElem) -> str | None:
    name = def_get_string(option)
    if name == "none":
        return None
    validate_slot_name(name)
    return name


def _synchronous_commit(option: DefElem) -> str:
    value = def_get_string(option)
    if value.lower() not in _SYNCHRONOUS_COMMIT + _SYNCHRONOUS_COMMIT_HIDDEN:
        raise InvalidParameterValue(
            f'invalid value for parameter "synchronous_commit": "{value}"',
            hint=f"Available values: {', '.join(_SYNCHRONOUS_COMMIT)}.",
        )
    return value


def _origin(option: DefElem) -> str:
    """Return origin exactly as written: it is kept, shown and sent in this form."""
    value = def_get_string(option)
    if value.lower() not in ("any", "none"):
        raise InvalidParameterValue(f'unrecognized origin value: "{value}"')
    return value


def _one_of(values: Sequence[str]) -> Callable[[DefElem], str]:
    def read(option: DefElem) -> str:
        value = def_get_string(option).lower()
        if value not in values:
            raise InvalidParameterValue(
                f'invalid value for parameter "{option.name}": "{value}"',
                hint=f"Available values: {', '.join(values)}.",
            )
        return value

    return read


def _column_lists(option: DefElem) -> str:
    text = def_get_string(option)
    column_lists(option.name, text)
    return text


def _tables(option: DefElem) -> TableChoice:
    return read_choice(option.name, option.arg)


def _verify_interval(option: DefElem) -> int:
    """Return seconds, from a number or from an interval as interval_in reads it; 0 for ``off``."""
    text = def_get_string(option).strip().lower()
    if guc.parse_bool(text) is False:
        return 0
    if text.isdecimal():
        seconds = int(text)
    else:
        value = read_interval(text)
        days = value.months * 30 + value.days
        seconds = days * 86400 + value.microseconds // 1_000_000
    guc.check_range(option.name, seconds, 1, guc.INT_MAX, "s")
    return seconds


def _verify_rate(option: DefElem) -> int:
    """Return bytes. As in PostgreSQL's parameters, a number without a unit means kB."""
    number = guc.read_integer(option.name, def_get_string(option), "kB")
    guc.check_range(option.name, number, 1, guc.INT_MAX, "kB")
    return number << 10


def _system_identifier(option: DefElem) -> str:
    text = def_get_string(option)
    if not re.fullmatch("[0-9]{1,20}", text):
        raise InvalidParameterValue(
            f'invalid value for parameter "{option.name}": "{text}"',
            hint="SELECT system_identifier FROM pg_control_system() on the publisher.",
        )
    return text


def _lsn(option: DefElem) -> Lsn:
    text = def_get_string(option)
    if text == "none":
        return INVALID
    lsn = Lsn.parse(text)
    if lsn == INVALID:
        raise InvalidParameterValue(f"invalid WAL location (LSN): {text}")
    return lsn


_READERS: Final[dict[str, Callable[[DefElem], Any]]] = {
    "slot_name": _slot_name,
    "synchronous_commit": _synchronous_commit,
    "streaming": def_get_streaming_mode,
    "origin": _origin,
    "copy_target": _one_of(COPY_TARGETS),
    "on_table_error": _one_of(("stop", "park")),
    "schema_change": _one_of(SCHEMA_CHANGES),
    "unsent_changes": _one_of(UNSENT_CHANGES),
    "history": _tables,
    "conflict_resolution": _one_of(CONFLICT_RESOLUTIONS),
    "out_of_range": _one_of(OUT_OF_RANGE),
    PARTITION_BY: _column_lists,
    CLUSTER_BY: _column_lists,
    "jsonb_as": _one_of(JSONB_AS),
    "verify_interval": _verify_interval,
    "verify_rate": _verify_rate,
    "lsn": _lsn,
    SYSTEM_IDENTIFIER: _system_identifier,
}


def validate_slot_name(name: str) -> None:
    """Check the name of a slot (ReplicationSlotValidateName, slot.c). Raises InvalidParameterValue
    (42602, 42622)."""
    if not name:
        raise InvalidName(f'replication slot name "{name}" is too short')
    if len(name.encode()) >= 64:
        raise NameTooLong(f'replication slot name "{name}" is too long')
    if not re.fullmatch(r"[a-z0-9_]+", name):
        raise InvalidName(
            f'replication slot name "{name}" contains invalid character',
            hint="Replication slot names may only contain lower case letters, numbers, "
            "and the underscore character.",
        )


def without_effect(options: SubOpts) -> tuple[Notice, ...]:
    """Return a notice for each specified option that has no effect."""
    if "synchronous_commit" not in options.specified:
        return ()
    return (
        notice(
            "synchronous_commit has no effect on this node",
            detail="What a cut holds is on disk before it is acknowledged (parameter fsync).",
        ),
    )


def different_origin(subscription: str, publications: Sequence[str]) -> list[Notice]:
    """Return the warning about publications of tables that subscriptions fill on the publisher
    (check_publications_origin)."""
    if not publications:
        return []
    names = ", ".join(f'"{name}"' for name in publications)
    one = len(publications) == 1
    to = f"a publication ({names}) that contains" if one else f"publications ({names}) that contain"
    return [
        warning(
            f'subscription "{subscription}" requested copy_data with origin = NONE but might copy '
            "data that had a different origin",
            detail=f"The subscription being created subscribes to {to} tables that are written to "
            "by other subscriptions.",
            hint="Verify that initial data copied from the publisher tables did not come from "
            "other origins.",
            sqlstate="55000",
        )
    ]


def without_identity(tables: Sequence[tuple[str, str]]) -> list[Notice]:
    """Return warnings about tables without a replica identity. PostgreSQL reports it only when an
    application's first update fails."""
    return [
        warning(
            f'table "{schema}.{table}" has no replica identity',
            hint="The publisher refuses updates and deletes of its rows. There: ALTER TABLE ... "
            "ADD PRIMARY KEY, or ALTER TABLE ... REPLICA IDENTITY FULL.",
        )
        for schema, table in tables
    ]


# Two-phase commit in statements about subscriptions (subscriptioncmds.c). The worker decides when
# the state changes from pending to enabled.

_OPTION: Final = "two_phase"


def first_two_phase_state(options: SubOpts, *, has_tables: bool) -> TwoPhaseState:
    """Return the two-phase state of a new subscription. It is enabled at once, with the slot, if no
    table must be copied first."""
    if not options.two_phase:
        return TwoPhaseState.DISABLED
    at_once = options.connect and options.create_slot and not options.copy_data and has_tables
    return TwoPhaseState.ENABLED if at_once else TwoPhaseState.PENDING


def check_copy(subscription: Subscription, options: SubOpts, form: str) -> None:
    """Refuse to copy tables while two_phase is enabled: a transaction that is prepared before the
    copy and committed after it would be neither in the copy nor in the stream. ``form``: REFRESH,
    SET, ADD or DROP. Raises NotInPrerequisiteState."""
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
    """Refuse to copy a table again while two_phase is enabled, for the reason in ``check_copy``.
    Raises NotInPrerequisiteState."""
    if subscription.two_phase_state is TwoPhaseState.ENABLED:
        raise NotInPrerequisiteState(
            "ALTER SUBSCRIPTION ... REFRESH TABLE is not allowed when two_phase is enabled",
            hint="Disable the subscription, SET (two_phase = false), enable it, and refresh the "
            "table; then two_phase can be set again in the same way.",
        )


def check_alter_sub_option(subscription: Subscription, name: str, *, alters_slot: bool) -> None:
    """Check that an option may be set that is also a property of the slot (CheckAlterSubOption).
    Raises NotInPrerequisiteState."""
    if subscription.enabled:
        raise NotInPrerequisiteState(f'cannot set option "{name}" for enabled subscription')
    if alters_slot and subscription.slot_name is None:
        raise NotInPrerequisiteState(
            f'cannot set option "{name}" for a subscription that does not have a slot name'
        )


def check_alter_two_phase(
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


def ends_two_phase(subscription: Subscription, options: SubOpts) -> bool:
    """Tell whether the statement disables two_phase. Then the publisher's slot must be altered."""
    had = subscription.two_phase_state is not TwoPhaseState.DISABLED
    return had and _OPTION in options.specified and not options.two_phase


def still_running() -> NotInPrerequisiteState:
    """Return the error (55006) for a slot that a disabled subscription's worker still uses."""
    return NotInPrerequisiteState(
        'cannot alter "two_phase" when logical replication worker is still running',
        hint="Try again after some time.",
    )


logger = logging.getLogger(__name__)

CONNECT_PREFIX: Final = "could not connect to the publisher: "
"""The beginning of walreceiver's message; libpq's message follows."""

ALTERED: Final = "ALTER SUBSCRIPTION"
"""The command tag."""


def create_subscription(
    statement: CreateSubscription, catalog: Catalog, connect: PublisherFactory, scope: CommandScope
) -> CommandResult:
    """Run CREATE SUBSCRIPTION (CreateSubscription). If it raises, it leaves nothing behind on the
    node or the publisher.

    Cuts of a dropped subscription stay readable until a new subscription takes its name.
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
        two_phase = first_two_phase_state(options, has_tables=bool(tables)) is TwoPhaseState.ENABLED
        with _new_slot(publisher, options, two_phase=two_phase) as created:
            notices += created
            _insert(statement, catalog, scope, options, tables, identity)
    return CommandResult("CREATE SUBSCRIPTION", tuple(notices))


def alter_enabled(statement: AlterSubscriptionEnabled, catalog: Catalog) -> CommandResult:
    """Run ENABLE or DISABLE; both clear the recorded error."""
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
    """Run CONNECTION; a running worker restarts with the new connection string."""
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
    """Run REFRESH PUBLICATION: add new tables and remove unpublished ones. Copy a table again if
    its name now means another relation, if it is parked, or if it has stopped the subscription.

    Raises ObjectInUse if another session changed the subscription while the publisher was asked.
    """
    with catalog.read() as transaction:
        subscription = get_subscription(transaction, statement.name)
    check_enabled(subscription, "REFRESH")
    options = parse_subscription_options(statement.options, REFRESH)
    check_copy(subscription, options, "REFRESH")
    scope.prevent_in_block("ALTER SUBSCRIPTION ... REFRESH")
    found = ask_published(
        subscription, connect, besides=already_copied(catalog, subscription, options)
    )
    there = _tables_there(subscription, found.tables, catalog, scope)

    def refreshed() -> list[Notice]:
        with catalog.write() as transaction:
            now = check_unchanged(transaction, subscription, found)
            check_whole_batches(transaction, scope, now)
            return take_in(transaction, now, found, options, there)

    return CommandResult(ALTERED, tuple(between_batches(refreshed)))


def take_in(
    transaction: CatalogTransaction,
    subscription: Subscription,
    found: PublisherTables,
    options: SubOpts,
    there: TablesThere,
) -> list[Notice]:
    """Make the published tables the subscription's tables (AlterSubscription_refresh). Return
    notices."""
    known = {rel.table_name: rel for rel in transaction.relations.all(subscription.oid)}
    new = {table: oid for table, oid in found.tables.items() if table not in known}
    check_targets(transaction, found.tables)
    added = transaction.relations.add(subscription.oid, new, _first_state(options), there.filled)
    for table in known.keys() - set(found.tables):
        transaction.relations.remove(known[table])
    kept = [(known[table], oid) for table, oid in found.tables.items() if table in known]
    notices = notices_of_returned(added)
    notices += copy_again(transaction, subscription, kept, options, there)
    if "copy_target" in options.specified:
        transaction.relations.set_copy_target(subscription.oid, options.copy_target)
    unwarned = [table for table in found.without_identity if table in new]
    notices += different_origin(subscription.name, found.different_origin)
    return [*notices, *without_identity(unwarned)]


@dataclass(frozen=True, slots=True)
class TablesThere:
    """The Delta tables at the places of published tables, as far as a refresh has to know them.

    ``filled``: the ids of those that the subscription has filled, although they are not its tables:
    an older copy of the node's state was put back, and may not know that they were. ``others``: the
    URIs at which another table lies than the one that was copied, of tables to be copied again.
    """

    filled: Mapping[TableName, str]
    others: Mapping[TableName, str]


def _tables_there(
    subscription: Subscription,
    tables: Iterable[TableName],
    catalog: Catalog,
    scope: CommandScope,
) -> TablesThere:
    rels = catalog.relations(subscription.oid)
    failed = [rel for rel in rels if _error_of(rel, subscription) is not None]
    unknown = set(tables) - {rel.table_name for rel in rels}
    return TablesThere(_filled(subscription, unknown, scope), _others(failed, scope))


def _others(rels: Iterable[SubscriptionRel], scope: CommandScope) -> dict[TableName, str]:
    found: dict[TableName, str] = {}
    if (warehouse := scope.warehouse) is None:
        return found
    for rel in rels:
        if rel.table_id is None:
            continue
        uri = warehouse.table_uri(rel.schema, rel.table)
        with suppress(PenstockError):  # the copy finds what is wrong with the table
            if newest_table_id(warehouse.storage, uri) not in (None, rel.table_id):
                found[rel.table_name] = uri
    return found


def _filled(
    subscription: Subscription, unknown: Iterable[TableName], scope: CommandScope
) -> dict[TableName, str]:
    found: dict[TableName, str] = {}
    if (warehouse := scope.warehouse) is None:
        return found
    for name in unknown:
        with suppress(PenstockError):  # the copy finds what is wrong with the table
            table = warehouse.open(*name, vectors=False)
            if table is not None and subscription.app_id in table.app_ids:
                found[name] = table.id
    return found


def already_copied(
    catalog: Catalog, subscription: Subscription, options: SubOpts
) -> Sequence[TableName] | None:
    """Return the subscription's tables: a refresh does not copy them, so their origins need no
    check. Return None if no origin needs a check."""
    if not (options.copy_data and subscription.own_changes_only):
        return None
    with catalog.read() as transaction:
        return [rel.table_name for rel in transaction.relations.all(subscription.oid)]


def check_enabled(subscription: Subscription, form: str) -> None:
    """Raise NotInPrerequisiteState for a disabled subscription. ``form``: such as REFRESH."""
    # If an error has disabled the subscription, it may need this command to continue.
    if not subscription.enabled and not subscription.stopped:
        raise NotInPrerequisiteState(
            f"ALTER SUBSCRIPTION ... {form} is not allowed for disabled subscriptions",
            hint=f"Enable it first: {alter(subscription.name)} ENABLE.",
        )


@dataclass(frozen=True, slots=True)
class PublisherTables:
    """The publisher's answers for a subscription: the publisher's identity, the published tables
    with their OIDs, and those without a replica identity."""

    identity: PublisherIdentity
    tables: Mapping[TableName, int]
    without_identity: Sequence[TableName]
    missing: Sequence[str] = ()
    """The publications that do not exist on the publisher."""
    different_origin: Sequence[str] = ()
    """The publications with new tables that subscriptions fill on the publisher."""


def ask_published(
    subscription: Subscription,
    connect: PublisherFactory,
    look_for: Sequence[str] = (),
    besides: Sequence[TableName] | None = None,
) -> PublisherTables:
    """Ask a subscription's publisher about its tables. Unless ``besides`` is None, also ask about
    the origins of other tables than these. Raises StateMismatch for another publisher."""
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
        raise error.with_statement(alter(subscription.name)) from None


def _insert(
    statement: CreateSubscription,
    catalog: Catalog,
    scope: CommandScope,
    options: SubOpts,
    tables: Mapping[TableName, int],
    publisher: PublisherIdentity | None,
) -> None:
    """Write the subscription's rows. As the last step before the commit, remove the cuts of dropped
    subscriptions that had its name, so that all of this happens or nothing."""
    cuts = None if scope.warehouse is None else scope.warehouse.cuts
    with catalog.write() as transaction:
        others = transaction.subscriptions.all()
        subscription = transaction.subscriptions.create(
            statement.name,
            conninfo=statement.conninfo,
            publications=statement.publications,
            slot_name=options.slot_name,
            enabled=options.enabled,
            two_phase_state=first_two_phase_state(options, has_tables=bool(tables)),
            **{name: getattr(options, name) for name in KEPT},
            owner=scope.role.oid,
        )
        # Record the publisher, so that a worker stops if it connects to another one.
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
def open_session(connect: PublisherFactory, name: str, conninfo: str) -> Iterator[Publisher]:
    """Open a session on the publisher, with the subscription's name as application name."""
    try:
        publisher = connect(conninfo, name)
    except ConnectionFailure as error:
        raise error.changed(message=f'subscription "{name}" {error.message}') from None
    with closing(publisher):
        yield publisher


def _identity(publisher: Publisher) -> PublisherIdentity:
    system = publisher.identify_system()
    database_oid, _ = publisher.database()
    return PublisherIdentity(system.system_id, system.timeline, database_oid)


@contextmanager
def _new_slot(publisher: Publisher, options: SubOpts, *, two_phase: bool) -> Iterator[list[Notice]]:
    """Create the slot if requested, and drop it again if the ``with`` block fails. An existing slot
    is an error and stays unchanged, as in PostgreSQL."""
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
    """Return a subscription. Raises UndefinedObject; ObjectInUse if the subscription is being
    dropped."""
    subscription = transaction.subscriptions.get(name)
    if subscription.dropping:
        raise being_dropped(subscription)
    return subscription


def check_unchanged(
    transaction: CatalogTransaction, asked_for: Subscription, found: PublisherTables
) -> Subscription:
    """Read the subscription again after its publisher was asked; PostgreSQL locks it instead.
    Raises ObjectInUse if it was changed, StateMismatch if it follows another publisher now."""
    now = transaction.subscriptions.find_oid(asked_for.oid)
    if now is None or now != asked_for or now.dropping:
        raise ObjectInUse(
            f'subscription "{asked_for.name}" was changed while its publisher was asked',
            hint="Run the statement again.",
        )
    check_identity(now.name, now.publisher, found.identity)
    return now


def save_healed(transaction: CatalogTransaction, subscription: Subscription) -> None:
    """Save a subscription without its recorded error, so that a stopped worker starts again."""
    transaction.subscriptions.save(subscription.healed())


def check_publications_once(names: Sequence[str]) -> None:
    """Raise DuplicateObject if a publication is named twice."""
    for position, name in enumerate(names):
        if name in names[:position]:
            raise DuplicateObject(f'publication name "{name}" used more than once')


# ALTER SUBSCRIPTION ... SKIP (AlterSubscription, ALTER_SUBSCRIPTION_SKIP).
#
# A worker reads the catalog before each batch; ``subscription.apply_error`` decides what is
# skipped, and when skipping ends. A prepared transaction is skipped by the LSN of its PREPARE,
# whether this has already arrived (``subscription.prepared``) or not. After COMMIT PREPARED on the
# publisher, it is skipped by the LSN of COMMIT PREPARED, as other transactions are by their commit.


def alter_skip(
    statement: AlterSubscriptionSkip, catalog: Catalog, scope: CommandScope
) -> CommandResult:
    """Run SKIP (...). If an error has stopped the subscription, it starts again."""
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
    """Return the prepared transaction whose PREPARE has this LSN; None if it has not arrived."""
    xacts = transaction.prepared_xacts.all(subid)
    return next((xact for xact in xacts if xact.prepare_lsn == lsn), None)


def _skip_prepared(transaction: CatalogTransaction, xact: PreparedXact) -> Lsn:
    """Skip a prepared transaction, and return the LSN that must still be skipped. If it is still
    prepared, mark it, so that its rows are left out, and return INVALID. If it was committed, some
    tables may already have its rows: return the LSN of its commit."""
    if xact.commit_lsn is not None and not xact.skipped:
        return xact.commit_lsn
    transaction.prepared_xacts.put(replace(xact, skipped=True))
    return INVALID


# ALTER SUBSCRIPTION ... SET (options) (subscriptioncmds.c, AlterSubscription).
#
# As in PostgreSQL the slot is changed first, so that the catalog never shows an option that the
# slot does not have. A running node notices the change by the catalog's generation.


def alter_options(
    statement: AlterSubscriptionSet,
    catalog: Catalog,
    connect: PublisherFactory,
    scope: CommandScope,
) -> CommandResult:
    """Run SET (...). Raises SqlSyntaxError, NotInPrerequisiteState, ObjectInUse, StateMismatch, and
    the publisher's errors about the slot."""
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
    """Return the fields on which the publisher's answers depend."""
    return subscription.oid, subscription.slot_name, subscription.conninfo


def _ask_upgraded(
    subscription: Subscription, options: SubOpts, connect: PublisherFactory
) -> UpgradedPublisher | None:
    """For SET (system_identifier), which says that pg_upgrade has moved the publisher, ask the new
    server; otherwise return None."""
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
    """In a block, refuse options that are also properties of the slot (CheckAlterSubOption)."""
    if "two_phase" in options.specified and not options.two_phase:
        scope.prevent_in_block("ALTER SUBSCRIPTION ... SET (two_phase)")
    if "failover" in options.specified:
        scope.prevent_in_block("ALTER SUBSCRIPTION ... SET (failover)")


def _altered(
    transaction: CatalogTransaction, subscription: Subscription, options: SubOpts
) -> Subscription:
    """Return the subscription with the specified options, after PostgreSQL's checks in PostgreSQL's
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
        state = check_alter_two_phase(transaction, subscription, options)
        altered = replace(altered, two_phase_state=state)
    if "failover" in options.specified:
        check_alter_sub_option(subscription, "failover", alters_slot=True)
    altered = replace(altered, **options.kept)
    NewTableLayouts.of(altered.partition_by, altered.cluster_by)
    return altered


def _alter_slot(subscription: Subscription, options: SubOpts, connect: PublisherFactory) -> bool:
    """Alter the slot if an option is also a property of the slot, even if the slot already has this
    value, as in PostgreSQL. Return whether the publisher was asked."""
    failover = options.failover if "failover" in options.specified else None
    ends = False if ends_two_phase(subscription, options) else None
    slot = subscription.slot_name
    if slot is None or (failover is None and ends is None):
        return False
    with open_session(connect, subscription.name, subscription.conninfo) as publisher:
        try:
            publisher.alter_slot(slot, failover=failover, two_phase=ends)
        except PenstockError as error:
            if error.sqlstate == "55006" and ends is not None:
                raise still_running() from None
            raise
    return True


# ALTER SUBSCRIPTION ... SET (system_identifier): the publisher was moved by pg_upgrade.
#
# Only the cluster that pg_upgrade made from the publisher is accepted. pg_upgrade keeps the OIDs of
# databases and tables, and refuses a cluster whose logical slots have not sent all changes. It
# creates each slot again at the start of the new cluster's WAL, beyond the old cluster's WAL. So
# the cuts have all changes of the old cluster, and the stream continues at the new slot.
#
# PostgreSQL: check_old_cluster_for_valid_slots (pg_upgrade/check.c),
# create_logical_replication_slots


@dataclass(frozen=True, slots=True)
class UpgradedPublisher:
    """The new server's answers. ``slot``: the subscription's slot; ``missing``: publications that
    the server does not have; ``tables``: published tables with their OIDs."""

    system: SystemIdentity
    database_oid: int
    in_recovery: bool
    slot: RemoteSlot | None
    missing: tuple[str, ...]
    tables: Mapping[TableName, int]

    @classmethod
    def ask(cls, subscription: Subscription, publisher: Publisher) -> UpgradedPublisher:
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
    """Check the new server. Return the subscription, changed to follow it, and notices. Raises
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
    # A single table with another OID was dropped and created again: the worker will report it.
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
    """Raise NotInPrerequisiteState for a subscription without a slot name."""
    if subscription.slot_name is None:
        raise NotInPrerequisiteState(
            f'cannot set option "{SYSTEM_IDENTIFIER}" for a subscription that does not have a slot '
            "name",
            hint=f"{alter(subscription.name)} SET (slot_name = "
            f"{simple_quote_literal(subscription.name)}), if that is its slot.",
        )


# ALTER SUBSCRIPTION ... SET, ADD and DROP PUBLICATION (subscriptioncmds.c).
#
# A publisher decodes each change with the catalogs at the time of the change. If a publication of
# the list did not exist then, this is an error, or from version 18 on the change is left out. So a
# running worker first applies everything committed until now with the old list, and then restarts
# with the new list.

_REFRESH_HINT: Final = {
    "SET": "Use ALTER SUBSCRIPTION ... SET PUBLICATION ... WITH (refresh = false).",
    "ADD": "Use ALTER SUBSCRIPTION ... ADD PUBLICATION ... WITH (refresh = false) instead.",
    "DROP": "Use ALTER SUBSCRIPTION ... DROP PUBLICATION ... WITH (refresh = false) instead.",
}

_CUT_WITHIN_S: Final = 5.0
"""Seconds that ALTER waits for the worker; it does not wait longer for one that is far behind."""

_PUBLICATIONS_LOOK_S: Final = 0.05


def alter_publications(
    statement: AlterSubscriptionPublications,
    catalog: Catalog,
    connect: PublisherFactory,
    scope: CommandScope,
) -> CommandResult:
    """Run SET, ADD or DROP PUBLICATION. Raises DuplicateObject, UndefinedObject,
    InvalidParameterValue, NotInPrerequisiteState; ObjectInUse if another session changed the
    subscription while the publisher was asked, or if a batch stays unfinished."""
    options = parse_subscription_options(statement.options, SET_PUBLICATION)
    if not options.refresh and scope.block_end is not None:
        _save(statement, catalog, scope)  # ``execute_block`` waits for the end of a batch
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
    there = _tables_there(subscription, found.tables, catalog, scope)
    notices = []
    if found.missing:
        notices.append(warning(missing_publications_message(found.missing), sqlstate="42704"))

    def taken_in() -> list[Notice]:
        with catalog.write() as transaction:
            # Use ``now``: the worker may have recorded something, such as the publisher's identity.
            now = check_unchanged(transaction, subscription, found)
            check_whole_batches(transaction, scope, now)
            transaction.subscriptions.save(_with_publications(now, statement))
            wanted = _with_publications(now, statement)
            return take_in(transaction, wanted, found, options, there)

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
    """Before the subscription gets new publications, let its worker apply everything up to the
    publisher's present LSN, and nothing beyond it during the ``with`` block. Yield a warning if the
    worker does not reach this LSN in time.
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
        return None  # without refresh, the statement must not fail because of the publisher


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


# Privileges of subscriptions' owners, and OWNER TO (subscriptioncmds.c,
# AlterSubscriptionOwner_internal).
#
# A node connects to publishers and writes tables with its own rights, whoever owns a subscription.
# So an owner who is not a superuser may start and stop a subscription that a superuser has set up,
# but may not choose which rows it writes.

_OWNERS_SINCE: Final = 16
"""The first version in which roles other than superusers may own subscriptions."""

_OF_OWNERS: Final = frozenset(
    {"synchronous_commit", "binary", "streaming", "disable_on_error", "origin"}
    | {"password_required", "run_as_owner"}
)
"""The options of SET that an owner may change: they need no publisher and change no rows."""


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
    """Check the connection string that a superuser sets for another role's subscription: unless the
    owner is a superuser, it must have a password."""
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
    """Run OWNER TO. A running worker is not affected."""
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
# Delta tables and cuts stay. A row in the catalog still names the dropped subscription, to which
# markers in the tables' Delta logs belong. The slot is dropped before the subscription:
#
# 1. Mark the subscription as dropping, which advances the catalog's generation: a running node
#    stops its worker and its copies. From now on no copy is committed.
# 2. Wait until the temporary slots of its copies are gone: then no copy runs any more.
# 3. ``DROP_REPLICATION_SLOT ... WAIT`` returns when nobody streams from the slot any more.
# 4. Delete the subscription's rows, including its prepared transactions.
#
# If step 3 fails, the mark is removed and the subscription stays. If the process dies, the mark
# stays and DROP can be repeated; a slot that is already gone is then not an error.


_TAG = "DROP SUBSCRIPTION"
_DISASSOCIATE = (
    "Use ALTER SUBSCRIPTION ... DISABLE to disable the subscription, and then use "
    "ALTER SUBSCRIPTION ... SET (slot_name = NONE) to disassociate it from the slot."
)


_COPIES_END_S = 30.0
"""Seconds that DROP waits for copies to end. Spark kills a task within seconds. A session whose
client is gone lasts until the server's keepalives end it."""

_LOOK_S = 0.1


def drop_subscription(
    statement: DropSubscription, catalog: Catalog, connect: PublisherFactory, scope: CommandScope
) -> CommandResult:
    """Run DROP SUBSCRIPTION. Raises UndefinedObject, ConnectionFailure, PublisherError;
    ConfigurationError, ObjectInUse if the slot and the files may be another node's."""
    _check_ours(scope)
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
        record = scope.warehouse.subscription_uri(subscription.app_id)
        scope.after_commit(partial(storage.remove, record))
        scope.after_commit(partial(storage.discard_folder, prepared(subscription.app_id)))
    return CommandResult(_TAG, tuple(notices))


def _check_ours(scope: CommandScope) -> None:
    """Refuse to drop what another node may use, of whose folder this one is a copy. A warehouse
    that is not there is no reason."""
    if scope.warehouse is None:
        return
    try:
        scope.warehouse.check_there()
        scope.warehouse.check_lease()
    except StorageError as error:
        log.warning("%s", error.message)


def _readable_last_cut(scope: CommandScope, subscription: Subscription) -> Cut | None:
    """Return the last cut, or None. Also return None if the warehouse cannot be read: DROP does not
    need the cut."""
    if scope.warehouse is None:
        return None
    try:
        return scope.warehouse.cuts.last(CutOwner(subscription.name, subscription.app_id))
    except PenstockError as error:
        log.warning('the last cut of subscription "%s": %s', subscription.name, error.message)
        return None


def _drop_slot(connect: PublisherFactory, subscription: Subscription, slot: str) -> list[str]:
    """Wait for the end of the copies and drop the slot. Return the temporary slots of copies that
    did not end in time."""
    with closing(_connect(connect, subscription, slot)) as publisher:
        try:
            running = _wait_for_copies(publisher, subscription.app_id)
            publisher.drop_slot(slot, missing_ok=subscription.dropping)
        except PenstockError as error:
            error.hint = error.hint or _DISASSOCIATE
            raise
    return running


def _wait_for_copies(publisher: Publisher, app_id: str) -> list[str]:
    """Wait until no copy runs, or until a timeout. Return the slots of copies that still run."""
    deadline = time.monotonic() + _COPIES_END_S
    while (running := publisher.sync_slots(app_id)) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return running


def _still_copying(slot: str) -> Notice:
    return warning(
        f'the session of a copy still holds temporary replication slot "{slot}" on the publisher, '
        "which ends with that session; nothing of it will be committed"
    )


def _connect(connect: PublisherFactory, subscription: Subscription, slot: str) -> Publisher:
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


# Tables that REFRESH copies again, and the notices about them. PostgreSQL's
# AlterSubscription_refresh copies no table again.

_RETURNED: Final = (
    "A table of that name was in the subscription before. Rows that others have changed since "
    "would be kept, and the copy refused."
)


def notices_of_returned(added: Iterable[SubscriptionRel]) -> list[Notice]:
    """Return notices about added tables whose names were in the subscription before."""
    return [copy_notice(rel, _RETURNED) for rel in added if _comes_back(rel)]


def _comes_back(rel: SubscriptionRel) -> bool:
    return rel.returned and rel.state is SubscriptionRelState.INIT


def copy_again(
    transaction: CatalogTransaction,
    subscription: Subscription,
    kept: Sequence[tuple[SubscriptionRel, int]],
    options: SubOpts,
    there: TablesThere,
) -> list[Notice]:
    """Copy a table again if its name means another relation now, or did for a while, or if it is
    parked or has stopped the subscription. Return notices.

    PostgreSQL keeps the old rows; here the copy replaces them. With copy_data = false the table
    keeps the rows of the old relation, and follows the new relation from now on; but a parked table
    stays as it is, without the changes that it has missed.
    """
    notices = []
    for rel, oid in kept:
        another = rel.relid not in (None, oid) or rel.conflict is not None
        failed = _error_of(rel, subscription)
        if rel.state is SubscriptionRelState.INIT or not (another or failed):
            continue
        if options.copy_data:
            transaction.relations.copy_again(rel, oid)
            notices.append(copy_notice(rel, _why_again(rel, oid, failed), there.others))
        elif rel.state is not SubscriptionRelState.PARKED and another:
            transaction.relations.adopt(rel, oid)
    return notices


def _error_of(rel: SubscriptionRel, subscription: Subscription) -> str | None:
    """Return the reason why a table is not replicated any more, or None."""
    if rel.error is not None:
        return f"It is parked: {rel.error.message}."
    if subscription.error is not None and subscription.stopped_by == rel.sync_id:
        return f"It has stopped the subscription: {subscription.error.message}."
    return None


def copy_notice(
    rel: SubscriptionRel, why: str, others: Mapping[TableName, str] = MappingProxyType({})
) -> Notice:
    """Return the notice about a table whose rows a copy will replace. ``others``: as in
    ``TablesThere``."""
    does = (
        "The copy replaces the rows of the Delta table in one commit; its older versions keep them."
    )
    if rel.table_name in others:
        does = (
            f'Another Delta table lies at "{others[rel.table_name]}": the copy does not replace '
            "its rows, and waits until it is moved away."
        )
    return notice(f'table "{rel.qualified_name}" will be copied again', detail=f"{why} {does}")


def _why_again(rel: SubscriptionRel, oid: int, failed: str | None) -> str:
    return failed or rel.conflict or f"It had OID {rel.relid}, and has OID {oid} now."


# ALTER SUBSCRIPTION ... REFRESH TABLE, which PostgreSQL does not have: copy single tables again.
# Each copy replaces the table's rows in one commit; until then readers see the old rows. An error
# with one of the tables changes nothing for all of them.

_COPIED_NOW = (SubscriptionRelState.INIT, SubscriptionRelState.DATASYNC)
_ASKED_FOR = "You have asked for it."


def refresh_tables(
    statement: AlterSubscriptionRefreshTables,
    catalog: Catalog,
    connect: PublisherFactory,
    scope: CommandScope,
) -> CommandResult:
    """Copy each table again, and start the subscription again if one of the tables has stopped it.

    Raises the errors of connecting; UndefinedObject for a table that is not in the subscription;
    NotInPrerequisiteState for a table that is not published.
    """
    names = list(dict.fromkeys(map(_table_name, statement.tables)))
    with catalog.read() as transaction:
        subscription = get_subscription(transaction, statement.name)
        asked = _members(transaction, subscription, names)
    check_enabled(subscription, "REFRESH TABLE")
    check_copy_of_table(subscription)
    scope.prevent_in_block("ALTER SUBSCRIPTION ... REFRESH TABLE")
    found = ask_published(subscription, connect)
    others = _others(asked, scope)
    for name in names:
        _check_published(subscription, name, found.tables)
    with catalog.write() as transaction:
        subscription = check_unchanged(transaction, subscription, found)
        rels = _members(transaction, subscription, names)
        if subscription.stopped_by in {rel.sync_id for rel in rels}:
            transaction.subscriptions.save(subscription.healed())
        notices = tuple(
            _refresh(transaction, rel, found.tables[rel.table_name], others) for rel in rels
        )
    return CommandResult(ALTERED, notices)


def _refresh(
    transaction: CatalogTransaction,
    rel: SubscriptionRel,
    oid: int,
    others: Mapping[TableName, str],
) -> Notice:
    if rel.state in _COPIED_NOW:
        return notice(f'table "{rel.qualified_name}" is being copied already, skipping')
    transaction.relations.copy_again(rel, oid)
    return copy_notice(rel, _ASKED_FOR, others)


def _table_name(table: RangeVar) -> TableName:
    if table.catalog is not None:
        raise FeatureNotSupported(
            f'cross-database references are not implemented: "{table.catalog}.{table.schema}.'
            f'{table.name}"'
        )
    return table.schema or "public", table.name


def _members(
    transaction: CatalogTransaction, subscription: Subscription, names: list[TableName]
) -> list[SubscriptionRel]:
    known = {rel.table_name: rel for rel in transaction.relations.all(subscription.oid)}
    for name in names:
        if name not in known:
            raise UndefinedTable(
                f'relation "{qualified(*name)}" is not part of the subscription',
                hint=f"{alter(subscription.name)} REFRESH PUBLICATION takes in what is published.",
            )
    return [known[name] for name in names]


def _check_published(
    subscription: Subscription, name: TableName, found: Mapping[TableName, int]
) -> None:
    if name not in found:
        raise NotInPrerequisiteState(
            f'relation "{qualified(*name)}" is not published',
            detail="It was dropped, renamed, or taken out of the publications: "
            f"{', '.join(subscription.publications)}.",
            hint=f"{alter(subscription.name)} REFRESH PUBLICATION removes it, and adds what is "
            "published under another name.",
        )
