"""The contents of the node's catalogs at one moment, and facts of the asking session, as values.

This file looks nothing up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Final

from penstock.attribute import TupleDesc
from penstock.catalog import SessionSequences
from penstock.catalog.pg_authid import Role
from penstock.catalog.pg_class import LakeTable
from penstock.catalog.pg_publication import Publication, PublicationNamespace, PublicationRel
from penstock.catalog.pg_sequence import Sequence
from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel
from penstock.enum_type import EnumType
from penstock.lsn import INVALID, Lsn
from penstock.protocol.answers import Notice
from penstock.sql.builtin.search_path import read_search_path

NODE_OWNER: Final = 10
"""The oid of the role that owns objects without an owner (BOOTSTRAP_SUPERUSERID,
pg_authid.dat)."""

DATABASE_OWNER: Final = Role(6171, "pg_database_owner")
"""PostgreSQL's role that owns schema public."""


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A lake table with its columns; the default of a serial column is ``nextval(oid)``. ``size``:
    bytes of its data files, if known. ``unpublishable``: why FOR ALL TABLES and schema publications
    omit it, or None.
    """

    lake: LakeTable
    columns: TupleDesc
    size: int = 0
    unpublishable: str | None = None

    @property
    def oid(self) -> int:
        """The table's pg_class.oid."""
        return self.lake.oid


@dataclass(frozen=True)
class CatalogSnapshot:
    """All catalogs at one state.

    ``owner``: the name of the role with oid 10, unless ``roles`` has that role. ``schemas``: those
    that exist even without tables. ``views``: rows of system views that only the running node knows
    (pg_stat_replication, pg_stat_activity ...), by column name; columns left out are NULL.
    ``select_grants``: (table, role) of GRANT SELECT. ``current_lsn``: the end of the node's WAL.
    ``types``: the node's own types.
    """

    database: str
    roles: tuple[Role, ...] = ()
    tables: tuple[CatalogTable, ...] = ()
    publications: tuple[Publication, ...] = ()
    publication_rels: tuple[PublicationRel, ...] = ()
    publication_namespaces: tuple[PublicationNamespace, ...] = ()
    subscriptions: tuple[Subscription, ...] = ()
    subscription_rels: tuple[SubscriptionRel, ...] = ()
    schemas: tuple[str, ...] = ()
    views: Mapping[str, Iterable[Mapping[str, object]]] = field(default_factory=dict)
    owner: str = "penstock"
    database_oid: int = 5
    select_grants: frozenset[tuple[int, int]] = frozenset()
    current_lsn: Lsn = INVALID
    types: tuple[EnumType, ...] = ()
    sequences: tuple[Sequence, ...] = ()

    @cached_property
    def all_roles(self) -> tuple[Role, ...]:
        """The roles, including the node's own and PostgreSQL's."""
        if any(role.oid == NODE_OWNER for role in self.roles):
            return (*self.roles, DATABASE_OWNER)
        own = Role(NODE_OWNER, self.owner, superuser=True, login=True, replication=True)
        return (own, *self.roles, DATABASE_OWNER)

    @cached_property
    def table_by_oid(self) -> Mapping[int, CatalogTable]:
        """The tables by pg_class.oid."""
        return {table.oid: table for table in self.tables}


# Facts that a query can ask about its own session.

SetConfig = Callable[[str, str | None, bool], str]
"""A function that sets a setting: (name, value, is_local) -> the new value; None sets the default.
Raises PenstockError for a value that cannot be set."""


@dataclass(frozen=True)
class SessionFacts:
    """The session that asks. ``version``: the reported major version. ``settings``: current values
    by lower-case name; ``set_config``: changes settings; None: they cannot be set. ``user``: "" if
    the role is gone. ``notify``: tells the client a notice. ``cancelled``: tells whether the query
    must end. ``read_only``: the query may change nothing. ``wrote``: called if it commits anything.
    ``emit``: takes prefix and content of a message of the query's transaction block; None outside
    of blocks. ``check_no_writes``: raises 25001 if the transaction has written.
    ``export_snapshot``: exports the transaction's snapshot and returns its name. ``sequences``: the
    values that the session has taken. ``started``: the start of its transaction, in UTC;
    ``statement_started``: the start of its statement."""

    user: str
    database: str
    version: int
    settings: Mapping[str, str] = field(default_factory=dict)
    superuser: bool = False
    replication: bool = False
    pid: int = 0
    set_config: SetConfig | None = None
    role_oid: int = 0
    notify: Callable[[Notice], None] = lambda _: None
    cancelled: Callable[[], bool] = lambda: False
    read_only: bool = False
    wrote: Callable[[], None] = lambda: None
    emit: Callable[[str, bytes], None] | None = None
    check_no_writes: Callable[[], None] = lambda: None
    export_snapshot: Callable[[], str] | None = None
    sequences: SessionSequences = field(default_factory=SessionSequences)
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    statement_started: datetime = field(default_factory=lambda: datetime.now(UTC))

    def warn(self, message: str) -> None:
        """Warn the client."""
        self.notify(Notice("WARNING", message, sqlstate="01000"))

    @property
    def search_path(self) -> tuple[str, ...]:
        """The schemas in which unqualified names are looked up, with the user's name for
        ``$user``."""
        text = self.settings.get("search_path", '"$user", public')
        return read_search_path(text, self.user)
