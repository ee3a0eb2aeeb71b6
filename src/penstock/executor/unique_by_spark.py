"""Primary keys, UNIQUE and NOT NULL for rows that Spark writes for a session.

The checks take frames of the new rows and of the rows that stay, and raise PostgreSQL's errors
(23502, 23505). They are not repeated if another writer was first, so sessions take turns
(``UniqueKeys.turn``).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.catalog import LakeTable
from penstock.executor.rows import delta_table, quoted
from penstock.executor.shown_rows import null_error
from penstock.executor.unique_keys import UniqueKey, duplicate_error
from penstock.lakehouse.schema import DELETED_AT
from penstock.walsender.lake_columns import LakeColumn


def live_rows(leaf: LakeTable, session: SparkSession, but: str = "") -> DataFrame:
    """Return the rows of a leaf that are not deleted, except those for which the condition ``but``
    holds."""
    rows = session.sql(f"SELECT * FROM {delta_table(leaf)}")
    if DELETED_AT in rows.columns:
        rows = rows.where(f"{quoted(DELETED_AT)} IS NULL")
    return rows.where(f"NOT coalesce({but}, false)") if but else rows


def check_unique(
    rows: DataFrame, others: DataFrame, leaf: LakeTable, keys: Sequence[UniqueKey]
) -> None:
    """Check that no key of ``rows`` occurs twice or in ``others``, the rows that stay. Raises
    UniqueViolation."""
    for key in keys:
        names = [quoted(name) for name in key.names]
        columns = [f"{name} AS k{number}" for number, name in enumerate(names)]
        plain = [f"k{number}" for number, _ in enumerate(names)]
        new = rows.where(" AND ".join(f"{name} IS NOT NULL" for name in names)).selectExpr(*columns)
        twice = new.groupBy(*plain).count().where("count > 1").select(*plain)
        there = new.join(others.selectExpr(*columns), on=plain, how="left_semi").select(*plain)
        found: pa.Table = twice.union(there).limit(1).toArrow()
        if found.num_rows:
            raise duplicate_error(leaf, key, found)


def check_not_null(
    rows: DataFrame, leaf: LakeTable, columns: Sequence[LakeColumn], required: Collection[str]
) -> None:
    """Check ``rows``, which have all columns, for NULL. Raises NotNullViolation."""
    missing = [f"{quoted(c.delta)} IS NULL" for c in columns if c.name in required]
    if not missing:
        return
    names = [quoted(column.delta) for column in columns]
    found: pa.Table = rows.where(" OR ".join(missing)).select(*names).limit(1).toArrow()
    for row in found.combine_chunks().to_batches():
        raise null_error(leaf, columns, required, row)
