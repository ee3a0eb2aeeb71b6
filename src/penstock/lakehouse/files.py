"""Data files: Parquet written and read through pyarrow's filesystems, inside executors too.

``FileWriter`` takes batches of rows in the table's Arrow schema, and returns a WrittenFile per
file, durable on return. A file belongs to the table once a log entry names it. Memory holds one row
group at a time (32 MB of Arrow data, or one row); a new file begins at a target size. ``pipeline``
decides which rows go where, ``table_writer`` writes a file for each partition.
"""

from __future__ import annotations

import contextlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.lakehouse.batches import slices
from penstock.lakehouse.layouts import with_whole_variants
from penstock.lakehouse.partition_values import PartitionValues
from penstock.lakehouse.statistics import Collector
from penstock.lakehouse.storage import Storage, resolve, storage_call, storage_errors

TARGET_FILE_BYTES: Final = 128 << 20
ROW_GROUP_BYTES: Final = 32 << 20
"""Arrow bytes held before a row group is written."""
_GONE_HINT: Final = "The file is gone: put it back from a copy."
_READ_WHOLE: Final = 32 << 20
_BUFFER: Final = 1 << 20
"""Bytes of a column chunk that are read at a time if row groups are larger than _READ_WHOLE."""


@dataclass(frozen=True)
class WrittenFile:
    """A data file that the Delta log does not name yet. ``path``: relative to the table; ``size``:
    bytes; ``partition_values``: by column, if the table is partitioned."""

    path: str
    size: int
    rows: int
    stats: Mapping[str, Any]
    partition_values: PartitionValues | None = None


def data_file_name(mark: str = "") -> str:
    """Return a new name, unique without coordination; ``mark`` is a recognizable part of it."""
    return f"part-{mark}{uuid.uuid4()}.snappy.parquet"


def file_uri(table_uri: str, path: str) -> str:
    """Return the URI of a file. ``path`` is percent-encoded as in the Delta log, and absolute in
    shallow clones."""
    path = unquote(path)
    return path if ":/" in path.split("?")[0] else f"{table_uri}/{path}"


@contextlib.contextmanager
def open_parquet(table_uri: str, path: str) -> Iterator[pq.ParquetFile]:
    """Open a data file for reading; a large row group is read piece by piece. Raises StorageError
    for the whole block: XX001 if the file is damaged, 58P01 if it is gone."""
    uri = file_uri(table_uri, path)
    with storage_errors("read file", uri, gone=_GONE_HINT):
        filesystem, where = resolve(uri)
        with filesystem.open_input_file(where) as source:
            metadata = pq.read_metadata(source)
            groups = map(metadata.row_group, range(metadata.num_row_groups))
            large = any(group.total_byte_size > _READ_WHOLE for group in groups)
            with pq.ParquetFile(
                source,
                metadata=metadata,
                buffer_size=_BUFFER if large else 0,
                pre_buffer=not large,
                page_checksum_verification=True,  # our own files have checksums, others' may
                # Spark's INT96 has years that do not fit into 64 bits of nanoseconds
                coerce_int96_timestamp_unit="us",
            ) as parquet:
                yield parquet


class WritesFiles(ABC):
    """A context manager that closes its files; after an exception it removes what it wrote."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    @abstractmethod
    def close(self) -> None:
        """Finish the open files; ``abort`` if that fails."""

    @abstractmethod
    def abort(self) -> None:
        """Remove everything that was written."""


class FileWriter(WritesFiles):
    """A writer of one table's rows, to as many files as they need.

    ``files`` holds the finished files after ``close``; ``write`` does everything in one call.
    """

    def __init__(
        self,
        storage: Storage,
        table_uri: str,
        schema: pa.Schema,
        *,
        target_file_bytes: int = TARGET_FILE_BYTES,
        mark: str = "",
        partition_values: PartitionValues | None = None,
        indexed: Sequence[str] = (),
    ) -> None:
        """``mark``: a part of the files' names. ``partition_values``: values of all rows in columns
        that ``schema`` lacks. ``indexed``: columns that get statistics whatever their position."""
        self._mark = mark
        self._partition_values = partition_values
        self._indexed = indexed
        self.files: list[WrittenFile] = []
        self._storage = storage
        self._table_uri = table_uri
        self._schema = schema
        self._target = target_file_bytes
        self._open: _OpenFile | None = None
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0

    def write(self, batches: Iterable[pa.RecordBatch | pa.Table]) -> list[WrittenFile]:
        """Write all batches and close. Raises StorageError; nothing is left behind then."""
        with self:
            for batch in batches:
                self.add(batch)
        return self.files

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Take rows in the table's schema; write them as soon as a row group is full."""
        parts = rows.to_batches() if isinstance(rows, pa.Table) else [rows]
        for part in parts:
            for held in slices(part, ROW_GROUP_BYTES // 4):
                self._hold(held)

    @property
    def held_bytes(self) -> int:
        """The bytes that are held until a row group is full."""
        return self._held_bytes

    @property
    def is_open(self) -> bool:
        """Return whether a file is being written."""
        return self._open is not None

    def flush(self) -> None:
        """Write the held rows as a row group."""
        if not self._held:
            return
        rows = pa.Table.from_batches(self._held, self._schema)
        self._held, self._held_bytes = [], 0
        if self._open is None:
            name = data_file_name(self._mark)
            self._open = _OpenFile(
                self._table_uri,
                self._schema,
                name,
                self._partition_values,
                self._indexed,
                dictionary_columns(rows),
            )
        if self._open.write(rows) >= self._target:
            self._finish()

    def finish(self) -> None:
        """Finish the open file; its name is not durable before ``close``."""
        self.flush()
        self._finish()

    def close(self) -> None:
        """Finish the open file, and make the new names in the folder durable."""
        try:
            self.finish()
            if self.files:
                self._storage.sync_folder(self._table_uri)
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Remove everything that was written."""
        written = [file.path for file in self.files]
        if self._open is not None:
            written.append(self._open.path)
            self._open.abandon()
            self._open = None
        for path in written:
            self._storage.remove(f"{self._table_uri}/{path}")
        self.files = []
        self._held = []

    def _hold(self, part: pa.RecordBatch) -> None:
        self._held.append(part)
        self._held_bytes += part.nbytes
        if self._held_bytes >= ROW_GROUP_BYTES:
            self.flush()

    def _finish(self) -> None:
        if self._open is not None:
            file = self._open.finish()
            self._storage.sync_file(f"{self._table_uri}/{file.path}")
            self._open = None
            self.files.append(file)


@dataclass
class _OpenFile:
    """A Parquet file that is being written. ``dictionaries``: the columns that get a dictionary."""

    table_uri: str
    schema: pa.Schema
    path: str
    partition_values: PartitionValues | None
    indexed: Sequence[str]
    dictionaries: list[str] | bool

    def __post_init__(self) -> None:
        self._uri = f"{self.table_uri}/{self.path}"
        self._statistics = Collector(self.schema, self.indexed)
        with storage_call("create file", self._uri):
            filesystem, where = resolve(self._uri)
            self._sink = filesystem.open_output_stream(where)
            self._writer = pq.ParquetWriter(
                self._sink,
                self.schema,
                compression="snappy",
                use_dictionary=self.dictionaries,
                store_decimal_as_integer=True,
                write_statistics=_columns_with_statistics(self.schema) or False,
                write_page_checksum=True,
            )

    def write(self, rows: pa.Table) -> int:
        """Append a row group; return the bytes in the file so far."""
        self._statistics.add(rows)
        with storage_call("write file", self._uri):
            self._writer.write_table(
                with_whole_variants(rows), row_group_size=max(rows.num_rows, 1)
            )
            return int(self._sink.tell())

    def finish(self) -> WrittenFile:
        """Write the footer."""
        with storage_call("write file", self._uri):
            self._writer.close()
            size = int(self._sink.tell())
            self._sink.close()
        found = self._statistics
        return WrittenFile(self.path, size, found.rows, found.result(), self.partition_values)

    def abandon(self) -> None:
        """Close the file handle without an error: the error that led here is the one to report."""
        with contextlib.suppress(OSError, pa.ArrowException):
            self._sink.close()
        self._writer.is_open = False  # otherwise its finaliser writes a footer


def _columns_with_statistics(schema: pa.Schema) -> list[str]:
    """Return the columns that get Parquet statistics, by which Spark may skip row groups.

    Floating-point columns are left out: Arrow ignores NaN in bounds, while Spark takes NaN for
    greater than all numbers.
    """
    return [
        column.name
        for column in schema
        if not pa.types.is_floating(column.type) and not pa.types.is_nested(column.type)
    ]


# A sample of a file's first row group decides which columns are written with a dictionary
# (``use_dictionary`` of Arrow's writer). By default Arrow tries a dictionary for every column, and
# gives it up once it has a megabyte. If all values differ, as in a key, the attempt takes half of
# the time of writing the column, and a third more bytes.

_MANY_ROWS: Final = 1 << 14
"""For fewer rows no dictionary takes long, so all columns get one."""
_LOOKED_AT: Final = 1 << 12
_LEAST: Final = 1 << 10
"""The number of values that a column must have in the sample; with fewer it gets a dictionary."""
_ALL: Final = 0.99
"""A column with this share of different values in the sample gets no dictionary. A column of some
200,000 distinct values reaches it: Arrow would give up its dictionary, or that would save nothing.
"""


def dictionary_columns(rows: pa.Table) -> list[str] | bool:
    """Return the columns that get a dictionary, nested ones by their paths in Parquet; True for
    all, False for none."""
    if rows.num_rows < _MANY_ROWS:
        return True
    nested = [field for field in rows.schema if pa.types.is_nested(field.type)]
    paths = [path for field in nested for path in _leaf_paths(field)]
    plain = rows.drop_columns([field.name for field in nested])
    sample = _sample(plain)
    repeating = [name for name in plain.schema.names if not _all_differ(sample.column(name))]
    return [*repeating, *paths] or False


def _leaf_paths(field: pa.Field) -> Iterator[str]:
    """Yield the paths of a nested column's values, as Arrow names them in Parquet."""
    kind = field.type
    if pa.types.is_map(kind):
        children, group = [kind.key_field, kind.item_field], f"{field.name}.key_value"
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        children, group = [kind.value_field.with_name("element")], f"{field.name}.list"
    elif pa.types.is_struct(kind):
        children, group = list(kind), field.name
    else:
        yield field.name
        return
    for child in children:
        yield from (f"{group}.{path}" for path in _leaf_paths(child))


def _sample(rows: pa.Table) -> pa.Table:
    """Return a random sample: a regular one may miss values that repeat in long steps."""
    random = np.random.default_rng(0)
    positions = np.unique(random.integers(0, rows.num_rows, _LOOKED_AT))
    found, start = [], 0
    for batch in rows.to_batches():
        end = start + batch.num_rows
        low, high = np.searchsorted(positions, (start, end))
        found.append(batch.take(pa.array(positions[low:high] - start)))
        start = end
    return pa.Table.from_batches(found, rows.schema)


def _all_differ(values: pa.ChunkedArray) -> bool:
    there = len(values) - values.null_count
    if there < _LEAST:
        return False
    try:
        return bool(pc.count_distinct(values).as_py() >= there * _ALL)
    except pa.ArrowNotImplementedError:
        return False
