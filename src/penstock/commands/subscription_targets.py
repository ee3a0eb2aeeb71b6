"""Which tables of the node a subscription may fill (execReplication.c, CheckSubscriptionRelkind).

In: the published tables. Out: nothing, or an error. Tables that are not there are made when they
are copied.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.catalog import CatalogTransaction
from penstock.errors import FeatureNotSupported


def check_targets(transaction: CatalogTransaction, tables: Iterable[tuple[str, str]]) -> None:
    """``tables``: (schema, table). Raises FeatureNotSupported: one is partitioned on the node."""
    for schema, name in tables:
        found = transaction.tables.find(schema, name)
        if found is not None and found.partition_key is not None:
            raise FeatureNotSupported(
                f'cannot use relation "{schema}.{name}" as logical replication target',
                detail="It is a partitioned table of this node.",
                hint="Publish its partitions (publish_via_partition_root = false), or drop the "
                "table here: the subscription then makes a plain one.",
            )
