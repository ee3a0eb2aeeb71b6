"""Rows of the lake for sessions: COPY, SELECT and changes.

Each request has a consistent point, at which it reads. ``tables`` checks names and privileges,
``sql`` analyzes statements, ``pipeline`` reads rows, ``modify`` changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import dataclass, replace
from typing import Final

from penstock.catalog import Catalog, LakeTable, Role
from penstock.errors import CommitConflict
from penstock.executor.block import LakeBlock, outrun_block
from penstock.executor.block_commit import CommitBlocks
from penstock.executor.held_rows import HeldRows
from penstock.executor.modify import ModifyTables
from penstock.executor.select import LakeSelect
from penstock.executor.spark_errors import spark_errors
from penstock.executor.tables import LakeTables
from penstock.executor.two_phase import TwoPhase
from penstock.executor.unique_keys import UniqueKeys
from penstock.executor.writer import Writer
from penstock.lakehouse.cluster import Spark
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.pgtypes.text_output import text_cast, text_output
from penstock.pipeline.copy_to import CopyColumn, CopyTable, copy_to
from penstock.pipeline.key_indexes import KeyIndexes
from penstock.pipeline.query import Interrupts
from penstock.pipeline.scan import ScanColumn
from penstock.protocol.answers import CommandOutcome, CopyOut, Rows
from penstock.protocol.backend_messages import FieldDescription
from penstock.publication.row_filter import compile_condition
from penstock.sql import RangeVar
from penstock.sql.grammar.copy import CopyForm, CopyTarget
from penstock.sql.grammar.parsenodes import Expression, RowStmt, SelectStmt
from penstock.sql.to_duckdb.session_values import SessionValues
from penstock.sqlstate import DuplicateColumn, InvalidColumnReference, UndefinedColumn
from penstock.walsender.lake_columns import LakeColumn, sent_type, table_column
from penstock.walsender.sequencer import Position, Sequencer

_PRINTERS: Final = {CopyForm.VALUE: None, CopyForm.CAST: text_cast, CopyForm.OUTPUT: text_output}


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """COPY of a table. ``columns`` None: all columns. ``where`` None: all rows. ``query``: COPY of
    a query, which may read generated columns. ``packed``: CopyData messages may be split anywhere,
    because the client reads them as one byte stream, like PostgreSQL's tablesync (copy_read_data).
    """

    relation: RangeVar
    columns: tuple[CopyTarget, ...] | None
    where: Expression | None
    binary: bool
    only: bool = False
    query: bool = False
    packed: bool = False


class SparkLake:
    """Implements ``services.Lake`` for all sessions. ``max_prepared``: max_prepared_transactions.
    ``oldest``: returns the LSN from which slots need the node's log. ``indexes``: indexes of the
    keys in data files."""

    def __init__(
        self,
        spark: Spark,
        warehouse: Warehouse,
        catalog: Catalog,
        sequencer: Sequencer,
        max_prepared: int = 0,
        oldest: Callable[[], Lsn | None] = lambda: None,
        indexes: KeyIndexes | None = None,
    ) -> None:
        self._spark = spark
        self._catalog = catalog
        self._sequencer = sequencer
        self._held = HeldRows(catalog)
        self._unique = UniqueKeys(spark, warehouse.storage, catalog, indexes)
        self.blocks: Final = CommitBlocks(warehouse, catalog, sequencer, self._held, self._unique)
        self.prepared: Final = TwoPhase(
            warehouse, catalog, self.blocks, self._held, max_prepared, oldest
        )
        self._look(warehouse, catalog)

    def _look(self, warehouse: Warehouse, catalog: Catalog) -> None:
        """Make statements look up their tables in this warehouse and catalog."""
        self._warehouse = warehouse
        self._tables = LakeTables(warehouse, catalog, self._sequencer)
        self._select = LakeSelect(self._spark, warehouse, self._tables)
        self._changes = ModifyTables(
            self._spark,
            warehouse,
            catalog,
            self._sequencer,
            self._tables,
            self._select,
            self.blocks,
            self._held,
            self._unique,
        )

    def within(self, block: LakeBlock) -> SparkLake:
        """Return the lake as the next statement of a block sees it, including tables that the block
        has created."""
        lake = copy(self)
        lake._look(block.warehouse, block.catalog(self._catalog))
        return lake

    # COPY

    def copy(self, request: CopyRequest, at: Position, role: Role) -> CopyOut:
        """Run COPY TO STDOUT. Raises PenstockError (42P01, 42501, 42703), FeatureNotSupported."""
        table = self._tables.find(request.relation, role)
        leaves = () if request.only and table.partition_key else self._tables.leaves(table)
        sources = [(leaf, self._tables.version(leaf, at)) for leaf in leaves]
        columns = self._tables.columns(*sources[0]) if sources else self._tables.columns(table)
        targets = request.columns or tuple(
            CopyTarget(c.name) for c in columns if not c.attribute.generated
        )
        _check_names(targets, columns, request)
        predicate, used = self._predicate(request, columns, table)
        tables = [
            replace(
                self._copy_table(leaf, version, targets, used), files=self._tables.staged(leaf, at)
            )
            for leaf, version in sources
        ]
        chunks = copy_to(
            self._spark,
            self._warehouse.storage,
            tables,
            staging=self._warehouse.staging,
            predicate=predicate,
            binary=request.binary,
            packed=request.packed,
        )
        return CopyOut(len(targets), request.binary, chunks)

    def _predicate(
        self, request: CopyRequest, columns: tuple[LakeColumn, ...], table: LakeTable
    ) -> tuple[str | None, frozenset[str]]:
        if request.where is None:
            return None, frozenset()
        known = [table_column(column) for column in columns]
        compiled = compile_condition(request.where, known, table=table.qualified_name)
        return compiled.predicate, compiled.columns

    def _copy_table(
        self, table: LakeTable, version: int, targets: tuple[CopyTarget, ...], used: frozenset[str]
    ) -> CopyTable:
        by_name = {column.name: column for column in self._tables.columns(table, version)}
        wanted = [(target.name, target.form, True) for target in targets]
        named = {target.name for target in targets}
        wanted += [(name, CopyForm.VALUE, False) for name in sorted(used - named)]
        return CopyTable(
            table.uri or "",
            version,
            tuple(
                CopyColumn(
                    ScanColumn(name, by_name[name].stored, by_name[name].type),
                    *sent_type(by_name[name]),
                    sent,
                    _PRINTERS[form],
                )
                for name, form, sent in wanted
            ),
        )

    # Queries and changes

    def query(
        self,
        query: SelectStmt,
        at: Position,
        role: Role,
        interrupts: Interrupts,
        session: SessionValues,
    ) -> Rows:
        """Run a SELECT on tables of the lake, at ``at``. Raises PenstockError."""
        return self._select.query(query, at, role, interrupts, session)

    def describe(self, query: SelectStmt, at: Position, role: Role) -> tuple[FieldDescription, ...]:
        """Return the columns of a query at ``at``."""
        return self._select.describe(query, at, role)

    def change(self, statement: RowStmt, writer: Writer) -> CommandOutcome:
        """Run INSERT, UPDATE or DELETE: one Delta commit for each table with changed rows. Raises
        PenstockError."""
        with spark_errors(statement.relation.name):
            return self._changes.change(statement, writer)

    # Transaction blocks

    def open_block(self) -> LakeBlock:
        """Return a new block, in which statements stage their changes."""
        return LakeBlock(self._warehouse)

    def stage(
        self, statement: RowStmt, at: Position, writer: Writer, block: LakeBlock
    ) -> CommandOutcome:
        """Run INSERT, UPDATE or DELETE in a block, on tables as of ``at``. Raises PenstockError."""
        return self._changes.stage(statement, at, writer, block)

    def commit(self, block: LakeBlock) -> None:
        """Commit the block's staged changes. Raises PenstockError: 40001 if nothing is committed,
        and the errors of ``CommitBlocks.commit``."""
        try:
            self.blocks.commit(block)
        except CommitConflict as error:
            raise outrun_block(error) from None
        finally:
            block.end()
        self.blocks.put_into_log()

    def prepare(
        self, gid: str, block: LakeBlock | None, role: Role, interrupts: Interrupts
    ) -> None:
        """Run PREPARE TRANSACTION. ``block``: None if the transaction has changed nothing. Raises
        the errors of ``TwoPhase.prepare``."""
        try:
            self.prepared.prepare(gid, block, role, interrupts)
        finally:
            if block is not None:
                block.end()

    def commit_prepared(self, gid: str, role: Role) -> None:
        """Run COMMIT PREPARED. After PenstockError the transaction is still prepared."""
        self.prepared.commit(gid, role)

    def rollback_prepared(self, gid: str, role: Role) -> None:
        """Run ROLLBACK PREPARED. Raises PenstockError."""
        self.prepared.rollback(gid, role)

    def truncate(
        self, relations: Iterable[RangeVar], role: Role, *, restart: bool = False
    ) -> CommandOutcome:
        """Run TRUNCATE: one Delta commit for each table. ``restart``: with RESTART IDENTITY."""
        with spark_errors():
            return self._changes.truncate(relations, role, restart=restart)


def _check_names(
    targets: Iterable[CopyTarget], columns: Iterable[LakeColumn], request: CopyRequest
) -> None:
    """Check that COPY may read these columns (CopyGetAttnums)."""
    known = {column.name: column for column in columns}
    seen: set[str] = set()
    for target in targets:
        if target.name not in known:
            where = "" if request.query else f' of relation "{request.relation.name}"'
            raise UndefinedColumn(f'column "{target.name}"{where} does not exist')
        if request.query:
            continue
        if known[target.name].attribute.generated:
            raise InvalidColumnReference(
                f'column "{target.name}" is a generated column',
                detail="Generated columns cannot be used in COPY.",
            )
        if target.name in seen:
            raise DuplicateColumn(f'column "{target.name}" specified more than once')
        seen.add(target.name)
