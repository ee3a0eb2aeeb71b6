"""Tasks of a batch's Spark job, as they run in an executor.

Items of work are frozen values that cross to executors, and results are values that cross back. An
expected error is returned as a value: an exception would come back as a Java stack trace, and the
results of the other tasks would be lost. ``job`` turns items into tasks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import duckdb
import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from penstock.errors import FeatureNotSupported, PenstockError, ValueNotRepresentable
from penstock.lakehouse.batches import read_rows
from penstock.lakehouse.deletion_vectors import bitmap_of
from penstock.lakehouse.files import WrittenFile, open_parquet
from penstock.lakehouse.partition_values import constants
from penstock.pipeline.columns import Integers
from penstock.pipeline.conflict import shown_values
from penstock.pipeline.dead_rows import DeadRows, EndAllItem, end_all, write_dead
from penstock.pipeline.duck import out_of_memory
from penstock.pipeline.hits import Hits
from penstock.pipeline.locate import LocateItem, locate
from penstock.pipeline.write import Completion, WriteItem, complete, write

HISTORY: Final = -1
"""The ``part`` of items and results that are for the history of a work's table."""


@dataclass(frozen=True)
class SearchItem:
    """Files of one table to search: locate the batch's keys in them, complete and write the new
    rows that need old rows of the files, and write their ``dead`` rows again, to as few files as
    they need.

    The first ``removals`` probe rows are keys that must exist and are removed; the other keys must
    not exist.
    """

    locates: tuple[LocateItem, ...]
    removals: int
    completions: tuple[Completion, ...] = ()
    dead: DeadRows | None = None

    @property
    def is_known(self) -> bool:
        """Return whether the item needs no more reading or writing."""
        known = all(where.known is not None for where in self.locates)
        return known and not self.completions and self.dead is None

    @property
    def work(self) -> int:
        """The number of the work."""
        return self.locates[0].work


@dataclass(frozen=True)
class ShowItem:
    """One file in which to locate few keys. A row of each is shown, with ``columns``."""

    locate: LocateItem
    columns: pa.Schema


Item = SearchItem | WriteItem | ShowItem | EndAllItem


@dataclass(frozen=True)
class Located:
    """Keys found in a file. Bitmaps are serialised: positions to delete, probe rows found, and
    probe rows found more than once. ``part``, here and below: the number of the file's table among
    the work's tables."""

    work: int
    path: str
    positions: bytes
    found: bytes
    repeated: bytes
    part: int = 0


@dataclass(frozen=True)
class Candidates:
    """Rows of a multiset that may be deleted: positions and the probe rows that they equal."""

    work: int
    path: str
    position: Integers
    probe: Integers
    part: int = 0


@dataclass(frozen=True)
class Written:
    """Files written for a table. ``completed``: the number of their rows that needed old versions;
    ``left_out``: the number of dead rows (``soft_delete``) that a rewrite dropped."""

    work: int
    files: tuple[WrittenFile, ...]
    completed: int = 0
    part: int = 0
    left_out: int = 0


@dataclass(frozen=True)
class ShownRows:
    """Rows found in a file, as pairs of probe row and text."""

    work: int
    path: str
    rows: tuple[tuple[int, str], ...]
    part: int = 0


@dataclass(frozen=True)
class Failed:
    """The error of a table's item. It does not stop other items."""

    work: int
    error: PenstockError


Result = Located | Candidates | Written | ShownRows | Failed


def run_item(item: Item) -> Iterator[Result]:
    """Do one item, in a task. An expected error is its last result."""
    work = item.locate.work if isinstance(item, ShowItem) else item.work
    try:
        yield from _run(item)
    except duckdb.OutOfMemoryException as error:
        yield Failed(work, out_of_memory(error))
    except PenstockError as error:
        yield Failed(work, error)


def _run(item: Item) -> Iterator[Result]:
    if isinstance(item, WriteItem):
        yield Written(item.work, tuple(write(item)), part=item.part)
        return
    if isinstance(item, EndAllItem):
        yield from _end_all(item)
        return
    if isinstance(item, ShowItem):
        yield _shown(item, locate(item.locate))
        return
    yield from _search(item)


def _search(item: SearchItem) -> Iterator[Result]:
    searched: list[tuple[LocateItem, Hits]] = []
    for where in item.locates:
        hits = locate(where)
        if where.multiset:
            yield Candidates(where.work, where.path, hits.position, hits.probe, where.part)
        elif len(hits.probe):
            searched.append((where, hits))
            yield _located(where, hits, item.removals)
    if not searched:
        return
    for completion in item.completions:
        for done in complete(completion, searched):
            yield Written(item.work, tuple(done.files), done.rows, done.part)
    if item.dead is not None:
        files = write_dead(item.dead, searched)
        rows = sum(file.rows for file in files)
        yield Written(item.work, tuple(files), rows, searched[0][0].part)


def _located(where: LocateItem, hits: Hits, removals: int) -> Located:
    found = bitmap_of(hits.probe)
    repeated = BitMap() if len(found) == len(hits.probe) else _repeated_numbers(hits.probe)
    goes = bitmap_of(hits.position[hits.probe < removals])
    return Located(
        where.work,
        where.path,
        goes.serialize(),
        found.serialize(),
        repeated.serialize(),
        where.part,
    )


def _shown(item: ShowItem, hits: Hits) -> ShownRows:
    where = item.locate
    probe, first = np.unique(hits.probe, return_index=True)
    order = np.argsort(first)  # by position
    rows = rows_as_text(where, item.columns, hits.position[first[order]])
    told = tuple(zip(probe[order].tolist(), rows, strict=True))
    return ShownRows(where.work, where.path, told, where.part)


def _end_all(item: EndAllItem) -> Iterator[Result]:
    position, files = end_all(item)
    none = BitMap().serialize()
    goes = bitmap_of(position).serialize()
    yield Located(item.work, item.path, goes, none, none, item.part)
    yield Written(item.work, tuple(files), part=item.part)


def _repeated_numbers(probe: Integers) -> BitMap:
    seen, twice = BitMap(), BitMap()
    for number in probe.tolist():
        (twice if number in seen else seen).add(number)
    return twice


# Rows of a data file as text for log messages. This runs inside tasks.
#
# Long values are cut here, so that little crosses to the driver. Memory holds one run of the file's
# rows at a time.


def rows_as_text(file: LocateItem, columns: pa.Schema, position: Integers) -> list[str]:
    """Return the rows at ascending positions of a file as text. Raises StorageError."""
    found: list[str] = []
    if not len(position):
        return found
    given = constants(file.partition_values, columns)
    with open_parquet(file.table_uri, file.path) as parquet:
        there = parquet.schema_arrow.names
        held = [name for name in columns.names if name in there and name not in given]
        for _, rows in read_rows(parquet, held, position):
            values = [_values(rows, field, given.get(field.name)) for field in columns]
            found += [f"({', '.join(row)})" for row in zip(*values, strict=True)]
    return found


def _values(rows: pa.RecordBatch, field: pa.Field, given: pa.Scalar | None) -> list[str]:
    """Return the values of one column as text. A value of another writer that cannot be shown is
    "?", since the conflict must be reported anyway. ``given``: the value that all rows have. A
    column that the file lacks was added later, and is NULL."""
    if given is None and field.name not in rows.schema.names:
        return ["null"] * rows.num_rows
    try:
        column = rows.column(field.name) if given is None else pa.repeat(given, rows.num_rows)
        return shown_values(pa.chunked_array([column.cast(field.type)]))
    except (FeatureNotSupported, ValueNotRepresentable, pa.ArrowException):
        return ["?"] * rows.num_rows
