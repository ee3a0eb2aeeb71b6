"""Services of the node that sessions need from other packages; ``node`` puts them together.

This module has the services' Protocols, and a frozen value with all services of a session.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeGuard

from penstock.backend.cancellation import Jobs
from penstock.backend.turns import Turns
from penstock.catalog import Catalog, Role
from penstock.errors import PenstockError
from penstock.executor.block import LakeBlock
from penstock.executor.lake import CopyRequest
from penstock.executor.writer import Writer
from penstock.lakehouse.storage import resolve
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
        """Describe a query. ``said``: the parameters' type oids as the client gave them; 0 if it
        did not."""

    def query(
        self,
        query: SelectStmt,
        parameters: Sequence[bytes | None],
        facts: SessionFacts,
        said: Sequence[int] = (),
    ) -> Rows: ...

    def within(self, catalog: Catalog, warehouse: Warehouse) -> CatalogQueries:
        """Return the queries for a statement of a block: they also see the block's own tables."""

    def column_types(self, schema: str, table: str) -> Mapping[str, int]:
        """Return the type oids of a lake table's columns, in the table's order; empty if the table
        does not exist."""


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
        """Run a SELECT. Its rows are computed as they are read."""

    def describe(self, query: SelectStmt, at: Position, role: Role) -> tuple[FieldDescription, ...]:
        """Return the columns of a query, without running it."""

    def change(self, statement: RowStmt, writer: Writer) -> CommandOutcome:
        """Run INSERT, UPDATE or DELETE, and commit it."""

    def truncate(
        self, relations: Iterable[RangeVar], role: Role, *, restart: bool = False
    ) -> CommandOutcome: ...

    def open_block(self) -> LakeBlock: ...

    def within(self, block: LakeBlock) -> Lake:
        """Return the lake as the next statement of a block sees it, with the block's own tables."""

    def stage(
        self, statement: RowStmt, at: Position, writer: Writer, block: LakeBlock
    ) -> CommandOutcome:
        """Run INSERT, UPDATE or DELETE in a transaction block, on tables as of ``at``."""

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
"""A function that executes a statement of ``commands``. Its last argument is a function that raises
if the statement is cancelled. Raises PenstockError."""


class BlockCommands(Protocol):
    """Runs the commands of a transaction block as one transaction of the catalog."""

    def takes(self, statement: Statement) -> bool:
        """Tell whether the statement is allowed in a block."""

    def run(self, statements: Sequence[Statement], role: Role, *, commit: bool) -> CommandOutcome:
        """Execute the statements and return the outcome of the last one. Roll them back unless
        ``commit``. Raises PenstockError (25001, 0A000)."""

    def defines(self, statement: Statement) -> bool:
        """Tell whether the statement creates a table, or is about one that the block created."""

    def define(self, statement: Statement, role: Role, block: LakeBlock) -> CommandOutcome:
        """Stage a statement for which ``defines`` is true. Raises PenstockError (0A000, ...)."""


def shown_text(text: str, role: int, catalog: Catalog, warehouse: Warehouse) -> str:
    """Return a text as a role may see it: only superusers see where the warehouse is."""
    places = "|".join(
        re.escape(each) for each in (warehouse.uri, resolve(warehouse.uri)[1]) if each
    )
    without = re.sub(rf"(?<!\w)(?:{places})(?:/|(?![\w-]))", "", text)
    if without == text:
        return text
    try:
        with catalog.read() as t:
            found = t.roles.find_oid(role)
    except PenstockError:  # an error is told even if the catalog cannot be read
        return without
    return text if found is not None and found.superuser else without


@dataclass(frozen=True, slots=True)
class SessionServices:
    """The services of a session. ``system_identifier``: as IDENTIFY_SYSTEM reports it.

    ``wal_sender_timeout_s`` returns the present timeout; 0 for none. ``settings``: the values that
    SHOW prints, by lower-case name; a reload changes them.
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
    """Runs commands in blocks; None if commands are not allowed in blocks."""
    sessions: Sessions = field(default_factory=Sessions)
    sync_rep: SyncRep = field(default_factory=lambda: SyncRep(Senders(), lambda: ""))
    """Synchronous replication; by default no commit waits."""
    turns: Turns = field(default_factory=lambda: Turns(0))
    """The turns of roles; by default nobody waits."""

    def within(self, block: LakeBlock | None) -> SessionServices:
        """Return services that also see the block's own tables, for its next statement."""
        if block is None or not block.made:
            return self
        queries = self.catalog_queries.within(block.catalog(self.catalog), block.warehouse)
        return replace(self, lake=self.lake.within(block), catalog_queries=queries)
