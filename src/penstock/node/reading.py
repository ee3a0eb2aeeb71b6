"""Tables at a cut as Spark DataFrames and views.

In: a cut. Out: DataFrames pinned to the cut's Delta versions, so that all of them show the
publisher at one LSN. Readers without Penstock do the same with the cuts table
(docs/reading-at-a-cut.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from penstock.catalog import Catalog, Subscription, SubscriptionRelState
from penstock.errors import (
    ConfigurationError,
    DuplicateObject,
    NotInPrerequisiteState,
    UndefinedObject,
)
from penstock.lakehouse.cuts import Cut, CutOwner, CutTable
from penstock.lakehouse.identity import newest_table_id
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.warehouse import Warehouse
from penstock.relation import TableName, qualified
from penstock.sql import parse_table_name
from penstock.sql.text.quoting import quote_identifier
from penstock.sqlstate import UndefinedTable

_NOT_A_WORD: Final = re.compile(r"\W")
_IN_CUTS: Final = (SubscriptionRelState.READY, SubscriptionRelState.SYNCDONE)


def parse_name(table: str | TableName) -> TableName:
    """A table's name as PostgreSQL reads it: folded to lower case unless in quotes.

    Without a schema it is in "public". Raises SqlSyntaxError.
    """
    if not isinstance(table, str):
        return table
    name = parse_table_name(table)
    return name.schema or "public", name.name


def find_subscription(catalog: Catalog, name: str | None) -> Subscription:
    """That of a name, or the only one. Raises UndefinedObject, ConfigurationError."""
    known = catalog.subscriptions()
    if name is not None:
        if (found := next((s for s in known if s.name == name), None)) is None:
            raise UndefinedObject(f'subscription "{name}" does not exist')
        return found
    if len(known) == 1:
        return known[0]
    raise ConfigurationError(
        "the node has no subscription" if not known else "the node has several subscriptions",
        hint="Name one: subscription=..." if known else "CREATE SUBSCRIPTION first.",
    )


def existing(cut: Cut | None, subscription: Subscription) -> Cut:
    """A subscription's last cut. Raises NotInPrerequisiteState where there is none."""
    if cut is None:
        raise NotInPrerequisiteState(
            f'subscription "{subscription.name}" has no cut yet',
            detail="The initial copy of its tables has not finished.",
            hint="Look at: penstock status",
        )
    return cut


def leaves(catalog: Catalog, table: TableName) -> tuple[TableName, ...]:
    """The partitions that hold a partitioned table's rows; none of any other table."""
    tree = catalog.partition_tree(table)
    return tuple((t.schema, t.name) for t in tree if t.partition_key is None)


def read(
    spark: SparkSession, cut: Cut, table: TableName, partitions: Sequence[TableName] = ()
) -> DataFrame:
    """A table as of the cut; ``partitions``: its leaves (``leaves``). Raises UndefinedObject
    (42P01)."""
    rows = _read(spark, cut, table)
    for leaf in partitions:
        if leaf in cut.tables:
            rows = rows.unionByName(_read(spark, cut, leaf))
    return rows


def _read(spark: SparkSession, cut: Cut, table: TableName) -> DataFrame:
    pinned = cut.tables.get(table)
    if pinned is None:
        raise UndefinedTable(
            f'table "{qualified(*table)}" is not in the cut at {cut.lsn}',
            detail="Tables in it: " + ", ".join(map(_write_name, sorted(cut.tables))) + ".",
            hint="Names with capital letters or other characters are written in quotes.",
        )
    _check_same(qualified(*table), cut, pinned)
    return spark.read.format("delta").option("versionAsOf", pinned.version).load(pinned.uri)


def older_cut(
    catalog: Catalog, warehouse: Warehouse, subscription: Subscription, table: TableName
) -> Cut | None:
    """The last cut that holds a table which the newest ones do not while it is copied again."""
    for rel in catalog.relations(subscription.oid):
        if rel.table_name == table and rel.state not in _IN_CUTS and rel.table_id is not None:
            owner = CutOwner(subscription.name, subscription.app_id)
            return warehouse.cuts.last_with(owner, table)
    return None


def _check_same(name: str, cut: Cut, pinned: CutTable) -> None:
    """Versions begin again when a table is made again in its place, and show other rows."""
    found = None if pinned.id is None else newest_table_id(Storage(pinned.uri), pinned.uri)
    if found != pinned.id:
        raise NotInPrerequisiteState(
            f'table "{name}" of the cut at {cut.lsn} is no longer there',
            detail=f'At "{pinned.uri}" there is '
            + ("none now." if found is None else "another table now: it was copied again."),
            hint="Read a newer cut: Node.cut tells the last one.",
        )


def view_name(table: TableName) -> str:
    """``public.t`` becomes ``t``, ``schema.t`` becomes ``schema_t``; other characters ``_``."""
    schema, name = table
    return _NOT_A_WORD.sub("_", name if schema == "public" else f"{schema}_{name}")


def register_views(
    spark: SparkSession,
    cut: Cut,
    partitions: Callable[[TableName], Sequence[TableName]] = lambda table: (),
) -> dict[TableName, str]:
    """Register all tables of the cut as temporary views. Raises DuplicateObject before any.

    ``partitions``: the leaves of a table (``leaves``)."""
    names: dict[TableName, str] = {}
    for table in sorted(cut.tables):
        name = view_name(table)
        clash = next((t for t, n in names.items() if n.lower() == name.lower()), None)
        if clash is not None:
            raise DuplicateObject(
                f'tables "{qualified(*clash)}" and "{qualified(*table)}" would both become the '
                f'view "{name}"',
                hint="Read them with node.read(...) instead.",
            )
        names[table] = name
    for table, name in names.items():
        read(spark, cut, table, partitions(table)).createOrReplaceTempView(name)
    return names


def _write_name(table: TableName) -> str:
    """As ``named`` reads it."""
    return ".".join(map(quote_identifier, table))
