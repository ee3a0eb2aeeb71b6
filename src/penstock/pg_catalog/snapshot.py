"""The contents of the node's catalogs at one moment, as values.

In: rows of ``penstock.catalog`` and columns of Delta tables. Out: frozen values for the builders of
PostgreSQL's catalogs. Nothing is looked up here.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from penstock.attribute import TupleDesc
from penstock.catalog.pg_authid import Role
from penstock.catalog.pg_class import LakeTable
from penstock.catalog.pg_publication import Publication, PublicationNamespace, PublicationRel
from penstock.catalog.pg_replication_slots import Slot
from penstock.catalog.pg_sequence import Sequence
from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel
from penstock.enum_type import EnumType
from penstock.lsn import INVALID, Lsn

NODE_OWNER: Final = 10
"""The oid of the role that owns objects without an owner (BOOTSTRAP_SUPERUSERID,
pg_authid.dat)."""


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A lake table with its columns; the default of a serial column is ``nextval(oid)``.

    ``size``: bytes of its data files, if known. ``unpublishable``: None, or the reason why it is
    only in publications that name it.
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

    ``owner``: the name of the role with oid 10, unless ``roles`` has one. ``schemas``: those that
    exist even without tables. ``views``: rows of system views that only the running node knows
    (pg_stat_replication, pg_stat_activity ...), by column name; columns left out are NULL.
    ``select_grants``: (table, role) of GRANT SELECT. ``current_lsn``: the end of the node's WAL.
    ``types``: the node's own.
    """

    database: str
    roles: tuple[Role, ...] = ()
    tables: tuple[CatalogTable, ...] = ()
    publications: tuple[Publication, ...] = ()
    publication_rels: tuple[PublicationRel, ...] = ()
    publication_namespaces: tuple[PublicationNamespace, ...] = ()
    subscriptions: tuple[Subscription, ...] = ()
    subscription_rels: tuple[SubscriptionRel, ...] = ()
    slots: tuple[Slot, ...] = ()
    schemas: tuple[str, ...] = ()
    views: Mapping[str, SequenceOf[Mapping[str, object]]] = field(default_factory=dict)
    owner: str = "penstock"
    database_oid: int = 5
    select_grants: frozenset[tuple[int, int]] = frozenset()
    current_lsn: Lsn = INVALID
    types: tuple[EnumType, ...] = ()
    sequences: tuple[Sequence, ...] = ()

    @cached_property
    def all_roles(self) -> tuple[Role, ...]:
        """The roles, including the node's own."""
        if any(role.oid == NODE_OWNER for role in self.roles):
            return self.roles
        own = Role(NODE_OWNER, self.owner, superuser=True, login=True, replication=True)
        return (own, *self.roles)

    @cached_property
    def table_by_oid(self) -> Mapping[int, CatalogTable]:
        """The tables by pg_class.oid."""
        return {table.oid: table for table in self.tables}
