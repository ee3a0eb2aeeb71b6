"""Subscriptions (pg_subscription.h).

Column names are PostgreSQL's; ``subappid`` and the columns after it are ours. Checks of options and
names belong to ``penstock.commands``.
"""

from __future__ import annotations

import enum
import json
import re
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Annotated, Any, Final

from sqlalchemy import BigInteger, Boolean, Column, Integer, String, Text

from penstock.catalog import pg_control
from penstock.catalog.metadata import (
    ERROR,
    LIST,
    ColumnForm,
    LsnColumn,
    Null,
    RecordedError,
    StoredTable,
    TableAccess,
    enum_form,
    error_columns,
)
from penstock.catalog.publisher_identity import PublisherIdentity, PublisherUpgrade
from penstock.errors import (
    DuplicateObject,
    InvalidParameterValue,
    ObjectInUse,
    UndefinedObject,
)
from penstock.guc import option_bool
from penstock.identifiers import split_identifiers
from penstock.lsn import INVALID, Lsn
from penstock.relation import TableName, qualified, table_of_option
from penstock.sql.text.quoting import quote_identifier

# The choice of a subscription's tables to which an option applies (history). Names of tables that
# do not exist are no error: tables may come later.


@dataclass(frozen=True, slots=True)
class TableChoice:
    """A choice of ``every`` table, or of those in ``names``."""

    every: bool = False
    names: frozenset[TableName] = frozenset()

    def __contains__(self, table: TableName) -> bool:
        return self.every or table in self.names

    def __bool__(self) -> bool:
        return self.every or bool(self.names)

    def __str__(self) -> str:
        if not self.names:
            return "true" if self.every else "false"
        return ", ".join(".".join(map(quote_identifier, name)) for name in sorted(self.names))


NONE: Final = TableChoice()


def read_choice(option: str, value: object) -> TableChoice:
    """Read an option's ``value``, which is None if the option is written without a value. Raises
    InvalidParameterValue."""
    every = option_bool(value)
    if every is not None:
        return TableChoice(every)
    return TableChoice(names=frozenset(_names(option, str(value))))


def _names(option: str, text: str) -> list[TableName]:
    found: list[TableName] = []
    for item in _items(text):
        table = table_of_option(split_identifiers(item, "."))
        if table is None:
            raise InvalidParameterValue(
                f'invalid value for parameter "{option}": "{text}"',
                hint="It is true, false, or a list of tables: public.orders, events.",
            )
        if table in found:
            raise InvalidParameterValue(
                f'invalid value for parameter "{option}": "{text}"',
                detail=f'Table "{qualified(*table)}" is there twice.',
            )
        found.append(table)
    return found


def _items(text: str) -> list[str]:
    """Split a text at the commas that are not in quotes."""
    items, inside = [""], False
    for character in text:
        inside ^= character == '"'
        if character == "," and not inside:
            items.append("")
        else:
            items[-1] += character
    return items


ADD: Final = "add"
STOP: Final = "stop"
FOLLOW: Final = "follow"
WIDEN: Final = "widen"
SCHEMA_CHANGES: Final = (ADD, STOP, FOLLOW, WIDEN)
"""Values of the option schema_change. ADD adds columns that the publisher adds; any other change
that does not fit is an error. STOP: every change is an error. FOLLOW: as ADD, but the table is
copied again instead of an error. WIDEN: as FOLLOW, but a type that only became wider needs no copy.
"""
KEEP: Final = "keep"
UNSENT_CHANGES: Final = ("error", KEEP)
"""Values of the option unsent_changes, for changes of rows that the publisher does not send.
``error``: treat them as ``schema_change`` says. KEEP: leave the rows here as they are, and log
that."""
FOLLOWING: Final = (FOLLOW, WIDEN)
"""Values of schema_change with which no change is an error."""


EMPTY: Final = "empty"
APPEND: Final = "append"
REPLACE: Final = "replace"
COPY_TARGETS: Final = (EMPTY, APPEND, REPLACE)
"""Values of the option copy_target, for a copy into a target that has rows: EMPTY refuses it,
APPEND adds to the rows as PostgreSQL's COPY does, REPLACE replaces the rows."""


VERIFY_RATE: Final = 2 << 20
"""Bytes a second: some thousandths of the rate at which one core of the publisher sends a COPY."""


class TwoPhaseState(enum.Enum):
    """subtwophasestate: the state of receiving prepared transactions as such
    (LOGICALREP_TWOPHASE_*).

    It is PENDING until every table is ready: a copy lacks transactions that were prepared before.
    """

    DISABLED = "d"
    PENDING = "p"
    ENABLED = "e"


_APP_ID_PREFIX: Final = "penstock-"
_APP_ID: Final = re.compile(rf"{_APP_ID_PREFIX}[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}")


def is_app_id(text: str) -> bool:
    """Return whether a text is the appId of a subscription, of this node or another node. Other
    programs' appIds may begin with the same words."""
    return _APP_ID.fullmatch(text) is not None


def origin_name(subscription: int) -> str:
    """Return the name that PostgreSQL's subscriber gives to a subscription's replication origin
    (ReplicationOriginNameForLogicalRep)."""
    return f"pg_{subscription}"


def _publisher_columns() -> tuple[Column[Any], ...]:
    return (
        Column("subsysid", String),
        Column("subtimeline", Integer),
        Column("subdbid", BigInteger),
        Column("substandby", Boolean),
    )


_PUBLISHER: Final = ColumnForm(
    attrgetter("system_id", "timeline", "database_oid", "standby"),
    lambda system_id, timeline, oid, standby: PublisherIdentity(
        system_id, timeline, oid, bool(standby)
    ),
)
_HISTORY: Final = ColumnForm(
    lambda choice: (choice.every, str(choice) if choice.names else None),
    lambda every, names: read_choice("history", names or every),
)
_SET: Final = ColumnForm(
    lambda ids: json.dumps(sorted(ids)), lambda text: frozenset(json.loads(text))
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeOptions:
    """Options that PostgreSQL does not have. pg_stat_lake_subscription shows them.

    ``on_table_error``: ``stop`` or ``park``. ``schema_change``, ``unsent_changes``,
    ``conflict_resolution``, ``out_of_range``, ``jsonb_as``, ``copy_target``: one of SCHEMA_CHANGES,
    UNSENT_CHANGES, CONFLICT_RESOLUTIONS, OUT_OF_RANGE, JSONB_AS, COPY_TARGETS. ``history``: the
    tables that have a history. ``messages``: messages that sessions emit are received.
    ``metadata_columns``: rows name the change that wrote them. ``soft_delete``: rows that the
    publisher deletes stay, marked as deleted. ``partition_by``, ``cluster_by``: as written.
    ``verify_interval``: seconds between comparisons with the publisher, 0: never; ``verify_rate``:
    bytes of the publisher's tables that a comparison reads in a second.
    """

    on_table_error: Annotated[str, Column("subontableerror", String(5))] = "stop"
    schema_change: Annotated[str, Column("subschemachange", String(6))] = ADD
    unsent_changes: Annotated[str, Column("subunsentchanges", String(5))] = "error"
    history: Annotated[
        TableChoice, (Column("subhistory", Boolean), Column("subhistorytables", Text)), _HISTORY
    ] = NONE
    messages: Annotated[bool, Column("submessages", Boolean)] = False
    metadata_columns: Annotated[bool, Column("submetadata", Boolean)] = False
    conflict_resolution: Annotated[str, Column("subconflictresolution", String)] = "error"
    out_of_range: Annotated[str, Column("suboutofrange", String(5))] = "error"
    soft_delete: Annotated[bool, Column("subsoftdelete", Boolean)] = False
    partition_by: Annotated[str, Column("subpartitionby", String)] = ""
    cluster_by: Annotated[str, Column("subclusterby", String)] = ""
    jsonb_as: Annotated[str, Column("subjsonbas", String)] = "text"
    verify_interval: Annotated[int, Column("subverifyinterval", BigInteger)] = field(
        default=0, compare=False
    )
    verify_rate: Annotated[int, Column("subverifyrate", BigInteger)] = field(
        default=VERIFY_RATE, compare=False
    )
    copy_target: Annotated[str, Column("subcopytarget", String(7))] = EMPTY


DEFAULTS: Final = LakeOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionOptions(LakeOptions):
    """Options that the row keeps as they are, under their own names.

    ``streaming``: ``off``, ``on`` or ``parallel``. ``origin``: ``any`` or ``none``, as it was
    written. ``failover``: of the slot. ``password_required`` and ``run_as_owner`` are kept and
    shown, but have no effect on a node.
    """

    binary: Annotated[bool, Column("subbinary", Boolean, nullable=False)] = False
    synchronous_commit: Annotated[str, Column("subsynccommit", String, nullable=False)] = "off"
    streaming: Annotated[str, Column("substream", String(8)), Null("off")] = "parallel"
    disable_on_error: Annotated[bool, Column("subdisableonerr", Boolean)] = False
    origin: Annotated[str, Column("suborigin", Text)] = "any"
    failover: Annotated[bool, Column("subfailover", Boolean)] = field(default=False, compare=False)
    password_required: Annotated[bool, Column("subpasswordrequired", Boolean)] = field(
        default=True, compare=False
    )
    run_as_owner: Annotated[bool, Column("subrunasowner", Boolean)] = field(
        default=False, compare=False
    )

    @property
    def own_changes_only(self) -> bool:
        """Return whether it takes only changes that its publisher has made itself."""
        return self.origin.lower() == "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription(SubscriptionOptions):
    """One subscription. Two are equal if a worker would do the same for both.

    Identity: ``slot_name`` None is NONE. ``app_id``: the appId of its transaction markers in Delta
    logs, never used again. ``owner``: a role's oid, None for the node itself. ``publisher``: the
    server that it follows, known since CREATE or the first connection. ``upgraded``: where in the
    WAL it continued after the last pg_upgrade, if SET (system_identifier) has reported one.

    State: ``stopped``: its worker has ended with an error that no retry can heal, and only ENABLE
    starts it again. ``stopped_by``: the sync id of the table in which that error occurred. With
    ``disable_on_error`` an error disables the subscription, which is then ``stopped`` and not
    ``enabled``. ``dropping``: DROP SUBSCRIPTION waits for the slot. ``skip_lsn``: the finish LSN of
    a transaction to be skipped; the running worker reads and clears it. ``skipping_lsn``: the
    finish LSN of the transaction that the worker has begun to skip (``subscription.apply_error``).
    ``origin_lsn``: the LSN to which its origin was set; INVALID: the last cut's LSN counts.
    """

    oid: Annotated[int, Column("oid", BigInteger, primary_key=True, autoincrement=False)]
    name: Annotated[str, Column("subname", String(64), nullable=False, unique=True)]
    enabled: Annotated[bool, Column("subenabled", Boolean, nullable=False)]
    conninfo: Annotated[str, Column("subconninfo", Text, nullable=False)] = field(repr=False)
    slot_name: Annotated[str | None, Column("subslotname", String(64))]
    publications: Annotated[tuple[str, ...], Column("subpublications", Text, nullable=False), LIST]
    app_id: Annotated[str, Column("subappid", String, nullable=False, unique=True)]
    stopped: Annotated[bool, Column("substopped", Boolean, nullable=False)] = field(
        default=False, compare=False
    )
    dropping: Annotated[bool, Column("subdropping", Boolean, nullable=False)] = field(
        default=False, compare=False
    )
    error: Annotated[RecordedError | None, error_columns("sub"), ERROR] = field(
        default=None, compare=False
    )
    publisher: Annotated[PublisherIdentity | None, _publisher_columns(), _PUBLISHER] = field(
        default=None, compare=False
    )
    stopped_by: Annotated[str | None, Column("suberrorsyncid", String(36))] = field(
        default=None, compare=False
    )
    two_phase_state: Annotated[
        TwoPhaseState, Column("subtwophasestate", String(1)), enum_form(TwoPhaseState)
    ] = field(default=TwoPhaseState.DISABLED, compare=False)
    skip_lsn: Annotated[Lsn, Column("subskiplsn", LsnColumn)] = field(
        default=INVALID, compare=False
    )
    skipping_lsn: Annotated[Lsn, Column("subskippinglsn", LsnColumn)] = field(
        default=INVALID, compare=False
    )
    owner: Annotated[int | None, Column("subowner", BigInteger)] = field(
        default=None, compare=False
    )
    origin_lsn: Annotated[Lsn, Column("suboriginlsn", LsnColumn)] = field(
        default=INVALID, compare=False
    )
    upgraded: Annotated[
        PublisherUpgrade | None,
        (Column("subupgradedlsn", LsnColumn), Column("subupgradedxid", BigInteger)),
        ColumnForm(attrgetter("lsn", "xid"), PublisherUpgrade),
    ] = None

    def healed(self) -> Subscription:
        """Return the subscription without its recorded error; a node then tries again."""
        return replace(self, stopped=False, error=None, stopped_by=None)

    def followed_as(self, other: Subscription) -> bool:
        """Return whether a worker that was started for ``other`` may continue. If the subscription
        was disabled, the worker ends after its current cut."""
        return replace(self, enabled=other.enabled) == other

    @property
    def origin_id(self) -> int:
        """The id of its replication origin (RepOriginId has 16 bits)."""
        return self.oid & 0xFFFF

    @property
    def origin_name(self) -> str:
        """The name of its replication origin."""
        return origin_name(self.oid)

    @property
    def should_run(self) -> bool:
        """Return whether a node should run a worker for it."""
        return (
            self.enabled and not self.stopped and not self.dropping and self.slot_name is not None
        )


def being_dropped(subscription: Subscription) -> ObjectInUse:
    """Return the error for one whose DROP SUBSCRIPTION has begun."""
    name = quote_identifier(subscription.name)
    return ObjectInUse(
        f'subscription "{subscription.name}" is being dropped',
        hint=f"If that was interrupted, finish it: DROP SUBSCRIPTION {name}.",
    )


@dataclass(frozen=True, slots=True)
class DroppedSubscription:
    """A subscription that was dropped, with the facts that a later one with the same tables needs:
    the dropped one's markers stay in the Delta logs, and its cuts may be removed.

    ``publisher``: the server that it followed; ``cut_lsn``, ``cut_tables``: its last cut, with the
    ids of the Delta tables in it.
    """

    app_id: Annotated[str, Column("subappid", String, primary_key=True)]
    name: Annotated[str, Column("subname", String(64), nullable=False)]
    publisher: Annotated[PublisherIdentity | None, _publisher_columns(), _PUBLISHER]
    cut_lsn: Annotated[Lsn, Column("subcutlsn", LsnColumn)] = INVALID
    cut_tables: Annotated[frozenset[str], Column("subcuttables", Text), _SET] = frozenset()

    def position(self, table_id: str, marker: int | None) -> Lsn | None:
        """Return the LSN up to which a table has the subscription's changes; None if it never had
        any. ``marker``: the LSN that its app id has in the table's Delta log."""
        cut = self.cut_lsn if table_id in self.cut_tables else INVALID
        return Lsn(max(marker or INVALID, cut)) or None


_TABLE: Final = StoredTable("penstock_subscription", Subscription)
_DROPPED: Final = StoredTable("penstock_dropped_subscription", DroppedSubscription)


class PgSubscription(TableAccess):
    """The table, within one transaction."""

    def all(self) -> tuple[Subscription, ...]:
        """Return every subscription in the order of creation."""
        return _TABLE.all(self.connection)

    def find(self, name: str) -> Subscription | None:
        """Return the subscription of that name, or None."""
        return _TABLE.find(self.connection, _TABLE.c.subname == name)

    def get(self, name: str) -> Subscription:
        """Return the subscription of that name. Raises UndefinedObject (42704)."""
        found = self.find(name)
        if found is None:
            raise UndefinedObject(f'subscription "{name}" does not exist')
        return found

    def find_oid(self, oid: int) -> Subscription | None:
        """Return the subscription with that oid, or None."""
        return _TABLE.find(self.connection, _TABLE.c.oid == oid)

    def create(
        self,
        name: str,
        *,
        conninfo: str,
        publications: Sequence[str],
        slot_name: str | None,
        enabled: bool = True,
        app_id: str | None = None,
        **options: Any,
    ) -> Subscription:
        """Insert a subscription. ``app_id``: of one that is made again; None: a new one.
        ``options``: further fields of ``Subscription``. Raises DuplicateObject (42710)."""
        if self.find(name) is not None:
            raise DuplicateObject(f'subscription "{name}" already exists')
        subscription = Subscription(
            oid=pg_control.new_oid(self.connection),
            name=name,
            enabled=enabled,
            conninfo=conninfo,
            slot_name=slot_name,
            publications=tuple(publications),
            app_id=app_id or f"{_APP_ID_PREFIX}{uuid.uuid4()}",
            **options,
        )
        _TABLE.insert(self.connection, subscription)
        return subscription

    def save(self, subscription: Subscription) -> None:
        """Write a changed row back (same oid); no effect when it is gone."""
        _TABLE.update(self.connection, subscription)

    def delete(self, oid: int, cut_lsn: Lsn = INVALID, cut_tables: Collection[str] = ()) -> None:
        """Remove a subscription, and keep the facts that ``dropped`` returns. Its tables are left
        to ``PgSubscriptionRel.delete_all``."""
        found = self.find_oid(oid)
        if found is None:
            return
        _TABLE.delete(self.connection, _TABLE.c.oid == oid)
        _DROPPED.insert(
            self.connection,
            DroppedSubscription(
                found.app_id, found.name, found.publisher, cut_lsn, frozenset(cut_tables)
            ),
        )

    def dropped(self) -> tuple[DroppedSubscription, ...]:
        """Return the subscriptions that were dropped."""
        return _DROPPED.all(self.connection)


# Requests for cuts at given LSNs: ``penstock verify`` asks a running worker for them. While a row
# exists, the subscription's worker makes no batch that reaches beyond the row's LSN, and makes a
# cut there. The requester removes the row. A worker removes a row that has held it up for too long,
# because the requester may have been killed. PostgreSQL needs no such requests: its tables can be
# read at the snapshot of any moment.


@dataclass(frozen=True, slots=True)
class CutRequest:
    """A request for a cut at ``lsn``, which may advance. ``id`` names the requester, ``subid`` the
    subscription."""

    id: Annotated[str, Column("id", String(36), primary_key=True)]
    subid: Annotated[int, Column("subid", BigInteger, nullable=False)]
    lsn: Annotated[Lsn, Column("lsn", LsnColumn, nullable=False)]


_CUT_REQUESTS: Final = StoredTable("penstock_cut_request", CutRequest)


class CutRequests(TableAccess):
    """The table, within one transaction."""

    def all(self, subid: int) -> tuple[CutRequest, ...]:
        """Return the requests for one subscription."""
        return _CUT_REQUESTS.all(self.connection, _CUT_REQUESTS.c.subid == subid)

    def ask(self, subid: int, lsn: Lsn, own: str | None = None) -> CutRequest:
        """Insert a request. ``own``: its id; it replaces a request with this id left by a crash."""
        request = CutRequest(own or str(uuid.uuid4()), subid, lsn)
        self.forget(request.id)
        _CUT_REQUESTS.insert(self.connection, request)
        return request

    def move(self, request_id: str, lsn: Lsn) -> bool:
        """Move a request to another LSN. Return False if it is gone: the worker no longer waits for
        it."""
        change = (
            _CUT_REQUESTS.table.update().where(_CUT_REQUESTS.c.id == request_id).values(lsn=lsn)
        )
        return self.connection.execute(change).rowcount == 1

    def forget(self, request_id: str) -> None:
        """Delete a request; no effect when it is gone."""
        _CUT_REQUESTS.delete(self.connection, _CUT_REQUESTS.c.id == request_id)

    def forget_all(self, subid: int) -> None:
        """Delete the requests for a subscription that is dropped."""
        _CUT_REQUESTS.delete(self.connection, _CUT_REQUESTS.c.subid == subid)
