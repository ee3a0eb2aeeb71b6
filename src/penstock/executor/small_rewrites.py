"""UPDATE and DELETE of small tables by their files, without a job of Spark's.

In: what is computed of the rows, and the table. Out: one Delta commit of each table that has rows
to change, and the number of rows. If the tables are large, or only Delta itself knows what they ask
of their writers, the answer is None and nothing is done. ``row_work`` changes the rows of one
table; ``row_moves`` commits rows that leave their partition.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Final

from penstock.catalog import Catalog, LakeTable
from penstock.errors import CommitConflict, FeatureNotSupported, PenstockError
from penstock.executor.block_commit import CommitBlocks
from penstock.executor.held_rows import Held, HeldRows
from penstock.executor.routes import Route, check_columns, route
from penstock.executor.row_moves import Departures, RowMoves, check_not_filled
from penstock.executor.row_work import LeafWork
from penstock.executor.rows import RowChange, outrun, serialization_failure
from penstock.executor.tables import LakeTables
from penstock.executor.unique_keys import UniqueKeys
from penstock.lakehouse.row_moves import Arrivals
from penstock.lakehouse.schema import check_lengths
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.pipeline.query import Interrupts
from penstock.sqlstate import SerializationFailure, UndefinedTable, UniqueViolation

MAX_BYTES: Final = 8 << 20
"""The most bytes that the files of all tables may have together: so much is read and written here
before Spark would have begun."""
_TRIES: Final = 20
"""Attempts at a statement while others commit to its tables."""
_CHANGE_FEED: Final = "delta.enableChangeDataFeed"
"""The property of tables with a change data feed. Its readers need to see which new row was which
old one, and only Delta's own UPDATE tells them."""


def has_change_feed(table: DeltaTable) -> bool:
    """Tell whether the table has a change data feed, so that only Delta may change its rows."""
    return table.properties.get(_CHANGE_FEED, "false").lower() == "true"


class SmallRewrites:
    """Run UPDATE and DELETE on small tables, for all sessions."""

    def __init__(
        self,
        warehouse: Warehouse,
        catalog: Catalog,
        tables: LakeTables,
        moves: RowMoves,
        blocks: CommitBlocks,
        held: HeldRows,
        unique: UniqueKeys,
    ) -> None:
        self._unique = unique
        self._warehouse = warehouse
        self._catalog = catalog
        self._tables = tables
        self._moves = moves
        self._blocks = blocks
        self._held = held

    def run(
        self, table: LakeTable, change: RowChange, interrupts: Interrupts, *, filled: bool
    ) -> int | None:
        """Return the number of changed rows, or None if Spark has to change them. ``filled``: a
        subscription fills the table, so that no row may move. Raises PenstockError (23502, 23505,
        23514; 40001: the table was altered, or others were always first; 40003: the same when a
        part was done)."""
        try:
            found = route(self._catalog, self._tables, table, change.known)
        except FeatureNotSupported:
            return None
        leaves = [leaf.oid for leaf in found.leaves]
        keyed = self._unique.concerns(found, change)
        turn = self._unique.turn(leaves if keyed else (), interrupts.check)
        with self._held.changing(leaves, new_rows=keyed) as held, turn:
            for _ in range(_TRIES):
                opened = self._open(found.leaves)
                if opened is None:
                    return None
                if not self._blocks.settled(leaves):
                    continue
                check_columns(self._tables, found.table, change.known, opened)
                try:
                    return self._attempt(found, change, opened, interrupts, held, filled=filled)
                except CommitConflict:
                    interrupts.check()
        raise outrun(table)

    def _open(self, leaves: Sequence[LakeTable]) -> list[DeltaTable] | None:
        """Open the leaves; return None if they are large, or may not be written by files."""
        try:
            found = [self._load(leaf) for leaf in leaves]
        except FeatureNotSupported:
            return None
        size = sum(file.size for table in found for file in table.files.values())
        fed = any(map(has_change_feed, found))
        return None if size > MAX_BYTES or fed else found

    def _load(self, leaf: LakeTable) -> DeltaTable:
        warehouse, uri = self._warehouse, leaf.uri or ""
        name = leaf.qualified_name
        table = DeltaTable.load(warehouse.storage, warehouse.store, uri, name)
        if table is None:
            raise UndefinedTable(f'relation "{name}" does not exist')
        check_lengths(table.state.metadata["schemaString"])
        return table

    def _attempt(
        self,
        found: Route,
        change: RowChange,
        opened: Sequence[DeltaTable],
        interrupts: Interrupts,
        held: Held,
        *,
        filled: bool,
    ) -> int:
        """Compute everything, and only then commit. If it raises CommitConflict, nothing was
        done."""
        keyed = self._unique.keyed(found.leaves, change.known)
        works: list[LeafWork] = []
        try:
            for number in range(len(opened)):
                works.append(LeafWork(found, number, opened, change, interrupts, keyed=keyed))
                works[-1].run()
                held.check(found.leaves[number].oid, works[-1].gone)
            self._unique.check_works(found, works, change.known, held)
            touched = [work for work in works if work.count]
            moves = any(work.leaves for work in touched)
            if moves:
                check_not_filled(filled=filled)
        except BaseException:
            for work in works:
                work.remove()
            raise
        if moves:
            self._move(found, touched)
            return sum(work.count for work in touched)
        return self._commit_each(touched, found, change, interrupts, held)

    def _move(self, found: Route, works: Sequence[LeafWork]) -> None:
        group = str(uuid.uuid4())
        departures = [
            Departures(
                work.table,
                work.pairs_mark(),
                work.gone,
                work.files.get(work.number, ()),
                [
                    Arrivals.of_written(group, found.leaves[to].oid, work.opened[to].version, files)
                    for to, files in work.files.items()
                    if to != work.number
                ],
            )
            for work in works
        ]
        self._moves.commit(departures, found.leaves, group)

    def _commit_each(
        self,
        works: Sequence[LeafWork],
        found: Route,
        change: RowChange,
        interrupts: Interrupts,
        held: Held,
    ) -> int:
        """Commit one table after another. Once one has changed, the others are tried again until
        they follow. A row that came there meanwhile and would move is younger than the statement,
        which leaves it as it is."""
        count = 0
        for done, work in enumerate(works):
            try:
                count += work.commit()
                continue
            except BaseException as error:
                if not (done and isinstance(error, CommitConflict)):
                    for rest in works[done + 1 :]:
                        rest.remove()
                    raise
            try:
                count += self._again(work.number, found, change, interrupts, held)
            except SerializationFailure as error:
                for rest in works[done + 1 :]:
                    rest.remove()
                names = [each.table.name for each in works[:done]]
                raise serialization_failure(error.detail, names) from None
        return count

    def _again(
        self,
        number: int,
        found: Route,
        change: RowChange,
        interrupts: Interrupts,
        held: Held,
    ) -> int:
        for _ in range(_TRIES):
            opened = self._open(found.leaves)
            if opened is None:
                break
            if not self._blocks.settled(leaf.oid for leaf in found.leaves):
                continue
            check_columns(self._tables, found.table, change.known, opened)
            keyed = self._unique.keyed(found.leaves, change.known)
            work = LeafWork(found, number, opened, change, interrupts, stay=True, keyed=keyed)
            try:
                work.run()
                held.check(found.leaves[number].oid, work.gone)
                self._unique.check_works(found, [work], change.known, held)
            except PenstockError as error:
                work.remove()
                if isinstance(error, UniqueViolation):  # a row with the key came meanwhile
                    raise SerializationFailure(error.message, detail=error.detail) from None
                raise
            try:
                return work.commit()
            except CommitConflict:
                continue
        raise outrun(found.leaves[number])
