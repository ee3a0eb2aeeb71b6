"""Rows that an UPDATE would leave in the wrong partition, as they came after it had looked.

In: an UPDATE that sets columns of partition keys, and has found no row that moves. Out: for each
partition the same UPDATE of the rows that stay there. A row that another writer has put there since
and that would move is younger than the statement, which leaves it as it is.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

from penstock.catalog import LakeTable
from penstock.executor.rows import Change, quoted
from penstock.lakehouse.schema import Column, TableSchema
from penstock.pipeline.partition_tree import anywhere, routing_of
from penstock.pipeline.routing import Level
from penstock.walsender.lake_columns import LakeColumn


@contextmanager
def staying(
    change: Change,
    tree: Sequence[LakeTable],
    columns: Sequence[LakeColumn],
    session: SparkSession,
) -> Iterator[Callable[[LakeTable], Change]]:
    """What is changed of a leaf; the functions of ``session`` are there while inside. ``tree``: all
    of the topmost table, root first. Raises FeatureNotSupported."""
    schema = TableSchema(
        tuple(Column(c.delta, c.name, c.type, c.type_oid, c.typmod) for c in columns), ()
    )
    routing, leaves = routing_of(tree, schema)
    numbers = {leaf.oid: number for number, leaf in enumerate(leaves)}
    keys = sorted(routing.columns)
    name = f"penstock_{uuid.uuid4().hex}"
    session.udf.register(name, arrow_udf(_route(anywhere(routing), keys), "bigint"))
    new = dict(change.tried)
    leaf_of_new = f"{name}({', '.join(new.get(key, quoted(key)) for key in keys)})"
    where = f"({change.where}) AND " if change.where else ""

    def of(leaf: LakeTable) -> Change:
        return replace(change, where=f"{where}{leaf_of_new} = {numbers[leaf.oid]}")

    try:
        yield of
    finally:
        session.sql(f"DROP TEMPORARY FUNCTION {name}")


def _route(routing: Level, keys: Sequence[str]) -> Callable[..., pa.Array]:
    def route(*arguments: pa.Array) -> pa.Array:
        return pa.array(routing.leaves(pa.table(list(arguments), names=list(keys))), pa.int64())

    return route
