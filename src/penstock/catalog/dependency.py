"""What goes with an object that is dropped (dependency.c).

In: a transaction of the catalog and what is dropped. Out: no row that names it. Delta tables are
left to whoever drops them.
"""

from __future__ import annotations

from penstock.catalog.catalog import CatalogTransaction
from penstock.catalog.pg_class import LakeTable


def delete_table(transaction: CatalogTransaction, table: LakeTable) -> None:
    """A table, with its grants, its place in publications and in the log of transactions."""
    for rel in transaction.publications.relations():
        if rel.relation == table.oid:
            transaction.publications.remove_relation(rel.publication, table.oid)
    transaction.roles.revoke_all(table.oid)
    transaction.transactions.forget(table.oid)
    transaction.tables.delete(table.oid)
