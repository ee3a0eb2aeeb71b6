"""What sessions need of the node beyond their own rooms; joined by ``node``.

In: nothing. Out: Protocols and the frozen value that carries them to every session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from penstock.backend.cancellation import Jobs
from penstock.catalog import Catalog, Role
from penstock.executor.block import LakeBlock
from penstock.executor.lake import CopyRequest
from penstock.executor.writer import Writer
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.pg_catalog.session_facts import SessionFacts
from penstock.pgoutput.options import PgoutputOptions
from penstock.pipeline.query import Interrupts
from penstock.protocol.answers import CommandOutcome, CopyOut, Description, Rows
from penstock.protocol.backend_messages import FieldDescription
from penstock.sql import RangeVar, Statement
from penstock.sql.to_duckdb.session_values import SessionValues
from penstock.stats.backend_status import Sessions
from penstock.walsender.feed import ChangeSource
from penstock.walsender.logical_reading import LogicalReading
from penstock.walsender.senders import Senders
from penstock.walsender.sequencer import Position, Sequencer
from penstock.walsender.slots import Slots
from penstock.walsender.snapshots import Snapshots
from penstock.walsender.syncrep import SyncRep


class CatalogQueries(Protocol):
    """Answers queries on the node's catalogs."""

    def reads_catalog_only(self, text: str) -> bool: ...

    def describe(self, text: str, facts: SessionFacts, said: Sequence[int]) -> Description:
        """``said``: oids of the parameters' types that the client has said, 0 where not."""

    def query(
        self,
        text: str,
        parameters: Sequence[bytes | None],
        facts: SessionFacts,
        said: Sequence[int] = (),
    ) -> Rows: ...

    def within(self, catalog: Catalog, warehouse: Warehouse) -> CatalogQueries:
        """For a statement of a block that has made tables."""

    def column_types(self, schema: str, table: str) -> Mapping[str, int]:
        """Type oids of a lake table's columns, in its order; empty where there is none."""


class Lake(Protocol):
    """Reads and changes the lake's tables, on Spark."""

    def copy(self, request: CopyRequest, at: Position, role: Role) -> CopyOut:
        """Raises PenstockError (42P01, 42501, 42703)."""

    def query(
        self,
        text: str,
        at: Position,
        role: Role,
        interrupts: Interrupts,
        session: SessionValues,
    ) -> Rows:
        """A SELECT; rows come as they are drawn."""

    def describe(self, text: str, at: Position, role: Role) -> tuple[FieldDescription, ...]:
        """The columns of a query, without running it."""

    def change(self, text: str, writer: Writer) -> CommandOutcome:
        """INSERT, UPDATE, DELETE: one commit."""

    def truncate(
        self, relations: Iterable[RangeVar], role: Role, *, restart: bool = False
    ) -> CommandOutcome: ...

    def open_block(self) -> LakeBlock: ...

    def within(self, block: LakeBlock) -> Lake:
        """For the next statement of a block that has made tables."""

    def stage(self, text: str, at: Position, writer: Writer, block: LakeBlock) -> CommandOutcome:
        """INSERT, UPDATE, DELETE of a transaction block."""

    def commit(self, block: LakeBlock) -> None:
        """Raises PenstockError (40001): nothing of it."""

    def prepare(
        self, gid: str, block: LakeBlock | None, role: Role, interrupts: Interrupts
    ) -> None:
        """Raises PenstockError (40001): nothing of it."""

    def commit_prepared(self, gid: str, role: Role) -> None:
        """Raises PenstockError (40001): it is prepared still."""

    def rollback_prepared(self, gid: str, role: Role) -> None: ...


RunCommand = Callable[[Statement, Role, Callable[[], None]], CommandOutcome]
"""Executes a statement of ``commands``; the last argument raises when it is to end. Raises
PenstockError."""


class BlockCommands(Protocol):
    """Commands of a transaction block, all of them as one transaction of the catalog."""

    def takes(self, statement: Statement) -> bool:
        """Whether a block may have it."""

    def run(self, statements: Sequence[Statement], role: Role, *, commit: bool) -> CommandOutcome:
        """What the last one gives. Without ``commit`` everything is taken back. Raises
        PenstockError (25001, 0A000)."""

    def defines(self, statement: Statement) -> bool:
        """Whether it is about tables that a block may make."""

    def define(self, statement: Statement, role: Role, block: LakeBlock) -> CommandOutcome:
        """Execute one of those. Raises PenstockError (0A000, 42P07, ...)."""


MakeSource = Callable[[PgoutputOptions, Lsn | None], ChangeSource]
"""Makes what decodes for one stream; from where on it is told of what is prepared, if at all."""


@dataclass(frozen=True, slots=True)
class SessionServices:
    """Everything that a session is given. ``system_identifier``: as IDENTIFY_SYSTEM tells it.

    ``wal_sender_timeout_s``: now; 0 for none. ``settings``: what SHOW gives, by lower-case names;
    a reload changes them.
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
    make_source: MakeSource
    settings: MutableMapping[str, str]
    version: int
    system_identifier: str
    database: str
    database_oid: int
    wal_sender_timeout_s: Callable[[], float]
    blocks: BlockCommands | None = None
    """None: a block has no commands."""
    reading: LogicalReading | None = None
    """Of slots with output plugins; None: nothing decodes for them."""
    sessions: Sessions = field(default_factory=Sessions)
    sync_rep: SyncRep = field(default_factory=lambda: SyncRep(Senders(), lambda: ""))
    """Who waits for which streams; by default nobody for any."""

    def within(self, block: LakeBlock | None) -> SessionServices:
        """For the next statement of a transaction block."""
        if block is None or not block.made:
            return self
        queries = self.catalog_queries.within(block.catalog(self.catalog), block.warehouse)
        return replace(self, lake=self.lake.within(block), catalog_queries=queries)
