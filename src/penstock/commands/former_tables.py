"""What tables were when changes were made that are not sent yet (snapbuild.c).

In: tables as they were before a statement. Out: in the catalog, up to which version of its Delta
table each of them was that. A stream sends changes under the name, and by the replica identity,
that the table had then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.catalog import CatalogTransaction, LakeTable
from penstock.commands.namespace import warehouse_of
from penstock.commands.scope import CommandScope
from penstock.lakehouse.log import list_log


def keep_former(
    transaction: CatalogTransaction,
    scope: CommandScope,
    before: Iterable[LakeTable],
    committed: Mapping[int, int] | None = None,
) -> None:
    """After a statement, of the tables that it has changed. ``committed``: by oid, the version that
    the statement has put itself; of others it is the newest one. Raises StorageError."""
    known = committed or {}
    for table in before:
        if table.uri is None or transaction.tables.find_oid(table.oid) == table:
            continue
        version = known.get(table.oid)
        if version is None:
            version = list_log(warehouse_of(scope).storage, table.uri).newest
        if version is not None:
            transaction.tables.keep_former(table, version)
