"""Subscriptions (pg_subscription.h).

In: a connection inside a transaction. Out: frozen ``Subscription`` rows. Column names are
PostgreSQL's; ``subappid`` and the columns after it are ours. Checks of options and names belong to
``penstock.commands``.
"""

from __future__ import annotations

import enum
import json
import re
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Integer,
    RowMapping,
    String,
    Table,
    Text,
    select,
)

from penstock.catalog import pg_control
from penstock.catalog.metadata import (
    METADATA,
    LsnColumn,
    RecordedError,
    error_columns,
    error_of,
    error_values,
)
from penstock.catalog.publisher_identity import PublisherIdentity, PublisherUpgrade
from penstock.catalog.table_choice import NONE, TableChoice, read_choice
from penstock.errors import DuplicateObject, UndefinedObject
from penstock.lsn import INVALID, Lsn

_TABLE = Table(
    "penstock_subscription",
    METADATA,
    Column("oid", BigInteger, primary_key=True, autoincrement=False),
    Column("subname", String(64), nullable=False, unique=True),
    Column("subenabled", Boolean, nullable=False),
    Column("subbinary", Boolean, nullable=False),
    Column("subconninfo", Text, nullable=False),
    Column("subslotname", String(64)),
    Column("subsynccommit", String, nullable=False),
    Column("subpublications", Text, nullable=False),
    Column("subappid", String, nullable=False, unique=True),
    Column("substopped", Boolean, nullable=False),
    Column("subdropping", Boolean, nullable=False),
    *error_columns("sub"),
    Column("subsysid", String),
    Column("subtimeline", Integer),
    Column("subdbid", BigInteger),
    Column("subontableerror", String(5)),
    Column("suberrorsyncid", String(36)),
    Column("substream", String(8)),
    Column("subtwophasestate", String(1)),
    Column("subdisableonerr", Boolean),
    Column("subskiplsn", LsnColumn),
    Column("subskippinglsn", LsnColumn),
    Column("suborigin", Text),
    Column("subfailover", Boolean),
    Column("subpasswordrequired", Boolean),
    Column("subrunasowner", Boolean),
    Column("subschemachange", String(6)),
    Column("subhistory", Boolean),
    Column("subhistorytables", Text),
    Column("submessages", Boolean),
    Column("submetadata", Boolean),
    Column("subconflictresolution", String),
    Column("suboutofrange", String(5)),
    Column("subsoftdelete", Boolean),
    Column("subpartitionby", String),
    Column("subclusterby", String),
    Column("subowner", BigInteger),
    Column("suboriginlsn", LsnColumn),
    Column("subjsonbas", String),
    Column("subverifyinterval", BigInteger),
    Column("subverifyrate", BigInteger),
    Column("substandby", Boolean),
    Column("subunsentchanges", String(5)),
    Column("subupgradedlsn", LsnColumn),
    Column("subupgradedxid", BigInteger),
    Column("subcopytarget", String(7)),
)

_DROPPED = Table(
    "penstock_dropped_subscription",
    METADATA,
    Column("subappid", String, primary_key=True),
    Column("subname", String(64), nullable=False),
    Column("subsysid", String),
    Column("subtimeline", Integer),
    Column("subdbid", BigInteger),
    Column("substandby", Boolean),
    Column("subcutlsn", LsnColumn),
    Column("subcuttables", Text),
)
"""Facts about dropped subscriptions that a later one over the same tables needs: the markers of the
dropped one stay in the tables' logs, and its cuts may be removed."""


ADD: Final = "add"
STOP: Final = "stop"
FOLLOW: Final = "follow"
WIDEN: Final = "widen"
SCHEMA_CHANGES: Final = (ADD, STOP, FOLLOW, WIDEN)
"""Values of the option schema_change. ADD adds columns that the publisher adds; any other change
that does not fit stops. STOP: every change stops. FOLLOW: as ADD, but for the other changes the
table is copied again. WIDEN: as FOLLOW, but a type that only became wider needs no copy."""
KEEP: Final = "keep"
UNSENT_CHANGES: Final = ("error", KEEP)
"""Values of the option unsent_changes, for changes of rows that the publisher does not send.
``error``: treat them as ``schema_change`` says. KEEP: leave the rows here as they are, and say so
in the log."""
FOLLOWING: Final = (FOLLOW, WIDEN)
"""Values of schema_change with which no change stops."""


EMPTY: Final = "empty"
APPEND: Final = "append"
REPLACE: Final = "replace"
COPY_TARGETS: Final = (EMPTY, APPEND, REPLACE)
"""Values of the option copy_target, for a copy into a target that has rows: it is refused, adds to
the rows as PostgreSQL's COPY does, or replaces them."""


VERIFY_RATE: Final = 2 << 20
"""Bytes a second: some thousandths of the rate at which one core of the publisher sends a COPY."""


class TwoPhaseState(enum.Enum):
    """subtwophasestate: whether prepared transactions are received as such (LOGICALREP_TWOPHASE_*).

    It is PENDING until every table is ready, because a table's copy lacks the transactions that
    were prepared before it.
    """

    DISABLED = "d"
    PENDING = "p"
    ENABLED = "e"


_APP_ID_PREFIX: Final = "penstock-"
_APP_ID: Final = re.compile(rf"{_APP_ID_PREFIX}[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}")


def is_app_id(text: str) -> bool:
    """Tell whether a text is the appId of a subscription, of this node or another. Other programs'
    appIds may begin alike."""
    return _APP_ID.fullmatch(text) is not None


def origin_name(subscription: int) -> str:
    """Return the name that PostgreSQL's subscriber gives to a subscription's replication origin
    (ReplicationOriginNameForLogicalRep)."""
    return f"pg_{subscription}"


@dataclass(frozen=True, slots=True)
class Subscription:
    """One subscription. Two are equal when a worker would do the same for both.

    Identity: ``slot_name`` None is NONE. ``app_id``: the appId of its transaction markers in Delta
    logs, never used again. ``owner``: a role's oid, None for the node itself. ``publisher``: the
    server that it follows, known since CREATE or the first connection. ``upgraded``: the position
    at which it went on after the last pg_upgrade that it was told of.

    State: ``stopped``: its worker has ended with an error that no retry can heal, and only ENABLE
    starts it again. ``stopped_by``: the sync id of the table in which that error occurred. An error
    disables the subscription where ``disable_on_error`` is set; it is then both ``stopped`` and not
    ``enabled``. ``dropping``: DROP SUBSCRIPTION waits for the slot. ``skip_lsn``: the finish LSN of
    a transaction to be skipped, which the worker reads and clears while it runs. ``skipping_lsn``:
    that of the transaction that it has begun to skip (``subscription.apply_error``).
    ``origin_lsn``: the position to which its origin was set; INVALID: the last cut's position.

    Options: ``on_table_error``: ``stop`` or ``park``. ``streaming``: ``off``, ``on`` or
    ``parallel``. ``origin``: ``any`` or ``none``, as it was written. ``failover``: its slot's.
    ``schema_change``, ``unsent_changes``, ``conflict_resolution``, ``out_of_range``, ``jsonb_as``,
    ``copy_target``: one of SCHEMA_CHANGES, UNSENT_CHANGES, CONFLICT_RESOLUTIONS, OUT_OF_RANGE,
    JSONB_AS, COPY_TARGETS. ``history``: the tables that have one. ``messages``: it receives the
    messages that sessions emit. ``metadata_columns``: rows tell which change wrote them.
    ``soft_delete``: rows that the publisher deletes stay. ``partition_by``, ``cluster_by``: as they
    were written. ``verify_interval``: seconds between comparisons with the publisher, 0: never;
    ``verify_rate``: bytes of the publisher's tables that they read a second. ``password_required``
    and ``run_as_owner`` are kept and shown, but have no effect on a node.
    """

    oid: int
    name: str
    enabled: bool
    binary: bool
    conninfo: str = field(repr=False)
    slot_name: str | None
    synchronous_commit: str
    publications: tuple[str, ...]
    app_id: str
    on_table_error: str = "stop"
    streaming: str = "parallel"
    disable_on_error: bool = False
    origin: str = "any"
    stopped: bool = field(default=False, compare=False)
    dropping: bool = field(default=False, compare=False)
    error: RecordedError | None = field(default=None, compare=False)
    publisher: PublisherIdentity | None = field(default=None, compare=False)
    upgraded: PublisherUpgrade | None = None
    stopped_by: str | None = field(default=None, compare=False)
    two_phase_state: TwoPhaseState = field(default=TwoPhaseState.DISABLED, compare=False)
    skip_lsn: Lsn = field(default=INVALID, compare=False)
    skipping_lsn: Lsn = field(default=INVALID, compare=False)
    failover: bool = field(default=False, compare=False)
    password_required: bool = field(default=True, compare=False)
    run_as_owner: bool = field(default=False, compare=False)
    schema_change: str = ADD
    unsent_changes: str = "error"
    history: TableChoice = NONE
    messages: bool = False
    metadata_columns: bool = False
    conflict_resolution: str = "error"
    out_of_range: str = "error"
    soft_delete: bool = False
    partition_by: str = ""
    cluster_by: str = ""
    jsonb_as: str = "text"
    owner: int | None = field(default=None, compare=False)
    origin_lsn: Lsn = field(default=INVALID, compare=False)
    verify_interval: int = field(default=0, compare=False)
    verify_rate: int = field(default=VERIFY_RATE, compare=False)
    copy_target: str = EMPTY

    @property
    def own_changes_only(self) -> bool:
        """Tell whether it refuses changes that its publisher has received from elsewhere."""
        return self.origin.lower() == "none"

    def healed(self) -> Subscription:
        """Return the subscription without its recorded error, so that a node tries again."""
        return replace(self, stopped=False, error=None, stopped_by=None)

    def followed_as(self, other: Subscription) -> bool:
        """Tell whether a worker that was started for ``other`` may go on. One whose subscription
        was disabled ends after its current cut."""
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
        """Tell whether a node should run a worker for it."""
        return (
            self.enabled and not self.stopped and not self.dropping and self.slot_name is not None
        )


@dataclass(frozen=True, slots=True)
class DroppedSubscription:
    """A subscription that was dropped. ``publisher``: the server that it followed; ``cut_lsn``,
    ``cut_tables``: its last cut, with the ids of the Delta tables in it."""

    app_id: str
    name: str
    publisher: PublisherIdentity | None
    cut_lsn: Lsn = INVALID
    cut_tables: frozenset[str] = frozenset()

    def position(self, table_id: str, marker: int | None) -> Lsn | None:
        """Return the position up to which a table has its changes; None if it never had any.
        ``marker``: the position that its app id has in the table's log."""
        cut = self.cut_lsn if table_id in self.cut_tables else INVALID
        return Lsn(max(marker or INVALID, cut)) or None


class PgSubscription:
    """The table, within one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def all(self) -> tuple[Subscription, ...]:
        """Return every subscription in the order of creation."""
        rows = self._connection.execute(select(_TABLE).order_by(_TABLE.c.oid))
        return tuple(_subscription(row) for row in rows.mappings())

    def find(self, name: str) -> Subscription | None:
        """Return the subscription of that name, or None."""
        row = self._connection.execute(select(_TABLE).where(_TABLE.c.subname == name))
        found = row.mappings().one_or_none()
        return None if found is None else _subscription(found)

    def get(self, name: str) -> Subscription:
        """Return the subscription of that name. Raises UndefinedObject (42704)."""
        found = self.find(name)
        if found is None:
            raise UndefinedObject(f'subscription "{name}" does not exist')
        return found

    def find_oid(self, oid: int) -> Subscription | None:
        """Return the subscription with that oid, or None."""
        row = self._connection.execute(select(_TABLE).where(_TABLE.c.oid == oid))
        found = row.mappings().one_or_none()
        return None if found is None else _subscription(found)

    def create(
        self,
        name: str,
        *,
        conninfo: str,
        publications: Sequence[str],
        slot_name: str | None,
        enabled: bool = True,
        binary: bool = False,
        synchronous_commit: str = "off",
        **options: Any,
    ) -> Subscription:
        """Insert a subscription. ``options``: further fields of ``Subscription``. Raises
        DuplicateObject (42710)."""
        if self.find(name) is not None:
            raise DuplicateObject(f'subscription "{name}" already exists')
        subscription = Subscription(
            oid=pg_control.new_oid(self._connection),
            name=name,
            enabled=enabled,
            binary=binary,
            conninfo=conninfo,
            slot_name=slot_name,
            synchronous_commit=synchronous_commit,
            publications=tuple(publications),
            app_id=f"{_APP_ID_PREFIX}{uuid.uuid4()}",
            **options,
        )
        self._connection.execute(_TABLE.insert().values(**_values(subscription)))
        return subscription

    def save(self, subscription: Subscription) -> None:
        """Write a changed row back (same oid); no effect when it is gone."""
        self._connection.execute(
            _TABLE.update().where(_TABLE.c.oid == subscription.oid).values(**_values(subscription))
        )

    def delete(self, oid: int, cut_lsn: Lsn = INVALID, cut_tables: Collection[str] = ()) -> None:
        """Remove a subscription, and keep the facts that ``dropped`` returns. Its tables are left
        to ``PgSubscriptionRel.delete_all``."""
        found = self.find_oid(oid)
        if found is None:
            return
        publisher = found.publisher
        self._connection.execute(_TABLE.delete().where(_TABLE.c.oid == oid))
        self._connection.execute(
            _DROPPED.insert().values(
                subappid=found.app_id,
                subname=found.name,
                subsysid=publisher and publisher.system_id,
                subtimeline=publisher and publisher.timeline,
                subdbid=publisher and publisher.database_oid,
                substandby=publisher and publisher.standby,
                subcutlsn=cut_lsn,
                subcuttables=json.dumps(sorted(cut_tables)),
            )
        )

    def dropped(self) -> tuple[DroppedSubscription, ...]:
        """Return the subscriptions that were dropped."""
        rows = self._connection.execute(select(_DROPPED).order_by(_DROPPED.c.subappid))
        return tuple(
            DroppedSubscription(
                app_id=row["subappid"],
                name=row["subname"],
                publisher=_publisher(row),
                cut_lsn=row["subcutlsn"] or INVALID,
                cut_tables=frozenset(json.loads(row["subcuttables"] or "[]")),
            )
            for row in rows.mappings()
        )


def _values(subscription: Subscription) -> dict[str, Any]:
    publisher = subscription.publisher
    return {
        "oid": subscription.oid,
        "subname": subscription.name,
        "subenabled": subscription.enabled,
        "subbinary": subscription.binary,
        "subconninfo": subscription.conninfo,
        "subslotname": subscription.slot_name,
        "subsynccommit": subscription.synchronous_commit,
        "subpublications": json.dumps(subscription.publications, ensure_ascii=False),
        "subappid": subscription.app_id,
        "substopped": subscription.stopped,
        "subdropping": subscription.dropping,
        **error_values("sub", subscription.error),
        "subsysid": publisher and publisher.system_id,
        "subtimeline": publisher and publisher.timeline,
        "subdbid": publisher and publisher.database_oid,
        "substandby": publisher and publisher.standby,
        "subupgradedlsn": subscription.upgraded and subscription.upgraded.lsn,
        "subupgradedxid": subscription.upgraded and subscription.upgraded.xid,
        "subontableerror": subscription.on_table_error,
        "suberrorsyncid": subscription.stopped_by,
        "substream": subscription.streaming,
        "subtwophasestate": subscription.two_phase_state.value,
        "subdisableonerr": subscription.disable_on_error,
        "subskiplsn": subscription.skip_lsn,
        "subskippinglsn": subscription.skipping_lsn,
        "suborigin": subscription.origin,
        "subfailover": subscription.failover,
        "subpasswordrequired": subscription.password_required,
        "subrunasowner": subscription.run_as_owner,
        "subschemachange": subscription.schema_change,
        "subunsentchanges": subscription.unsent_changes,
        "subhistory": subscription.history.every,
        "subhistorytables": str(subscription.history) if subscription.history.names else None,
        "submessages": subscription.messages,
        "submetadata": subscription.metadata_columns,
        "subconflictresolution": subscription.conflict_resolution,
        "suboutofrange": subscription.out_of_range,
        "subsoftdelete": subscription.soft_delete,
        "subpartitionby": subscription.partition_by,
        "subclusterby": subscription.cluster_by,
        "subowner": subscription.owner,
        "suboriginlsn": subscription.origin_lsn,
        "subjsonbas": subscription.jsonb_as,
        "subverifyinterval": subscription.verify_interval,
        "subverifyrate": subscription.verify_rate,
        "subcopytarget": subscription.copy_target,
    }


def _publisher(row: RowMapping) -> PublisherIdentity | None:
    if row["subsysid"] is None:
        return None
    return PublisherIdentity(
        row["subsysid"], row["subtimeline"], row["subdbid"], bool(row["substandby"])
    )


def _upgraded(row: RowMapping) -> PublisherUpgrade | None:
    if row["subupgradedlsn"] is None:
        return None
    return PublisherUpgrade(row["subupgradedlsn"], row["subupgradedxid"])


def _subscription(row: RowMapping) -> Subscription:
    return Subscription(
        oid=row["oid"],
        name=row["subname"],
        enabled=row["subenabled"],
        binary=row["subbinary"],
        conninfo=row["subconninfo"],
        slot_name=row["subslotname"],
        synchronous_commit=row["subsynccommit"],
        publications=tuple(json.loads(row["subpublications"])),
        app_id=row["subappid"],
        on_table_error=row["subontableerror"] or "stop",
        stopped=row["substopped"],
        dropping=row["subdropping"],
        error=error_of("sub", row),
        publisher=_publisher(row),
        upgraded=_upgraded(row),
        stopped_by=row["suberrorsyncid"],
        streaming=row["substream"] or "off",
        two_phase_state=TwoPhaseState(row["subtwophasestate"] or "d"),
        disable_on_error=bool(row["subdisableonerr"]),
        skip_lsn=row["subskiplsn"] or INVALID,
        skipping_lsn=row["subskippinglsn"] or INVALID,
        origin=row["suborigin"] or "any",
        failover=bool(row["subfailover"]),
        password_required=row["subpasswordrequired"] is not False,
        run_as_owner=bool(row["subrunasowner"]),
        schema_change=row["subschemachange"] or ADD,
        unsent_changes=row["subunsentchanges"] or "error",
        history=read_choice("history", row["subhistorytables"] or bool(row["subhistory"])),
        messages=bool(row["submessages"]),
        metadata_columns=bool(row["submetadata"]),
        conflict_resolution=row["subconflictresolution"] or "error",
        out_of_range=row["suboutofrange"] or "error",
        soft_delete=bool(row["subsoftdelete"]),
        partition_by=row["subpartitionby"] or "",
        cluster_by=row["subclusterby"] or "",
        owner=row["subowner"],
        origin_lsn=row["suboriginlsn"] or INVALID,
        jsonb_as=row["subjsonbas"] or "text",
        verify_interval=row["subverifyinterval"] or 0,
        verify_rate=row["subverifyrate"] or VERIFY_RATE,
        copy_target=row["subcopytarget"] or EMPTY,
    )
