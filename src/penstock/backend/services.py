"""Services of the node that sessions need beyond their own rooms; ``node`` puts them together.

This module has Protocols, and the frozen value that every session gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeGuard

from penstock.backend.cancellation import Jobs
from penstock.catalog import Catalog, Role
from penstock.executor.block import LakeBlock
from penstock.executor.lake import CopyRequest
from penstock.executor.writer import Writer
from penstock.lakehouse.warehouse import Warehouse
from penstock.pg_catalog.snapshot import SessionFacts
from penstock.pipeline.query import Interrupts
from penstock.protocol.answers import CommandOutcome, CopyOut, Description, Rows
from penstock.protocol.backend_messages import FieldDescription
from penstock.sql import RangeVar, Statement
from penstock.sql.grammar.parsenodes import PreparableStmt, RowStmt, SelectStmt
from penstock.sql.to_duckdb.session_values import SessionValues
from penstock.stats.backend_status import Sessions
from penstock.walsender.logical_reading import LogicalReading
from penstock.walsender.senders import Senders
from penstock.walsender.sequencer import Position, Sequencer
from penstock.walsender.slots import Slots
from penstock.walsender.snapshots import Snapshots
from penstock.walsender.syncrep import SyncRep


class CatalogQueries(Protocol):
    """Answers queries on the node's catalogs."""

    def reads_catalog_only(self, query: PreparableStmt) -> TypeGuard[SelectStmt]: ...

    def describe(self, query: SelectStmt, facts: SessionFacts, said: Sequence[int]) -> Description:
        """Describe a query. ``said``: the parameters' type oids that the client has given, 0 for
        the others."""

    def query(
        self,
        query: SelectStmt,
        parameters: Sequence[bytes | None],
        facts: SessionFacts,
        said: Sequence[int] = (),
    ) -> Rows: ...

    def within(self, catalog: Catalog, warehouse: Warehouse) -> CatalogQueries:
        """Return the queries for a statement of a block that has created tables."""

    def column_types(self, schema: str, table: str) -> Mapping[str, int]:
        """Return the type oids of a lake table's columns, in its order; empty if there is no such
        table."""


class Lake(Protocol):
    """Reads and changes the lake's tables."""

    def copy(self, request: CopyRequest, at: Position, role: Role) -> CopyOut:
        """Run COPY TO STDOUT. Raises PenstockError (42P01, 42501, 42703)."""

    def query(
        self,
        query: SelectStmt,
        at: Position,
        role: Role,
        interrupts: Interrupts,
        session: SessionValues,
    ) -> Rows:
        """Run a SELECT; its rows are computed as they are read."""

    def describe(self, query: SelectStmt, at: Position, role: Role) -> tuple[FieldDescription, ...]:
        """Return the columns of a query, without running it."""

    def change(self, statement: RowStmt, writer: Writer) -> CommandOutcome:
        """Run INSERT, UPDATE or DELETE: one commit."""

    def truncate(
        self, relations: Iterable[RangeVar], role: Role, *, restart: bool = False
    ) -> CommandOutcome: ...

    def open_block(self) -> LakeBlock: ...

    def within(self, block: LakeBlock) -> Lake:
        """Return the lake for the next statement of a block that has created tables."""

    def stage(
        self, statement: RowStmt, at: Position, writer: Writer, block: LakeBlock
    ) -> CommandOutcome:
        """Run INSERT, UPDATE or DELETE in a transaction block."""

    def commit(self, block: LakeBlock) -> None:
        """Commit the block. After PenstockError (40001) nothing is committed."""

    def prepare(
        self, gid: str, block: LakeBlock | None, role: Role, interrupts: Interrupts
    ) -> None:
        """Prepare the block. After PenstockError (40001) nothing is prepared."""

    def commit_prepared(self, gid: str, role: Role) -> None:
        """Commit a prepared transaction. After PenstockError (40001) it is still prepared."""

    def rollback_prepared(self, gid: str, role: Role) -> None: ...


RunCommand = Callable[[Statement, Role, Callable[[], None]], CommandOutcome]
"""A function that executes a statement of ``commands``; its last argument raises if the statement
has to end. Raises PenstockError."""


class BlockCommands(Protocol):
    """Commands of a transaction block, which are one transaction of the catalog."""

    def takes(self, statement: Statement) -> bool:
        """Tell whether a block may have the statement."""

    def run(self, statements: Sequence[Statement], role: Role, *, commit: bool) -> CommandOutcome:
        """Execute the statements and return the outcome of the last one. Without ``commit``, roll
        them back. Raises PenstockError (25001, 0A000)."""

    def defines(self, statement: Statement) -> bool:
        """Tell whether the statement creates or drops tables that a block may stage."""

    def define(self, statement: Statement, role: Role, block: LakeBlock) -> CommandOutcome:
        """Execute a statement about such tables. Raises PenstockError (0A000, 42P07, ...)."""


@dataclass(frozen=True, slots=True)
class SessionServices:
    """The services of a session. ``system_identifier``: the one that IDENTIFY_SYSTEM reports.

    ``wal_sender_timeout_s`` returns the present value; 0 for none. ``settings``: the values that
    SHOW prints, by lower-case names; a reload changes them.
    """

    catalog: Catalog
    sequencer: Sequencer
    slots: Slots
    snapshots: Snapshots
    senders: Senders
    catalog_queries: CatalogQueries
    lake: Lake
    jobs: Jobs
    run_command: RunCommand
    reading: LogicalReading
    settings: MutableMapping[str, str]
    version: int
    system_identifier: str
    database: str
    database_oid: int
    wal_sender_timeout_s: Callable[[], float]
    blocks: BlockCommands | None = None
    """Commands of blocks; None if a block may have none."""
    sessions: Sessions = field(default_factory=Sessions)
    sync_rep: SyncRep = field(default_factory=lambda: SyncRep(Senders(), lambda: ""))
    """The rule for commits that wait for streams; by default none waits."""

    def within(self, block: LakeBlock | None) -> SessionServices:
        """Return the services for the next statement of a transaction block."""
        if block is None or not block.made:
            return self
        queries = self.catalog_queries.within(block.catalog(self.catalog), block.warehouse)
        return replace(self, lake=self.lake.within(block), catalog_queries=queries)
