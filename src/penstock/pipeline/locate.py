"""Locate: find the rows of a data file that have the batch's keys. This runs inside tasks.

DuckDB joins the rows of a data file with the keys (in tables without a key: whole rows). The result
is the positions of matching rows that are not in the deletion vector. DuckDB reads local files
itself, without the checksums of their pages. pyarrow, which checks them, reads other files by row
group, a file that DuckDB cannot read, and every file once rows were not found. An index of the file
may replace the search.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from penstock.identifiers import quoted, simple_quote_literal
from penstock.lakehouse.deletion_vectors import numbers_of
from penstock.lakehouse.files import file_uri, open_parquet
from penstock.lakehouse.layouts import plain_table
from penstock.lakehouse.partition_values import PartitionValues, partition_scalar
from penstock.lakehouse.storage import is_local, local_path
from penstock.pipeline.columns import Integers, rank, signs
from penstock.pipeline.duck import connection
from penstock.pipeline.hits import Hits
from penstock.pipeline.payload import Payload

_POSITION: Final = "file_row_number"


@dataclass(frozen=True)
class LocateItem:
    """One data file to be searched.

    ``probe``: table of the key columns named k0, k1 ... in the order of ``key``; its row numbers
    stand for the keys. In a multiset it also has a column ``copies``, and NULL equals NULL.
    ``rows``: physical rows of the file. ``first_between``: bounds of the key's first column in this
    file if it is an integer; keys outside are not even put into the join's hash table. ``part``:
    the number of the file's table among the work's tables. ``partition_values``: as in DataFile.
    ``deleted_at``: the column that is NULL in live rows, if the file may have dead rows. ``known``:
    the result, if ``index_lookup`` has found it already. ``checked``: check the pages' checksums.
    """

    work: int
    table_uri: str
    path: str
    rows: int
    deletion_vector: bytes | None = field(repr=False)
    key: tuple[str, ...]
    probe: Payload
    multiset: bool
    first_between: tuple[int, int] | None = None
    part: int = 0
    deleted_at: str | None = None
    partition_values: PartitionValues | None = None
    known: Hits | None = None
    checked: bool = False


def locate(item: LocateItem) -> Hits:
    """Return all live rows of the file that match a probe row. Raises StorageError.

    In a multiset these are at most the first ``copies`` rows for each probe row.
    """
    if item.known is not None:
        return item.known
    probe = item.probe.table()
    count = pa.array(np.arange(probe.num_rows, dtype=np.int32))
    connection().register("probe", probe.append_column("probe", count))
    constants = _constants(item, probe.schema)
    connection().register("constants", constants)
    try:
        parts = _search(item, constants, probe.schema)
    finally:
        connection().unregister("probe")
        connection().unregister("constants")
    position = np.concatenate([part[0] for part in parts] or [np.empty(0, np.int64)])
    found = np.concatenate([part[1] for part in parts] or [np.empty(0, np.int64)])
    live = _live(item, position)
    position, found = position[live], found[live]
    order = np.argsort(position, kind="stable")
    hits = Hits(position[order], found[order])
    return _first_copies(hits, probe["copies"].to_numpy()) if item.multiset else hits


def _search(
    item: LocateItem, constants: pa.Table, schema: pa.Schema
) -> list[tuple[Integers, Integers]]:
    """Return positions and probe rows, for each part of the file. Raises StorageError."""
    try:
        return [_join(source, item, schema) for source in _sources(item, constants)]
    except duckdb.OutOfMemoryException:
        raise
    except duckdb.Error:
        if item.checked:
            raise
        # DuckDB has many errors for a damaged file, some without its name; pyarrow names it.
        again = replace(item, checked=True)
        return [_join(source, again, schema) for source in _sources(again, constants)]


def _constants(item: LocateItem, schema: pa.Schema) -> pa.Table:
    """Return one row: the values c0, c1 ... that every row has in key columns not stored in the
    file. They are NULL for columns that were added later."""
    values, columns = item.partition_values or {}, {}
    for i, name in enumerate(item.key):
        type = schema.field(f"k{i}").type
        columns[f"c{i}"] = pa.repeat(partition_scalar(values.get(name), type), 1)
    return pa.table(columns)


def _join(source: str, item: LocateItem, schema: pa.Schema) -> tuple[Integers, Integers]:
    equal = "is not distinct from" if item.multiset else "="
    types = [schema.field(f"k{i}").type for i in range(len(item.key))]
    pairs = [(_as(f"f.c{i}", type), f"p.k{i}") for i, type in enumerate(types)]
    if item.multiset:
        files, probes = zip(*pairs, strict=True)
        pairs += zip(
            signs(zip(files, types, strict=True)),
            signs(zip(probes, types, strict=True)),
            strict=True,
        )
    on = " and ".join(f"{file} {equal} {probe}" for file, probe in pairs)
    probe = "probe"
    if item.first_between is not None:
        low, high = item.first_between
        probe = f"(select * from probe where k0 between {low} and {high})"
    query = f"select f.position, p.probe from {source} f join {probe} p on {on}"
    result = connection().execute(query).fetchnumpy()
    return np.asarray(result["position"], np.int64), np.asarray(result["probe"], np.int64)


def _as(column: str, type: pa.DataType) -> str:
    """Cast timestamps, since Spark's INT96 timestamps have no zone. A cast to a value's own type
    costs nothing."""
    if pa.types.is_timestamp(type):
        return f"{column}::{'timestamp' if type.tz is None else 'timestamptz'}"
    return column


def _sources(item: LocateItem, constants: pa.Table) -> Iterator[str]:
    """Yield relations with columns c0, c1 ... and position that together make up the file."""
    with open_parquet(item.table_uri, item.path) as parquet:
        held = set(parquet.schema_arrow.names)
        stored = held - set(item.partition_values or ())
        uri = file_uri(item.table_uri, item.path)
        names = {name.lower() for name in held}
        strange = _POSITION in names or bool(set("*?[") & set(uri))
        strange = strange or _has_variants(item, parquet.schema_arrow)
        if is_local(uri) and not strange and not item.checked:
            columns = ", ".join(
                f"{quoted(name) if name in stored else f'(select c{i} from constants)'} as c{i}"
                for i, name in enumerate(item.key)
            )
            path = simple_quote_literal(local_path(uri))
            # a folder named like "day=1" is not a partition
            options = f"{_POSITION} = true, hive_partitioning = false, union_by_name = false"
            file = f"read_parquet({path}, {options})"
            if item.deleted_at is not None and item.deleted_at in held:
                file += f" where {quoted(item.deleted_at)} is null"
            yield f"(select {columns}, {_POSITION} as position from {file})"
            return
        for start, group in _row_groups(parquet, item, stored, constants):
            with _lent(group, start):
                yield (
                    "file"
                    if item.deleted_at not in held
                    else "(select * from file where deleted is null)"
                )


def _has_variants(item: LocateItem, held: pa.Schema) -> bool:
    """Return whether the key has variants. If their writer marked them as variants, DuckDB reads
    them as a type of its own."""
    return any(pa.types.is_struct(field.type) for field in held if field.name in item.key)


def _row_groups(
    parquet: pq.ParquetFile, item: LocateItem, held: set[str], constants: pa.Table
) -> Iterator[tuple[int, pa.Table]]:
    start = 0
    for number in range(parquet.num_row_groups):
        names = [name for name in (*item.key, item.deleted_at) if name in held]
        group = plain_table(parquet.read_row_group(number, columns=names))
        rows = parquet.metadata.row_group(number).num_rows
        columns = {
            f"c{i}": group[name] if name in held else pa.repeat(constants[f"c{i}"][0], rows)
            for i, name in enumerate(item.key)
        }
        if item.deleted_at in held:
            columns["deleted"] = group[item.deleted_at]
        yield start, pa.table(columns)
        start += rows


@contextmanager
def _lent(group: pa.Table, start: int) -> Iterator[None]:
    position = pa.array(np.arange(start, start + group.num_rows))
    connection().register("file", group.append_column("position", position))
    try:
        yield
    finally:
        connection().unregister("file")


def _live(item: LocateItem, position: Integers) -> np.ndarray:
    if item.deletion_vector is None:
        return np.ones(len(position), bool)
    gone = np.zeros(item.rows, bool)
    gone[numbers_of(BitMap.deserialize(item.deletion_vector))] = True
    return ~gone[position]


def _first_copies(hits: Hits, copies: Integers) -> Hits:
    """Return at most ``copies`` rows for each probe row. The driver chooses among several files."""
    order = np.argsort(hits.probe, kind="stable")
    kept = np.sort(order[rank(hits.probe[order]) < copies[hits.probe[order]]])
    return Hits(hits.position[kept], hits.probe[kept])
