"""All catalogs within one transaction of the state store.

In: a connection inside a transaction. Out: ``CatalogTransaction``, with the operations that concern
several catalogs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from penstock.catalog import pg_control
from penstock.catalog.block_commits import BlockCommits, BlockMessages
from penstock.catalog.cut_requests import CutRequests
from penstock.catalog.pg_authid import PgAuthid
from penstock.catalog.pg_class import LakeTable, PgClass
from penstock.catalog.pg_namespace import PgNamespace
from penstock.catalog.pg_prepared_xacts import PgPreparedXacts, PreparedBlocks
from penstock.catalog.pg_publication import PgPublication, Publication
from penstock.catalog.pg_replication_slots import PgReplicationSlots
from penstock.catalog.pg_sequence import PgSequence
from penstock.catalog.pg_subscription import PgSubscription
from penstock.catalog.pg_subscription_rel import PgSubscriptionRel
from penstock.catalog.pg_transactions import PgTransactions
from penstock.catalog.pg_type import PgType
from penstock.catalog.verifications import Verifications
from penstock.publication.members import Members


@dataclass(frozen=True, slots=True)
class CatalogTransaction:
    """All catalogs at one state."""

    subscriptions: PgSubscription
    relations: PgSubscriptionRel
    roles: PgAuthid
    tables: PgClass
    publications: PgPublication
    slots: PgReplicationSlots
    transactions: PgTransactions
    namespaces: PgNamespace
    types: PgType
    cut_requests: CutRequests
    verifications: Verifications
    prepared_xacts: PgPreparedXacts
    block_commits: BlockCommits
    sequences: PgSequence
    prepared_blocks: PreparedBlocks
    block_messages: BlockMessages

    def generation(self) -> int:
        """Return the change counter (``Catalog.generation``)."""
        return pg_control.generation(self.tables.connection)

    def members(
        self,
        publications: Sequence[Publication] | None = None,
        tables: Sequence[LakeTable] | None = None,
    ) -> Members:
        """Return the members of publications; None: of all publications, among all tables."""
        return Members(
            self.publications.all() if publications is None else publications,
            self.publications.relations(),
            self.publications.namespaces(),
            self.tables.all() if tables is None else tables,
        )

    def is_taken(self, schema: str, name: str) -> bool:
        """Tell whether a table, an index or a sequence of the schema has the name, or is about to
        get it."""
        tables = {table.oid: table for table in self.tables.all() if table.schema == schema}
        sequences = (s.name for s in self.sequences.all() if s.table in tables)
        known = name in sequences or any(name in table.own_names for table in tables.values())
        return known or self.block_commits.makes(schema, name)

    def delete_table(self, table: LakeTable) -> None:
        """Delete a table with its grants, its sequences, and its places in publications and in the
        log of transactions (dependency.c). The Delta table is left to the caller."""
        for rel in self.publications.relations():
            if rel.relation == table.oid:
                self.publications.remove_relation(rel.publication, table.oid)
        self.roles.revoke_all(table.oid)
        self.transactions.forget(table.oid)
        self.sequences.delete_of(table.oid)
        self.tables.delete(table.oid)


def catalog_transaction(connection: Connection) -> CatalogTransaction:
    """Return all catalogs over one connection."""
    return CatalogTransaction(
        PgSubscription(connection),
        PgSubscriptionRel(connection),
        PgAuthid(connection),
        PgClass(connection),
        PgPublication(connection),
        PgReplicationSlots(connection),
        PgTransactions(connection),
        PgNamespace(connection),
        PgType(connection),
        CutRequests(connection),
        Verifications(connection),
        PgPreparedXacts(connection),
        BlockCommits(connection),
        PgSequence(connection),
        PreparedBlocks(connection),
        BlockMessages(connection),
    )
