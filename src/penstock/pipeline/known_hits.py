"""Where the rows of a few keys are, asked of the indexes of files instead of the files.

In: a work, the keys of its batch, the files that may hold them. Out: for each file with an index
the live rows that have one of the keys. What an index says is exact for keys that it finds; that a
key is missing is believed only once the files themselves were searched (``apply``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.schema import TableSchema
from penstock.pipeline.hits import Hits
from penstock.pipeline.key_codes import encode, kinds
from penstock.pipeline.key_index import IndexItem
from penstock.pipeline.key_indexes import KeyIndexes
from penstock.pipeline.parts import Part

FileName = tuple[int, str]
"""Which of the work's tables a file is of, and its path there."""

_KEYS: Final = 30_000
"""Beyond, tasks that read the files side by side are as quick: an index takes 0.1 to 0.3 us a key,
a task 10 ms a file and 20 ns a row."""


def known_hits(
    indexes: KeyIndexes,
    spark: Spark,
    schema: TableSchema,
    keys: pa.Table,
    files: Sequence[tuple[Part, DataFile]],
) -> Mapping[FileName, Hits]:
    """By part and path; files that are not there are to be searched. ``keys``: of rows of the
    relation, which have a key. Raises StorageError."""
    compared = _kinds(schema, keys.column_names)
    if compared is None or keys.num_rows > _KEYS:
        return {}
    codes = encode(keys.columns, compared)
    if codes is None:
        return {}
    found: dict[FileName, Hits] = {}
    for part, file in files:
        names = tuple(part.names[name] for name in keys.column_names)
        if part.deleted_at is not None or set(names) & set(file.partition_values or ()):
            continue
        item = IndexItem(part.table.uri, file.path, file.rows, names, compared)
        index = indexes.index(item, spark)
        if index is not None:
            found[part.number, file.path] = _live(index.find(codes), file)
    return found


def prepare(
    indexes: KeyIndexes,
    spark: Spark,
    part: Part,
    schema: TableSchema,
    files: Sequence[WrittenFile],
) -> None:
    """Files of the relation's rows, which have a key, are written: the next batch may ask for
    them."""
    names = tuple(part.names[name] for name in schema.identity)
    compared = _kinds(schema, schema.identity)
    if compared is not None and part.deleted_at is None:
        for file in files:
            indexes.prepare(IndexItem(part.table.uri, file.path, file.rows, names, compared), spark)


def _kinds(schema: TableSchema, names: Sequence[str]) -> tuple[str, ...] | None:
    by_name = {column.name: column for column in schema.columns}
    return kinds([(by_name[name].type, by_name[name].type_oid) for name in names])


def _live(hits: Hits, file: DataFile) -> Hits:
    if file.deletion_vector is None or not len(hits.position):
        return hits
    dead = BitMap.deserialize(file.deletion_vector) & BitMap(hits.position.astype(np.uint32))
    live = ~np.isin(hits.position, np.array(dead, np.int64))
    return Hits(hits.position[live], hits.probe[live])
