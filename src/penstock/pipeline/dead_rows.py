"""Dead rows: deleted rows that stay (``soft_delete``), written again with a mark. This runs inside
tasks.

A task has just located some rows of a data file, or takes all live rows. It writes them, with the
values of their metadata columns, to WrittenFiles that are not yet in the table. A row stays in the
table where it was found. Only one run of the file's rows is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyroaring import BitMap

from penstock.lakehouse.batches import read_batches, read_rows
from penstock.lakehouse.deletion_vectors import numbers_of
from penstock.lakehouse.files import WrittenFile, open_parquet
from penstock.lakehouse.partition_values import PartitionValues, constants
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.table_layout import TableLayout
from penstock.lakehouse.table_writer import TableWriter
from penstock.pipeline.columns import Integers
from penstock.pipeline.hits import Hits
from penstock.pipeline.locate import LocateItem
from penstock.pipeline.payload import Payload

_Stamps = Callable[[slice], Mapping[str, pa.Array]]
"""A function that returns the metadata columns of a run of the written rows."""


@dataclass(frozen=True)
class DeadRows:
    """Dead rows for tasks that locate them. ``schema``: of the table; ``stamps``: its metadata
    columns; ``rows``: ``old``, the probe row of each row that stays, and s0, s1 ..., the values of
    ``stamps``."""

    storage: Storage
    schema: pa.Schema
    layout: TableLayout
    stamps: tuple[str, ...]
    rows: Payload


@dataclass(frozen=True)
class EndAllItem:
    """A file whose live rows are all deleted and stay as dead rows. ``deleted_at``: the column that
    is NULL in live rows; ``stamps``: values of metadata columns; ``part``: the number of the file's
    table among the work's tables; ``partition_values``: as in DataFile."""

    work: int
    storage: Storage
    table_uri: str
    path: str
    rows: int
    deletion_vector: bytes | None = field(repr=False)
    schema: pa.Schema
    layout: TableLayout
    deleted_at: str
    stamps: Mapping[str, pa.Scalar]
    part: int = 0
    partition_values: PartitionValues | None = None


def write_dead(dead: DeadRows, searched: Sequence[tuple[LocateItem, Hits]]) -> list[WrittenFile]:
    """Write the rows found in files of one table that become dead; return the new files. Raises
    StorageError; nothing is left behind then."""
    rows = dead.rows.table()
    old = rows["old"].to_numpy()

    def marked() -> Iterator[pa.Table]:
        for file, hits in searched:
            position, index = hits.of(old)
            if not len(position):
                continue
            given = constants(file.partition_values, dead.schema)
            stamps = partial(_stamps, dead, rows, index)
            with open_parquet(file.table_uri, file.path) as parquet:
                yield from _marked(parquet, dead.schema, given, position, stamps)

    where = searched[0][0]
    return TableWriter(dead.storage, where.table_uri, dead.schema, dead.layout).write(marked())


def _stamps(dead: DeadRows, rows: pa.Table, index: Integers, here: slice) -> Mapping[str, pa.Array]:
    found = rows.take(pa.array(index[here]))
    return {name: found[f"s{i}"] for i, name in enumerate(dead.stamps)}


def end_all(item: EndAllItem) -> tuple[Integers, list[WrittenFile]]:
    """Write all live rows again; return their positions and the new files. Raises StorageError."""

    def stamps(here: slice) -> Mapping[str, pa.Array]:
        count = here.stop - here.start
        return {name: pa.repeat(value, count) for name, value in item.stamps.items()}

    with open_parquet(item.table_uri, item.path) as parquet:
        position = _live(item, parquet)
        if not len(position):
            return position, []
        writer = TableWriter(item.storage, item.table_uri, item.schema, item.layout)
        given = constants(item.partition_values, item.schema)
        return position, writer.write(_marked(parquet, item.schema, given, position, stamps))


def _live(item: EndAllItem, parquet: pq.ParquetFile) -> Integers:
    live = np.ones(item.rows, bool)
    if item.deletion_vector is not None:
        live[numbers_of(BitMap.deserialize(item.deletion_vector))] = False
    if item.deleted_at in parquet.schema_arrow.names:
        for start, batch in read_batches(parquet, [item.deleted_at]):
            alive = pc.is_null(batch.column(0)).to_numpy(zero_copy_only=False)
            live[start : start + batch.num_rows] &= alive
    return np.flatnonzero(live)


def _marked(
    parquet: pq.ParquetFile,
    schema: pa.Schema,
    given: Mapping[str, pa.Scalar],
    position: Integers,
    stamps: _Stamps,
) -> Iterator[pa.Table]:
    """Yield the rows at ``position``, ascending, run by run in the columns of the table. ``given``:
    the values of its partition columns."""
    there = parquet.schema_arrow.names
    held = [name for name in schema.names if name in there and name not in given]
    for here, rows in read_rows(parquet, held, position):
        marks = stamps(here)
        columns = [
            marks[field.name] if field.name in marks else _column(rows, field, given)
            for field in schema
        ]
        yield pa.table(columns, schema=schema)


def _column(rows: pa.RecordBatch, field: pa.Field, given: Mapping[str, pa.Scalar]) -> pa.Array:
    """Return a column with its present type; a column that was added later is NULL."""
    if field.name in given:
        return pa.repeat(given[field.name], rows.num_rows)
    if field.name not in rows.schema.names:
        return pa.nulls(rows.num_rows, field.type)
    return rows.column(field.name).cast(field.type)
