"""The rows of one small table that an UPDATE or DELETE changes, read and written by its files.

``LeafWork`` computes the new values, routes each new row, and collects files and positions for a
commit with deletion vectors. If an UPDATE changes the identity of rows, it also writes pairs of old
and new rows. Memory holds a run of rows of one file, new values of 10,000 of them, and the pairs.
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
from penstock.executor.shown_rows import first_null_of_leaves, null_error
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
"""Rows whose values are computed at a time, as many as Spark takes. The number is limited as new
values may be larger than old ones."""


class LeafWork:
    """Hold the state of one attempt on one leaf. ``gone``: path -> positions; ``files``: new files
    by the number of their leaf.
    ``keyed``: columns of the leaves' unique keys, by their names in Delta. If the change concerns
    keys, ``came`` holds the new values of these columns with each row's new leaf, and ``went``
    holds each row's old place.
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
        """The number of rows that are changed."""
        return sum(len(positions) for positions in self.gone.values())

    @property
    def leaves(self) -> bool:
        """True if any row moves to another leaf."""
        return any(to != self.number for to in self.files)

    def run(self) -> None:
        """Read, compute and write. Raises PenstockError; nothing is left behind then."""
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
        """Write and return the files that map each new row to its old one."""
        pairs = [table for table in self._pairs if table.num_rows]
        if pairs:
            folder, storage = pairs_folder(self.table.uri), self.table.storage
            storage.create_folder(folder)
            self._pair_files = FileWriter(storage, folder, pairs[0].schema).write(pairs)
        return self._pair_files

    def remove(self) -> None:
        """Remove the files that were written and are not staged."""
        for to, files in self.files.items():
            for file in files:
                self.table.storage.remove(f"{self.opened[to].uri}/{file.path}")
        self._remove_pairs()

    def _remove_pairs(self) -> None:
        for file in self._pair_files:
            self.table.storage.remove(f"{pairs_folder(self.table.uri)}/{file.path}")

    def _new_rows(self) -> Iterator[tuple[pa.RecordBatch, Integers | None]]:
        """Yield the new rows with their leaves; ``gone`` is complete afterwards."""
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
                    leaves: Integers | None = None
                    if self._routed:
                        leaves = self._route.leaves_of(new)
                    self._check_not_null(new, leaves)
                    self._pair(rows, new, leaves)
                    if self._tracked and len(meant):
                        self.came.append((new.select(self._tracked), leaves))
                        self.went.append((path, meant))
                    yield new, leaves
                if len(meant):
                    self.gone.setdefault(path, BitMap()).update(meant.tolist())

    def _files(self) -> list[tuple[str, DataFile]]:
        """Return the files that may have rows for which the condition holds."""
        files = self.table.state.files
        keys = wanted_keys(columns_of(self.table.state), self._change.equal)
        if keys is None:
            return list(files.items())
        may_have = set(map(id, candidates(files.values(), keys)))
        return [(path, file) for path, file in files.items() if id(file) in may_have]

    def _meant(self, positions: Integers, batch: pa.RecordBatch) -> tuple[Integers, pa.RecordBatch]:
        """Return the positions and rows for which the condition holds."""
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

    def _check_not_null(self, new: pa.RecordBatch, leaves: Integers | None) -> None:
        """Check the new rows for NULL. Of rows that stay, only the columns that are set are
        checked: others may have put NULL into the rest."""
        known = self._change.known
        required = required_columns(self._route, self.opened, self._change.required)
        required[self.number] &= {column.name for column, _ in self._change.settings}
        if leaves is None:
            leaves = np.full(new.num_rows, self.number)
        at = first_null_of_leaves(known, required, new, leaves)
        if at is not None:
            number = int(leaves[at])
            leaf = self._route.leaves[number]
            raise null_error(leaf, known, required[number], new.slice(at, 1))

    def _values(self, computed: Computed, rows: pa.RecordBatch) -> pa.Array:
        """Return the computed value of each row. Raises PenstockError (57014: the statement was
        cancelled)."""
        arguments = (rows.column(column.delta) for column in computed.arguments)
        with self._interrupts.interrupting(connection().interrupt):
            try:
                return computed.evaluation.values(*arguments)
            except PenstockError:
                self._interrupts.check()
                raise

    def _pair(self, old: pa.RecordBatch, new: pa.RecordBatch, leaves: Integers | None) -> None:
        """Add the pairs of the rows that stay. Rows that leave are a delete and an insert."""
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
    """Return the columns that a condition reads, but at least one, to count the rows."""
    return (change.where.arguments if change.where else ()) or change.known[:1]
