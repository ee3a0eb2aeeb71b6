"""Find a table's live rows with one of given keys, as the table's unique index would.

The search covers some files of one version of the table, and returns positions by file. Statistics
rule out files that cannot hold a key. Keys are looked up in the indexes of the other files; a file
without an index is searched. The caller decides which keys are unique, and handles existing rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.state import TableState, load_vectors
from penstock.lakehouse.storage import Storage
from penstock.pipeline.columns import Integers
from penstock.pipeline.hits import Hits
from penstock.pipeline.index_lookup import FileName, look_up
from penstock.pipeline.job import run_job
from penstock.pipeline.key_indexes import KeyIndexes
from penstock.pipeline.locate import LocateItem, locate
from penstock.pipeline.payload import Payload, payloads
from penstock.pipeline.prune import candidates, integer_bounds, may_be_live
from penstock.pipeline.scan import ScanColumn, ScanFile, scan
from penstock.pipeline.table_work import search_seconds

_AT_ONCE: Final = 1_000_000
"""The number of rows that are held in memory."""
_HERE_SECONDS: Final = 1.0
"""The estimated seconds up to which a search runs in this process: a session waits for it, and
Spark may have to start first."""


@dataclass(frozen=True)
class KeyedTable:
    """A table and one of its keys, which is the key of ``schema``."""

    storage: Storage
    uri: str
    schema: TableSchema
    number: int = 0

    @property
    def names(self) -> Mapping[str, str]:
        """The names of the relation's columns, which are the table's own."""
        return {column.name: column.name for column in self.schema.columns}

    @property
    def deleted_at(self) -> str | None:
        """The column that is NULL in live rows, if the table may have dead rows."""
        return self.schema.deleted_at


def rows_with_keys(
    table: KeyedTable,
    files: Iterable[DataFile],
    keys: pa.Table,
    spark: Spark,
    indexes: KeyIndexes | None,
) -> dict[str, Hits]:
    """Return, by path, the rows found in these files of the table. ``keys``: the key's columns
    under their names, without NULL. Raises StorageError."""
    chosen = [f for f in candidates(files, keys) if may_be_live(f, table.deleted_at)]
    if not chosen:
        return {}
    seen = TableState(files={file.path: file for file in chosen})
    load_vectors(table.storage, table.uri, seen)
    live = [file for file in seen.files.values() if file.live_rows]
    known: Mapping[FileName, Hits] = {}
    if indexes is not None:
        asked = [(table, file) for file in live]
        known = look_up(indexes, spark, table.schema, keys, asked)
    hits = {path: each for (_, path), each in known.items() if len(each.probe)}
    rest = [file for file in live if (table.number, file.path) not in known]
    return hits | _searched(table, rest, keys, spark) if rest else hits


def columns_of_files(
    storage: Storage, uri: str, files: Sequence[DataFile], columns: Sequence[ScanColumn]
) -> Iterator[tuple[pa.Table, Integers]]:
    """Yield ``columns`` of all live rows of the files, file by file, about ``_AT_ONCE`` rows at a
    time, with the rows' numbers, counted over all files. Raises StorageError."""
    held: list[pa.RecordBatch] = []
    start = count = 0
    for file in files:
        for batch in scan(storage, uri, ScanFile.of(file), columns):
            held.append(batch)
            count += batch.num_rows
            if count >= _AT_ONCE:
                yield pa.Table.from_batches(held), np.arange(start, start + count)
                held, start, count = [], start + count, 0
    if held:
        yield pa.Table.from_batches(held), np.arange(start, start + count)


def _searched(
    table: KeyedTable, files: list[DataFile], keys: pa.Table, spark: Spark
) -> dict[str, Hits]:
    with payloads(table.storage) as area:
        probe = area.put(keys.rename_columns([f"k{i}" for i in range(keys.num_columns)]))
        items = [
            (search_seconds(file, keys), _item(table, file, tuple(keys.column_names), probe))
            for file in files
        ]
        name = f"penstock: keys of {table.uri}"[:200]
        results = run_job(spark, items, _found, name, here=_HERE_SECONDS)
    return {path: hits for path, hits in results if len(hits.probe)}


def _found(item: LocateItem) -> Iterator[tuple[str, Hits]]:
    yield item.path, locate(item)


def _item(table: KeyedTable, file: DataFile, key: tuple[str, ...], probe: Payload) -> LocateItem:
    return LocateItem(
        work=0,
        table_uri=table.uri,
        path=file.path,
        rows=file.rows,
        deletion_vector=file.deletion_vector,
        partition_values=file.partition_values,
        key=key,
        probe=probe,
        multiset=False,
        first_between=integer_bounds(file, key[0], table.schema.arrow()),
        deleted_at=table.deleted_at,
    )
