"""Which tables of the node a subscription may fill (execReplication.c, CheckSubscriptionRelkind).

In: the published tables. Out: nothing, or an error. Tables that are not there are made when they
are copied.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.catalog import CatalogTransaction
from penstock.errors import FeatureNotSupported


def check_targets(transaction: CatalogTransaction, tables: Iterable[tuple[str, str]]) -> None:
    """``tables``: (schema, table). Raises FeatureNotSupported: one is partitioned on the node, or
    its name has another folder than it would get."""
    for schema, name in tables:
        _check_folder(transaction, schema, name)
        found = transaction.tables.find(schema, name)
        if found is not None and found.partition_key is not None:
            raise FeatureNotSupported(
                f'cannot use relation "{schema}.{name}" as logical replication target',
                detail="It is a partitioned table of this node.",
                hint="Publish its partitions (publish_via_partition_root = false), or drop the "
                "table here: the subscription then makes a plain one.",
            )


def _check_folder(transaction: CatalogTransaction, schema: str, name: str) -> None:
    """Tables of a subscription lie in the folders of their names."""
    found = transaction.tables.find(schema, name)
    other = transaction.tables.in_folder_of(schema, name)
    if other is not None or (found is not None and found.folder_of is not None):
        moved = other or found
        assert moved is not None
        raise FeatureNotSupported(
            f'cannot use relation "{schema}.{name}" as logical replication target',
            detail=f'ALTER TABLE ... SET SCHEMA has moved table "{moved.qualified_name}" on this '
            "node.",
            hint="Move it back, or drop it.",
        )
