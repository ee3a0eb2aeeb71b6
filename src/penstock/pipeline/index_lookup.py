"""Find the rows of a few keys in the indexes of files instead of the files.

For each file with an index, the result is the live rows that have one of the batch's keys. Indexes
are exact. Nevertheless, ``apply`` searches the files themselves before it skips a change because
the old row is missing. An index is proof enough that a key to be inserted does not exist. If a file
cannot be read, or no longer exists, the task that searches it reports the error, which names the
table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from penstock.errors import StorageError
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.deletion_vectors import bitmap_of, numbers_of
from penstock.lakehouse.files import WrittenFile, file_uri
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.storage import is_local, local_path
from penstock.pipeline.hits import Hits
from penstock.pipeline.key_codes import KeyCodes, encode, is_wide, kinds
from penstock.pipeline.key_index import DamagedIndex, FileIndex, IndexItem
from penstock.pipeline.key_indexes import KeyIndexes, Time

FileName = tuple[int, str]
"""The number of a file's table among the work's tables, and the file's path there."""


class SearchedTable(Protocol):
    """A table with rows of a relation (``parts.Part``)."""

    @property
    def number(self) -> int: ...
    @property
    def uri(self) -> str: ...
    @property
    def names(self) -> Mapping[str, str]: ...
    @property
    def deleted_at(self) -> str | None: ...


_LOOKUPS: Final = 10_000_000
"""The most lookups (keys times files) in indexes: they take a second of this process."""
_SECONDS_PER_LOOKUP: Final = 1e-7
_SECONDS_PER_FILE: Final = 0.005
_SECONDS_PER_ROW: Final = {False: 1e-8, True: 1e-7}
"""Seconds per row of a file that tasks search; True: for long keys. Two tasks work side by side."""


def look_up(
    indexes: KeyIndexes,
    spark: Spark,
    schema: TableSchema,
    keys: pa.Table,
    files: Sequence[tuple[SearchedTable, DataFile]],
) -> Mapping[FileName, Hits]:
    """Return the hits by part and path. Files that are not in the result must be searched.
    ``keys``: columns of the relation's key."""
    compared = _kinds(schema, keys.column_names)
    if compared is None or not _is_quick(keys.num_rows, files, long=is_wide(compared)):
        return {}
    codes: KeyCodes | None = None
    left = Time()
    found: dict[FileName, Hits] = {}
    for part, file in files:
        names = tuple(part.names[name] for name in keys.column_names)
        if part.deleted_at is not None or set(names) & set(file.partition_values or ()):
            continue
        item = IndexItem(part.uri, file.path, file.rows, names, compared)
        index = _index(indexes, spark, item, left)
        if index is None:
            continue
        if codes is None:
            codes = encode(keys.columns, compared)
            if codes is None:
                return {}
            codes = codes.in_order()
        try:
            hits = index.find(codes)
        except DamagedIndex:
            indexes.drop_damaged(item)
            continue
        if not len(hits.position) or _is_there(item, file):
            found[part.number, file.path] = _live(hits, file)
    return found


def _is_quick(keys: int, files: Sequence[tuple[SearchedTable, DataFile]], *, long: bool) -> bool:
    """Return whether indexes are quicker than a search of every row. For many short (numeric) keys
    they are not."""
    lookups, rows = keys * len(files), sum(file.rows for _, file in files)
    searched = len(files) * _SECONDS_PER_FILE + rows * _SECONDS_PER_ROW[long]
    return lookups <= _LOOKUPS and lookups * _SECONDS_PER_LOOKUP <= searched


def _index(indexes: KeyIndexes, spark: Spark, item: IndexItem, left: Time) -> FileIndex | None:
    with contextlib.suppress(StorageError):
        return indexes.index(item, spark, left)
    return None


def _is_there(item: IndexItem, file: DataFile) -> bool:
    """Return whether the file still exists with its written length. Otherwise the loss would go
    unnoticed, because deleting a row does not open the file. Object stores are not asked: that
    would take longer than the rest of a small batch."""
    if not is_local(item.table_uri):
        return True
    try:
        return Path(local_path(file_uri(item.table_uri, item.path))).stat().st_size == file.size
    except OSError:
        return False


def prepare_indexes(
    indexes: KeyIndexes,
    spark: Spark,
    part: SearchedTable,
    schema: TableSchema,
    files: Sequence[WrittenFile],
) -> None:
    """Have indexes made of files that were just written, for the next batch. The relation has a
    key."""
    names = tuple(part.names[name] for name in schema.identity)
    compared = _kinds(schema, schema.identity)
    if compared is not None and part.deleted_at is None:
        for file in files:
            indexes.prepare(IndexItem(part.uri, file.path, file.rows, names, compared), spark)


def _kinds(schema: TableSchema, names: Sequence[str]) -> tuple[str, ...] | None:
    by_name = {column.name: column for column in schema.columns}
    return kinds([(by_name[name].type, by_name[name].attribute.type_oid) for name in names])


def _live(hits: Hits, file: DataFile) -> Hits:
    if file.deletion_vector is None or not len(hits.position):
        return hits
    dead = BitMap.deserialize(file.deletion_vector) & bitmap_of(hits.position)
    live = ~np.isin(hits.position, numbers_of(dead), kind="table")
    return Hits(hits.position[live], hits.probe[live])
