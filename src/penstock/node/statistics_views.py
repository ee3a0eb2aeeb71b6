"""What the catalogs tell of subscriptions, as temporary views of Spark.

In: a way to ask the catalogs, a Spark session. Out: views of the catalogs' names, with the rows of
now. Positions are text, as SQL prints them; oids are numbers, times are timestamps.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.node.catalog_queries import NodeQueries
from penstock.pgtypes import find
from penstock.pgtypes.gather import cells_of
from penstock.pgtypes.pg_type import INT8, OID, XID
from penstock.protocol.answers import Rows

STATISTICS_VIEWS: Final = (
    "pg_subscription",
    "pg_subscription_rel",
    "pg_stat_subscription",
    "pg_stat_subscription_stats",
    "pg_replication_origin_status",
    "pg_stat_lake_subscription",
    "pg_stat_lake_subscription_rel",
)
_NUMBERS: Final = (OID, XID)


def register_statistics(spark: SparkSession, queries: NodeQueries) -> tuple[str, ...]:
    """Register all of them, in the place of former ones; their names."""
    for name in STATISTICS_VIEWS:
        rows = _table(queries.rows(f"SELECT * FROM {name}"))
        spark.createDataFrame(rows).createOrReplaceTempView(name)
    return STATISTICS_VIEWS


def _table(rows: Rows) -> pa.Table:
    """Columns of the types that PostgreSQL's types have in tables."""
    cells = list(zip(*rows.rows, strict=True)) or [()] * len(rows.fields)
    arrays = {}
    for field, values in zip(rows.fields, cells, strict=True):
        texts = pa.array([None if v is None else bytes(v) for v in values], pa.binary())
        family = find(INT8 if field.type_oid in _NUMBERS else field.type_oid)
        arrays[field.name] = family.text_column(cells_of(texts), field.typmod)
    return pa.table(arrays)
