"""Scan: read rows of data files, with PostgreSQL's names of columns. This runs inside tasks.

A scan reads the chosen rows of one file, at a version of the table, as record batches. Columns that
a file lacks were added later and are NULL. Partition values come from the table's Delta log. Memory
holds one run of rows of the file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from penstock.errors import RelationChanged, StorageError, VersionGone
from penstock.lakehouse import deletion_vectors
from penstock.lakehouse.batches import read_batches
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.deletion_vectors import numbers_of
from penstock.lakehouse.files import open_parquet
from penstock.lakehouse.partition_values import PartitionValues, partition_scalar
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.table_changes import FilePart
from penstock.pipeline.columns import Integers

_NO_FILE: Final = "58P01"
_CLASSES: Final = {
    "number": ("is_integer", "is_floating", "is_decimal"),
    "text": ("is_string", "is_large_string", "is_string_view"),
    "bytes": ("is_binary", "is_large_binary", "is_binary_view", "is_fixed_size_binary"),
    "moment": ("is_timestamp", "is_date"),
    "list": ("is_list", "is_large_list", "is_list_view"),
}
"""Types that convert to one another without loss, except by overflow, which is an error."""


@dataclass(frozen=True)
class ScanColumn:
    """A column that is read. ``name``: in PostgreSQL. ``stored``: in the files. ``type``: the
    table's Arrow type."""

    name: str
    stored: str
    type: pa.DataType


@dataclass(frozen=True)
class ScanFile:
    """The rows of a file that are in ``only`` and not in ``gone``.

    Both describe deletion vectors as the Delta log does. ``gone``: the vector of the version that
    is read; ``only``: read no other rows; None: read all. ``rows``: physical rows, or -1.
    ``start``, ``stop``: the range of physical rows that is read (None: to the end).
    """

    path: str
    size: int
    rows: int = -1
    gone: Mapping[str, Any] | None = field(default=None, repr=False)
    only: Mapping[str, Any] | None = field(default=None, repr=False)
    partition_values: PartitionValues | None = None
    start: int = 0
    stop: int | None = None

    @classmethod
    def of(cls, file: DataFile) -> ScanFile:
        """Return the rows of a file that readers see."""
        return cls(
            file.path,
            file.size,
            file.rows,
            gone=file.descriptor,
            partition_values=file.partition_values,
        )

    @classmethod
    def of_part(cls, part: FilePart) -> ScanFile:
        """Return the rows of a file that were added or removed."""
        return replace(cls.of(part.file), gone=part.gone, only=part.only)


def scan(
    storage: Storage, table_uri: str, file: ScanFile, columns: Sequence[ScanColumn]
) -> Iterator[pa.RecordBatch]:
    """Yield batches in the file's order, with ``columns`` by their PostgreSQL names.

    Raises StorageError; VersionGone if the file no longer exists.
    """
    for _, batch in scan_positions(storage, table_uri, file, columns):
        yield batch


def scan_positions(
    storage: Storage, table_uri: str, file: ScanFile, columns: Sequence[ScanColumn]
) -> Iterator[tuple[Integers, pa.RecordBatch]]:
    """Yield the same batches as ``scan``, each with the positions of its rows in the file."""
    try:
        yield from _scan(storage, table_uri, file, columns)
    except VersionGone:
        raise
    except StorageError as error:
        if error.sqlstate != _NO_FILE:
            raise
        raise VersionGone(
            f'a file of table "{table_uri}" is not there any more: {file.path}',
            detail="VACUUM has removed it.",
        ) from error


def _scan(
    storage: Storage, table_uri: str, file: ScanFile, columns: Sequence[ScanColumn]
) -> Iterator[tuple[Integers, pa.RecordBatch]]:
    gone = _positions(storage, table_uri, file.gone) or BitMap()
    only = _positions(storage, table_uri, file.only)
    with open_parquet(table_uri, file.path) as parquet:
        held = set(parquet.schema_arrow.names)
        read = [column.stored for column in columns if column.stored in held]

        def wanted(start: int, end: int) -> bool:
            asked = end > file.start and (file.stop is None or start < file.stop)
            return asked and (only is None or only.range_cardinality(start, end) > 0)

        for start, batch in read_batches(parquet, read, wanted=wanted):
            end = start + batch.num_rows
            if file.stop is not None and start >= file.stop:
                return
            if end > file.start:
                kept = _kept_rows(gone, only, start, end, file)
                positions = np.arange(start, end)
                if kept is not None:
                    batch, positions = batch.filter(pa.array(kept)), positions[kept]
                if batch.num_rows:
                    yield positions, _rename_columns(batch, file, columns)


def _positions(
    storage: Storage, table_uri: str, descriptor: Mapping[str, Any] | None
) -> BitMap | None:
    if descriptor is None:
        return None
    return deletion_vectors.read(storage, table_uri, dict(descriptor))


def _kept_rows(
    gone: BitMap, only: BitMap | None, start: int, end: int, file: ScanFile
) -> np.ndarray | None:
    """Return the mask of rows that are read among those from ``start`` to ``end``; None: all."""
    stop = end if file.stop is None else min(end, file.stop)
    here = BitMap(range(max(start, file.start), stop))
    if only is not None:
        here &= only
    here -= gone
    if len(here) == end - start:
        return None
    mask = np.zeros(end - start, bool)
    mask[numbers_of(here) - start] = True
    return mask


def _rename_columns(
    batch: pa.RecordBatch, file: ScanFile, columns: Sequence[ScanColumn]
) -> pa.RecordBatch:
    names = set(batch.schema.names)
    values = file.partition_values or {}
    arrays = []
    for column in columns:
        if column.stored in values:
            # The Delta log's value wins: Spark may also write the column to files, '' for NULL.
            value = partition_scalar(values[column.stored], column.type)
            arrays.append(pa.repeat(value, batch.num_rows))
        elif column.stored in names:
            array = batch.column(column.stored)
            arrays.append(array if array.type == column.type else _convert(array, column))
        else:
            arrays.append(pa.nulls(batch.num_rows, column.type))
    schema = pa.schema([pa.field(column.name, column.type) for column in columns])
    if not columns:
        return batch
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _convert(array: pa.Array, column: ScanColumn) -> pa.Array:
    """Convert a file's column to the table's present type: columns become wider, and writers choose
    their own layouts."""
    if _class(array.type) == _class(column.type) or pa.types.is_null(array.type):
        with contextlib.suppress(pa.ArrowException):
            return array.cast(column.type)
    raise RelationChanged(
        f'column "{column.name}" had another type when some of the rows were written',
        detail=f"It is {column.type} now and was {array.type}. A subscriber goes on once it has "
        "copied the table again.",
    )


def _class(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    for name, tests in _CLASSES.items():
        if any(getattr(pa.types, test)(kind) for test in tests):
            return name
    return str(kind)
