"""Check primary keys, UNIQUE and unique indexes, for rows that sessions write (nbtinsert.c,
_bt_check_unique).

The new rows of a leaf are compared with the rows of a version, except for the rows that they
replace. The first row with an existing key raises 23505. Rows are checked one after another, as in
PostgreSQL: a new row also conflicts with the key of a row that the same UPDATE changes later. After
a lost race only other commits' files are checked. Writers outside of the node are not checked.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from penstock.catalog import Catalog, LakeTable
from penstock.executor.held_rows import Held, held_error
from penstock.executor.routes import OpenTable, Route
from penstock.executor.row_work import LeafWork
from penstock.executor.rows import RowChange, delta_table
from penstock.executor.rows import quoted as backquoted
from penstock.executor.shown_rows import null_error
from penstock.identifiers import quoted
from penstock.lakehouse.change import StagedChange
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.deletion_vectors import numbers_of
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.schema import DELETED_AT, TableSchema
from penstock.lakehouse.state import TableState
from penstock.lakehouse.storage import Storage
from penstock.pgtypes.text_output import text_output
from penstock.pipeline.columns import Integers
from penstock.pipeline.duck import lent, read_into
from penstock.pipeline.hits import Hits
from penstock.pipeline.key_indexes import KeyIndexes
from penstock.pipeline.rows_with_keys import KeyedTable, columns_of_files, rows_with_keys
from penstock.pipeline.scan import ScanColumn
from penstock.precedence import PRECEDENCE
from penstock.sql.text.quoting import quote_identifier
from penstock.sqlstate import UniqueViolation
from penstock.walsender.lake_columns import LakeColumn, columns_of

_ORDER: Final = "penstock: order"
"""The column with the order number of a row: its place in the order of the statement."""
_BEFORE: Final = -1
"""The order number of rows that are deleted before any new row is added."""
_POLL_S: Final = 0.1
"""How often, in seconds, a waiting session checks whether it was cancelled."""


@dataclass(frozen=True)
class UniqueKey:
    """A unique key. ``name``: the name of the constraint or of the unique index."""

    name: str
    columns: tuple[LakeColumn, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names in Delta."""
        return tuple(column.delta for column in self.columns)


def unique_keys(leaf: LakeTable, columns: Iterable[LakeColumn]) -> tuple[UniqueKey, ...]:
    """Return the keys of a leaf in the order in which PostgreSQL checks them. A key is left out if
    another writer has dropped one of its columns."""
    known = {column.name: column for column in columns}
    declared = [(index.name, index.columns) for index in leaf.indexes]
    if leaf.primary_key:
        declared.insert(0, (leaf.primary_key_name, leaf.primary_key))
    return tuple(
        UniqueKey(name, tuple(known[column] for column in key))
        for name, key in declared
        if known.keys() >= set(key)
    )


@dataclass(frozen=True)
class Leaving:
    """Rows that a statement removes from a file. ``position``: their row numbers in the file,
    ascending; ``order``: when the statement removes them."""

    position: Integers
    order: Integers

    def is_there(self, position: Integers, order: Integers) -> np.ndarray:
        """Tell whether the rows at these positions still exist when the statement adds the rows
        with the numbers ``order``. The row that such a row replaces no longer exists."""
        at = np.searchsorted(self.position, position)
        at[at == len(self.position)] = 0
        goes = self.position[at] == position
        return np.asarray(~goes | (self.order[at] > order))


@dataclass(frozen=True)
class IncomingRows:
    """New rows of a leaf. ``read`` yields the given columns, by their names in Delta, and each
    row's number in the statement. ``leaving``: the leaf's removed rows, by file path."""

    read: Callable[[Sequence[LakeColumn]], Iterator[tuple[pa.Table, Integers]]]
    leaving: Mapping[str, Leaving] = field(default_factory=dict)


Violation = tuple[int, int, pa.Table]
"""A row that violates a key: (its number in the statement, the key's number, the key's values)."""


class LeafKeys:
    """Checks the keys of new rows of one leaf."""

    def __init__(
        self,
        leaf: LakeTable,
        keys: Sequence[UniqueKey],
        table: tuple[Storage, str, TableSchema],
        new: IncomingRows,
        search: UniqueKeys,
    ) -> None:
        self._leaf = leaf
        self._keys = keys
        self._table = table
        self._new = new
        self._search = search

    def check(self, files: Collection[DataFile], held: Held) -> None:
        """Raise UniqueViolation for the first new row whose key exists in the leaf's ``files`` or
        in an earlier new row; SerializationFailure for keys that a prepared transaction adds."""
        self._raise([*self._twice(), *self._there(files)])
        for gid, change in held.changes:
            if change.relation == self._leaf.oid and any(self._there(change.added.values())):
                raise held_error(gid, change)

    def check_files(self, files: Collection[DataFile]) -> None:
        """Raise UniqueViolation if ``files``, which others committed, contain one of the keys."""
        self._raise(list(self._there(files)))

    def _there(self, files: Iterable[DataFile]) -> Iterator[Violation]:
        files = tuple(files)
        for number, key in enumerate(self._keys if files else ()):
            storage, uri, schema = self._table
            table = KeyedTable(storage, uri, TableSchema(schema.columns, key.names))
            for rows, order in self._whole(key):
                hits = self._search.find(table, files, rows)
                for path, found in hits.items():
                    probe = np.asarray(found.probe)
                    if (leaving := self._new.leaving.get(path)) is not None:
                        probe = probe[leaving.is_there(found.position, order[probe])]
                    if len(probe):
                        first = int(probe[np.argmin(order[probe])])
                        yield int(order[first]), number, rows.slice(first, 1)

    def _twice(self) -> Iterator[Violation]:
        """Yield, for each unique key, the first new row with the values of an earlier new row."""
        for number, key in enumerate(self._keys):
            names = list(key.names)
            schema = pa.schema([(c.delta, c.type) for c in key.columns])
            schema = schema.append(pa.field(_ORDER, pa.int64()))
            parts = self._whole(key)
            begin = list(itertools.islice(parts, 2))
            if sum(rows.num_rows for rows, _ in begin) < 2:
                continue
            columns = ", ".join(map(quoted, names))
            turn = quoted(_ORDER)
            with lent(change=True) as duck:
                read_into(duck, "new_keys", schema, _batches(itertools.chain(begin, parts), schema))
                try:
                    twice = duck.execute(
                        f"SELECT 1 FROM new_keys GROUP BY {columns} HAVING count(*) > 1 LIMIT 1"
                    ).fetchall()
                    if twice:
                        row = duck.sql(
                            f"SELECT {columns}, {turn} FROM new_keys QUALIFY row_number() OVER "
                            f"(PARTITION BY {columns} ORDER BY {turn}) > 1 ORDER BY {turn} LIMIT 1"
                        ).to_arrow_table()
                        yield row.column(_ORDER)[0].as_py(), number, row.select(names)
                finally:
                    duck.execute("DROP TABLE new_keys")

    def _whole(self, key: UniqueKey) -> Iterator[tuple[pa.Table, Integers]]:
        """Yield the new rows without NULL in the key: a key with NULL never conflicts."""
        for rows, order in self._new.read(key.columns):
            valid = np.ones(rows.num_rows, bool)
            for column in rows.columns:
                if column.null_count:
                    valid &= column.is_valid().to_numpy()
            if not valid.all():
                rows, order = rows.filter(pa.array(valid)), order[valid]
            if rows.num_rows:
                yield rows, order

    def _raise(self, found: Sequence[Violation]) -> None:
        if not found:
            return
        _, number, row = min(found, key=lambda each: each[:2])
        raise duplicate_error(self._leaf, self._keys[number], row)


def duplicate_error(leaf: LakeTable, key: UniqueKey, row: pa.Table) -> UniqueViolation:
    """Return the error for a row whose key exists. ``row``: its values, in the key's columns."""
    names = ", ".join(quote_identifier(column.name) for column in key.columns)
    cells = [text_output(column.combine_chunks())[0].as_py() for column in row.columns]
    values = ", ".join(cell.decode() for cell in cells)
    return UniqueViolation(
        f'duplicate key value violates unique constraint "{key.name}"',
        detail=f"Key ({names})=({values}) already exists.",
        objects={"schema": leaf.schema, "table": leaf.name, "constraint": key.name},
    )


def _batches(
    parts: Iterable[tuple[pa.Table, Integers]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    for rows, order in parts:
        whole = rows.append_column(_ORDER, pa.array(order))
        yield from pa.Table.from_arrays(whole.columns, schema=schema).to_batches()


def _coming(
    works: Sequence[LeafWork], turns: Mapping[int, int], number: int
) -> Callable[[Sequence[LakeColumn]], Iterator[tuple[pa.Table, Integers]]]:
    """Return a reader of an UPDATE's new rows in one leaf, including rows that move there."""

    def read(columns: Sequence[LakeColumn]) -> Iterator[tuple[pa.Table, Integers]]:
        names = [column.delta for column in columns]
        parts, orders = [], []
        for work in works:
            turn = turns[work.number]
            for batch, leaves in work.came:
                order = np.arange(turn, turn + batch.num_rows)
                turn += batch.num_rows
                goes = np.full(batch.num_rows, work.number) if leaves is None else leaves
                if (mine := goes == number).any():
                    parts.append(batch.select(names).filter(pa.array(mine)))
                    orders.append(order[mine])
        if parts:
            yield pa.Table.from_batches(parts), np.concatenate(orders)

    return read


def _going(work: LeafWork, turn: int) -> dict[str, Leaving]:
    found: dict[str, list[tuple[Integers, Integers]]] = {}
    for path, position in work.went:
        order = np.arange(turn, turn + len(position))
        turn += len(position)
        found.setdefault(path, []).append((np.asarray(position, np.int64), order))
    return {
        path: Leaving(*(np.concatenate(each) for each in zip(*parts, strict=True)))
        for path, parts in found.items()
    }


def _of_files(
    storage: Storage, uri: str, files: Sequence[DataFile]
) -> Callable[[Sequence[LakeColumn]], Iterator[tuple[pa.Table, Integers]]]:
    """Return a reader of rows that are already written to files."""

    def read(columns: Sequence[LakeColumn]) -> Iterator[tuple[pa.Table, Integers]]:
        scanned = [ScanColumn(column.delta, column.stored, column.type) for column in columns]
        return columns_of_files(storage, uri, files, scanned)

    return read


class UniqueKeys:
    """Checks unique keys, for all sessions. ``indexes``: indexes of the keys in files; None: the
    files themselves are searched."""

    def __init__(
        self, spark: Spark, storage: Storage, catalog: Catalog, indexes: KeyIndexes | None
    ) -> None:
        self._spark = spark
        self._storage = storage
        self._catalog = catalog
        self._indexes = indexes
        self._turns: dict[int, threading.Lock] = {}

    @contextmanager
    def turn(
        self, relations: Iterable[int], check: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Lock these tables, so that only one session at a time adds keys to them: rows that Spark
        writes, and rows that move, cannot be checked again after a lost race. While waiting, call
        ``check``, which raises if the statement is cancelled."""
        with ExitStack() as stack:
            for oid in sorted(set(relations)):
                lock = self._turns.setdefault(oid, threading.Lock())
                while not lock.acquire(timeout=_POLL_S):
                    check()
                stack.callback(lock.release)
            stack.enter_context(PRECEDENCE.holding())
            yield

    def find(self, table: KeyedTable, files: Iterable[DataFile], keys: pa.Table) -> dict[str, Hits]:
        """Return the rows with these keys, by file path."""
        return rows_with_keys(table, files, keys, self._spark, self._indexes)

    def of(
        self, leaf: LakeTable, table: OpenTable, known: Sequence[LakeColumn], new: IncomingRows
    ) -> LeafKeys | None:
        """Return the checker for new rows of a leaf; None if the leaf has no unique key."""
        keys = unique_keys(leaf, known)
        if not keys:
            return None
        return LeafKeys(leaf, keys, (table.storage, table.uri, table.schema), new, self)

    def of_files(
        self,
        routed: Route,
        opened: Sequence[OpenTable],
        files: Sequence[tuple[int, WrittenFile]],
        known: Sequence[LakeColumn],
    ) -> Iterator[tuple[int, LeafKeys]]:
        """Yield the checkers for the new rows of an INSERT, each after the number of its leaf.
        ``files``: the written files, each after the number of its leaf."""
        for number, leaf in enumerate(routed.leaves):
            mine = [DataFile.of_written(file, 0) for to, file in files if to == number]
            table = opened[number]
            new = IncomingRows(_of_files(table.storage, table.uri, mine))
            if mine and (keys := self.of(leaf, table, known, new)) is not None:
                yield number, keys

    def keyed(self, leaves: Iterable[LakeTable], known: Sequence[LakeColumn]) -> frozenset[str]:
        """Return the names in Delta of the columns of all keys."""
        keys = (key for leaf in leaves for key in unique_keys(leaf, known))
        return frozenset(name for key in keys for name in key.names)

    def concerns(self, routed: Route, change: RowChange) -> bool:
        """Tell whether an UPDATE may add a key to a leaf."""
        changed = {column.delta for column, _ in change.settings}
        keyed = self.keyed(routed.leaves, change.known)
        return bool(keyed) and not changed.isdisjoint(keyed | routed.keys)

    def check_works(
        self, routed: Route, works: Sequence[LeafWork], known: Sequence[LakeColumn], held: Held
    ) -> None:
        """Check the new rows of an UPDATE against the files of its opened leaves. Raises as
        ``LeafKeys.check``."""
        starts = np.cumsum([0, *(sum(len(at) for _, at in work.went) for work in works)])
        if not starts[-1]:
            return
        turns = {work.number: int(start) for work, start in zip(works, starts, strict=False)}
        for number, leaf in enumerate(routed.leaves):
            coming = _coming(works, turns, number)
            mine = next((work for work in works if work.number == number), None)
            going = {} if mine is None else _going(mine, turns[number])
            table = works[0].opened[number]
            new = IncomingRows(coming, going)
            if (keys := self.of(leaf, table, known, new)) is not None:
                keys.check(table.state.files.values(), held)

    def check_staged(self, change: StagedChange, state: TableState) -> None:
        """Check the keys that a block has staged against rows that others have committed after the
        block's own check. ``state``: the version before the block's commit. Raises
        UniqueViolation."""
        if not change.added or state.version == change.since:
            return
        with self._catalog.read() as t:
            leaf = t.tables.find_oid(change.relation)
        columns = columns_of(state)
        keys = () if leaf is None else unique_keys(leaf, columns)
        if leaf is None or not keys:
            return
        mine = [file for file in change.added.values() if file.live_rows]
        gone = {
            path: Leaving(numbers_of(loss.positions), np.full(len(loss.positions), _BEFORE))
            for path, loss in change.gone.items()
        }
        storage = self._storage
        schema = TableSchema.of_delta(state.metadata["schemaString"], state.properties)
        new = IncomingRows(_of_files(storage, change.uri, mine), gone)
        others = [file for path, file in state.files.items() if path not in change.added]
        LeafKeys(leaf, keys, (storage, change.uri, schema), new, self).check_files(others)


# Keys and NOT NULL of tables that only Spark may write: Spark jobs check them before the change.


def live_rows(leaf: LakeTable, session: SparkSession, but: str = "") -> DataFrame:
    """Return the rows of a leaf that are not soft-deleted and do not meet the condition ``but``."""
    rows = session.sql(f"SELECT * FROM {delta_table(leaf)}")
    if DELETED_AT in rows.columns:
        rows = rows.where(f"{backquoted(DELETED_AT)} IS NULL")
    return rows.where(f"NOT coalesce({but}, false)") if but else rows


def check_unique(
    rows: DataFrame, others: DataFrame, leaf: LakeTable, keys: Sequence[UniqueKey]
) -> None:
    """Check that the keys of the new ``rows`` occur neither twice nor in ``others``, the unchanged
    rows. Raises UniqueViolation."""
    for key in keys:
        names = [backquoted(name) for name in key.names]
        columns = [f"{name} AS k{number}" for number, name in enumerate(names)]
        plain = [f"k{number}" for number, _ in enumerate(names)]
        new = rows.where(" AND ".join(f"{name} IS NOT NULL" for name in names)).selectExpr(*columns)
        twice = new.groupBy(*plain).count().where("count > 1").select(*plain)
        there = new.join(others.selectExpr(*columns), on=plain, how="left_semi").select(*plain)
        found: pa.Table = twice.union(there).limit(1).toArrow()
        if found.num_rows:
            raise duplicate_error(leaf, key, found)


def check_not_null(
    rows: DataFrame, leaf: LakeTable, columns: Sequence[LakeColumn], required: Collection[str]
) -> None:
    """Check NOT NULL in ``rows``, which have all columns. Raises NotNullViolation."""
    missing = [f"{backquoted(c.delta)} IS NULL" for c in columns if c.name in required]
    if not missing:
        return
    names = [backquoted(column.delta) for column in columns]
    found: pa.Table = rows.where(" OR ".join(missing)).select(*names).limit(1).toArrow()
    for row in found.combine_chunks().to_batches():
        raise null_error(leaf, columns, required, row)
