"""Partition checks for rows that INSERT and UPDATE write by Spark (execPartition.c).

In: frames with the new rows. Out: nothing, or PostgreSQL's error with the first row found that does
not belong where it is to go. ``partitions`` decides how rows find their partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from penstock.catalog import LakeTable
from penstock.errors import PenstockError
from penstock.executor.partitions import PartitionRules, Routing
from penstock.executor.rows import quoted
from penstock.executor.shown_rows import show_values
from penstock.pipeline.routing import CHECK_VIOLATION, no_partition
from penstock.walsender.lake_columns import LakeColumn

ROUTE: Final = "_penstock_partition"
"""The column that holds the value of a routing's expression."""


def check_partition(
    rows: DataFrame, constraint: str, table: LakeTable, columns: Sequence[LakeColumn]
) -> None:
    """Check that all rows belong to the partition that a statement names itself
    (ExecPartitionCheck). Raises PenstockError (23514)."""
    values = _first(rows, f"NOT ({constraint})", columns)
    if values is not None:
        raise partition_error(table, values)


def partition_error(table: LakeTable, values: Sequence[str]) -> PenstockError:
    """Return the error for a row that does not belong to the partition
    (ExecPartitionCheckEmitError). ``values``: the row, as ``show_values`` prints it."""
    return PenstockError(
        f'new row for relation "{table.name}" violates partition constraint',
        detail=f"Failing row contains ({', '.join(values)}).",
        sqlstate=CHECK_VIOLATION,
    )


def check_found(
    rows: DataFrame, routes: Iterable[int], routing: Routing, partitions: PartitionRules
) -> None:
    """Check that every row has a partition (ExecFindPartition). ``rows``: with their ``ROUTE``;
    ``routes``: the values that occur in it. Raises PenstockError (23514)."""
    nowhere = next((route for route in routes if route < 0), None)
    if nowhere is None:
        return
    root = routing.roots[-1 - nowhere]
    key = partitions.key(root)
    values = _first(rows, f"{ROUTE} = {nowhere}", key) or ()
    message, detail = no_partition(root.name, [column.name for column in key], values)
    raise PenstockError(message, detail=detail, sqlstate=CHECK_VIOLATION)


def _first(rows: DataFrame, where: str, columns: Sequence[LakeColumn]) -> list[str] | None:
    """Return the values of one such row as PostgreSQL prints them, or None if there is none."""
    names = [quoted(column.delta) for column in columns]
    found: pa.Table = rows.where(where).select(*names).limit(1).toArrow()
    if found.num_rows == 0:
        return None
    return show_values([column.combine_chunks() for column in found.columns])
