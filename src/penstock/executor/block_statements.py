"""INSERT, UPDATE and DELETE of a transaction block: staged, and committed by its COMMIT.

In: raw statements, and the block that they are of. Out: the number of rows; files and positions are
in the block then, or nothing is where the statement fails. Refused is what cannot be staged: what
only Delta itself can write, rows of very large tables, tables that a subscription fills.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.catalog import Catalog, LakeTable
from penstock.errors import FeatureNotSupported
from penstock.executor.block import LakeBlock, not_in_a_block
from penstock.executor.held_rows import HeldRows
from penstock.executor.insert import write_rows
from penstock.executor.routes import Route, check_columns, route
from penstock.executor.row_work import LeafWork
from penstock.executor.rows import NewRows, RowChange
from penstock.executor.small_rewrites import has_change_feed
from penstock.executor.spark_rewrites import Rewrites
from penstock.executor.tables import LakeTables
from penstock.executor.unique_keys import UniqueKeys, unique_keys
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.staged_change import INSERT, MOVE
from penstock.lakehouse.table import DeltaTable
from penstock.pipeline.query import Interrupts
from penstock.publication.members import Operation
from penstock.walsender.lake_columns import LakeColumn
from penstock.walsender.sequencer import Position

_MAX_BYTES: Final = 1 << 30
"""Of the files of all tables of an UPDATE or DELETE: this process alone reads them."""


class BlockStatements:
    """For every session."""

    def __init__(
        self,
        catalog: Catalog,
        tables: LakeTables,
        rewrites: Rewrites,
        held: HeldRows,
        unique: UniqueKeys,
    ) -> None:
        self._held = held
        self._unique = unique
        self._catalog = catalog
        self._tables = tables
        self._rewrites = rewrites

    def insert(self, table: LakeTable, rows: NewRows, at: Position, block: LakeBlock) -> int:
        """Raises PenstockError (0A000, 23502, 23505, 23514, 40001)."""
        found, opened = self._open("INSERT", table, rows.known, at, block)
        keyed = [leaf.oid for leaf in found.leaves if unique_keys(leaf, rows.known)]

        def check(files: Sequence[tuple[int, WrittenFile]]) -> None:
            held = self._held.now(keyed)
            for number, keys in self._unique.of_files(found, opened, files, rows.known):
                keys.check(opened[number].files.values(), held)

        files = write_rows(found, opened, rows, check if keyed else lambda _: None)
        for number, leaf in enumerate(found.leaves):
            mine = [file for to, file in files if to == number]
            if mine:
                block.stage(leaf, INSERT, {}, mine)
        return sum(file.rows for _, file in files)

    def rewrite(
        self,
        table: LakeTable,
        change: RowChange,
        at: Position,
        interrupts: Interrupts,
        block: LakeBlock,
    ) -> int:
        """UPDATE or DELETE. Raises PenstockError (0A000, 23502, 23505, 23514, 40001, 55000)."""
        what = change.kind.upper()
        self._rewrites.check_identity(self._tables.leaves(table), Operation(change.kind))
        found, opened = self._open(what, table, change.known, at, block)
        if sum(file.size for leaf in opened for file in leaf.files.values()) > _MAX_BYTES:
            raise not_in_a_block(f"{what} of tables of more than {_MAX_BYTES >> 20} MB")
        if any(map(has_change_feed, opened)):
            raise not_in_a_block(f"{what} of tables with a change data feed")
        keyed = self._unique.keyed(found.leaves, change.known)
        works: list[LeafWork] = []
        try:
            for number in range(len(opened)):
                works.append(LeafWork(found, number, opened, change, interrupts, keyed=keyed))
                works[-1].run()
            held = self._held.now({leaf.oid for leaf in found.leaves})
            self._unique.check_works(found, works, change.known, held)
            pairs = [work.write_pairs() for work in works]
        except BaseException:
            for work in works:
                work.remove()
            raise
        for work, paired in zip(works, pairs, strict=True):
            kind = MOVE if work.leaves else change.kind
            for to, files in work.files.items():
                if to != work.number:
                    block.stage(found.leaves[to], INSERT, {}, files)
            if work.count:
                mine = work.files.get(work.number, ())
                block.stage(found.leaves[work.number], kind, work.gone, mine, paired)
        return sum(work.count for work in works)

    def _open(
        self,
        what: str,
        table: LakeTable,
        known: Sequence[LakeColumn],
        at: Position,
        block: LakeBlock,
    ) -> tuple[Route, list[DeltaTable]]:
        if self._rewrites.is_filled(table):
            raise not_in_a_block(f"{what} of tables that a subscription fills")
        try:
            found = route(self._catalog, self._tables, table, known)
            opened = [block.open(leaf, self._tables.version(leaf, at)) for leaf in found.leaves]
        except FeatureNotSupported as error:
            refusal = not_in_a_block(f"{what} of this table")
            raise FeatureNotSupported(
                refusal.message, detail=error.message, hint=refusal.hint
            ) from None
        check_columns(self._tables, table, known, opened)
        return found, opened
