"""Change the rows of one small table by an UPDATE or DELETE, reading and writing its files.

``LeafWork`` computes the new values, routes each new row, and collects new files and old row
numbers for a commit with deletion vectors. If an UPDATE changes the replica identity, it also
writes pairs of old and new rows. Memory holds a batch of a file, 10,000 new values and the pairs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap

from penstock.errors import PenstockError
from penstock.executor.routes import (
    OpenTable,
    Route,
    destination,
    required_columns,
)
from penstock.executor.row_pairs import distinct_rows, pair_schema, paired_columns
from penstock.executor.rows import Computed, RowChange
from penstock.executor.shown_rows import first_null, null_error
from penstock.executor.skipping import wanted_keys
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.files import TARGET_FILE_BYTES, FileWriter, WrittenFile
from penstock.lakehouse.row_pairs import pairs_folder
from penstock.pipeline.columns import Integers
from penstock.pipeline.duck import connection
from penstock.pipeline.prune import candidates
from penstock.pipeline.query import Interrupts
from penstock.pipeline.routed_writer import RoutedWriter
from penstock.pipeline.scan import ScanColumn, ScanFile, scan_positions
from penstock.walsender.lake_columns import LakeColumn, columns_of, schema_of

_ROWS: Final = 10_000
"""The rows whose values are computed at a time, as many as in Spark. The number is limited because
new values may be larger than old ones."""


class LeafWork:
    """One attempt to change one leaf. ``gone``: row numbers of old rows by file path; ``files``:
    new files by the number of their leaf.
    ``keyed``: columns of the leaves' unique keys, by their names in Delta. If the change may change
    keys, ``came`` holds the new values of these columns with each row's new leaf, and ``went``
    holds the file and row number of each old row.
    """

    def __init__(
        self,
        route: Route,
        number: int,
        opened: Sequence[OpenTable],
        change: RowChange,
        interrupts: Interrupts,
        *,
        keyed: frozenset[str] = frozenset(),
    ) -> None:
        self.number: Final = number
        self.opened: Final = opened
        self.table: Final = opened[number]
        self.gone: Final[dict[str, BitMap]] = {}
        self.files: Final[dict[int, list[WrittenFile]]] = {}
        self._route = route
        self._change = change
        self._interrupts = interrupts
        self._schema = schema_of(change.known).arrow()
        changed = {column.delta for column, _ in change.settings}
        self._routed = bool(changed & route.keys)
        tracked = keyed if self._routed or changed & keyed else ()
        self._tracked = [name for name in self._schema.names if name in tracked]
        self.came: Final[list[tuple[pa.RecordBatch, Integers | None]]] = []
        self.went: Final[list[tuple[str, Integers]]] = []
        self._paired = paired_columns(route.leaves[number], change.known, changed)
        self._pairs: list[pa.Table] = []
        self._pair_files: list[WrittenFile] = []

    @property
    def count(self) -> int:
        """The number of changed rows."""
        return sum(len(positions) for positions in self.gone.values())

    @property
    def leaves(self) -> bool:
        """True if any row moves to another leaf."""
        return any(to != self.number for to in self.files)

    def run(self) -> None:
        """Read, compute and write. Raises PenstockError, and then leaves no files."""
        routing = self._route.routing if self._routed else None
        to = [destination(table, self._schema) for table in self.opened]
        places = to if routing is not None else [to[self.number]]
        writer = RoutedWriter(places, routing, TARGET_FILE_BYTES)
        with writer:
            for new, leaves in self._new_rows():
                writer.add(new, leaves)
        for at, file in writer.files:
            number = self.number if routing is None else at
            self.files.setdefault(number, []).append(file)

    def write_pairs(self) -> Sequence[WrittenFile]:
        """Write and return the files that map each new row to its old row."""
        pairs = [table for table in self._pairs if table.num_rows]
        if pairs:
            folder, storage = pairs_folder(self.table.uri), self.table.storage
            storage.create_folder(folder)
            self._pair_files = FileWriter(storage, folder, pairs[0].schema).write(pairs)
        return self._pair_files

    def remove(self) -> None:
        """Remove the files that were written but not staged."""
        for to, files in self.files.items():
            for file in files:
                self.table.storage.remove(f"{self.opened[to].uri}/{file.path}")
        self._remove_pairs()

    def _remove_pairs(self) -> None:
        for file in self._pair_files:
            self.table.storage.remove(f"{pairs_folder(self.table.uri)}/{file.path}")

    def _new_rows(self) -> Iterator[tuple[pa.RecordBatch, Integers | None]]:
        """Yield the new rows with their leaves. At the end ``gone`` is complete."""
        updates = bool(self._change.settings)
        columns = self._change.known if updates else _used(self._change)
        scanned = [ScanColumn(c.delta, c.stored, c.type) for c in columns]
        storage, uri = self.table.storage, self.table.uri
        for path, file in self._files():
            for positions, batch in _portions(
                scan_positions(storage, uri, ScanFile.of(file), scanned)
            ):
                self._interrupts.check()
                meant, rows = self._meant(positions, batch)
                if updates and rows.num_rows:
                    new = self._changed(rows)
                    leaves = self._leaves(new)
                    self._pair(rows, new, leaves)
                    if self._tracked and len(meant):
                        self.came.append((new.select(self._tracked), leaves))
                        self.went.append((path, meant))
                    yield new, leaves
                if len(meant):
                    self.gone.setdefault(path, BitMap()).update(meant.tolist())

    def _files(self) -> list[tuple[str, DataFile]]:
        """Return the files that may contain rows that meet the condition."""
        files = self.table.state.files
        keys = wanted_keys(columns_of(self.table.state), self._change.equal)
        if keys is None:
            return list(files.items())
        may_have = set(map(id, candidates(files.values(), keys)))
        return [(path, file) for path, file in files.items() if id(file) in may_have]

    def _meant(self, positions: Integers, batch: pa.RecordBatch) -> tuple[Integers, pa.RecordBatch]:
        """Return the rows that meet the condition, after their row numbers."""
        if self._change.where is None:
            return positions, batch
        holds = pc.fill_null(self._values(self._change.where, batch), False)
        return positions[np.asarray(holds)], batch.filter(holds)

    def _changed(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        settings = {column.delta: value for column, value in self._change.settings}
        columns = [
            self._values(settings[name], rows) if name in settings else rows.column(name)
            for name in self._schema.names
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _leaves(self, new: pa.RecordBatch) -> Integers | None:
        """Return the leaves of the new rows; None if they stay where they are. For rows that stay
        in their leaf, check NOT NULL only in columns that are set: other writers may have put NULL
        into the rest. Raises PenstockError (23502, 23514)."""
        known, number = self._change.known, self.number
        required = required_columns(self._route, self.opened, self._change.required)
        required[number] &= {column.name for column, _ in self._change.settings}
        if self._routed:
            placed = self._route.place(new, known, required)
            if placed.error is not None:
                raise placed.error
            return placed.leaves
        at = first_null(known, required[number], new)
        if at is not None:
            raise null_error(self._route.leaves[number], known, required[number], new.slice(at, 1))
        return None

    def _values(self, computed: Computed, rows: pa.RecordBatch) -> pa.Array:
        """Return the computed value of each row. Raises PenstockError (57014 if the statement was
        cancelled)."""
        arguments = (rows.column(column.delta) for column in computed.arguments)
        with self._interrupts.interrupting(connection().interrupt):
            try:
                return computed.evaluation.values(*arguments)
            except PenstockError:
                self._interrupts.check()
                raise

    def _pair(self, old: pa.RecordBatch, new: pa.RecordBatch, leaves: Integers | None) -> None:
        """Add the pairs of rows that stay in the leaf. Rows that move become DELETE and INSERT."""
        if not self._paired:
            return
        if leaves is not None:
            stays = pa.array(leaves == self.number)
            old, new = old.filter(stays), new.filter(stays)
        cells = [
            *(old.column(column.delta) for column in self._paired),
            *(new.column(column.delta) for column in self._paired),
        ]
        found = pa.table(cells, schema=pair_schema(self._paired))
        self._pairs.append(distinct_rows(found, self._paired))


def _portions(
    batches: Iterator[tuple[Integers, pa.RecordBatch]],
) -> Iterator[tuple[Integers, pa.RecordBatch]]:
    for positions, batch in batches:
        for at in range(0, batch.num_rows, _ROWS):
            yield positions[at : at + _ROWS], batch.slice(at, _ROWS)


def _used(change: RowChange) -> tuple[LakeColumn, ...]:
    """Return the columns that the condition reads, or any column if it reads none."""
    return (change.where.arguments if change.where else ()) or change.known[:1]
