"""What sessions need of the node beyond their own rooms; joined by ``node``.

In: nothing. Out: Protocols and the frozen value that carries them to every session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.catalog import Catalog
from penstock.executor.session_values import SessionValues
from penstock.pgoutput.options import PgoutputOptions
from penstock.pipeline.query import Interrupts
from penstock.protocol.backend_messages import FieldDescription
from penstock.sql import RangeVar, Statement
from penstock.sql.copy_query import CopyTarget
from penstock.walsender.answers import CopyOut, Description, Notice, Rows
from penstock.walsender.authentication import LoginRole
from penstock.walsender.cancellation import Jobs
from penstock.walsender.feed import ChangeSource
from penstock.walsender.senders import Senders
from penstock.walsender.sequencer import Position, Sequencer
from penstock.walsender.sessions import Sessions
from penstock.walsender.slots import Slots
from penstock.walsender.snapshots import Snapshots


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """What a query can ask about its own session. ``settings``: lower-case names.

    ``user``: "" when the role is gone. ``set_config``: (name, value, is_local) -> the new value.
    ``warn`` tells the client; ``cancelled``: whether the query is to end.
    """

    pid: int
    user: str
    role_oid: int
    superuser: bool
    replication: bool
    database: str
    version: int
    settings: Mapping[str, str]
    set_config: Callable[[str, str, bool], str]
    warn: Callable[[str], None] = lambda _: None
    cancelled: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """A command has run. ``notices`` come first."""

    tag: str
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyRequest:
    """COPY of a table. ``columns`` None: all. ``predicate``: SQL as the client wrote it.
    ``query``: it is COPY of a query, which may read generated columns."""

    relation: RangeVar
    columns: tuple[CopyTarget, ...] | None
    predicate: str | None
    binary: bool
    only: bool = False
    query: bool = False


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

    def column_types(self, schema: str, table: str) -> Mapping[str, int]:
        """Type oids of a lake table's columns, in its order; empty where there is none."""


class Lake(Protocol):
    """Reads and changes the lake's tables, on Spark."""

    def copy(self, request: CopyRequest, at: Position, role: LoginRole) -> CopyOut:
        """Raises PenstockError (42P01, 42501, 42703)."""

    def query(
        self,
        text: str,
        at: Position,
        role: LoginRole,
        interrupts: Interrupts,
        session: SessionValues,
    ) -> Rows:
        """A SELECT; rows come as they are drawn."""

    def describe(self, text: str, at: Position, role: LoginRole) -> tuple[FieldDescription, ...]:
        """The columns of a query, without running it."""

    def change(self, text: str, role: LoginRole, interrupts: Interrupts) -> CommandOutcome:
        """INSERT, UPDATE, DELETE: one commit."""

    def truncate(self, relations: Iterable[RangeVar], role: LoginRole) -> CommandOutcome: ...


RunCommand = Callable[[Statement, LoginRole, Callable[[], None]], CommandOutcome]
"""Executes a statement of ``commands``; the last argument raises when it is to end. Raises
PenstockError."""

MakeSource = Callable[[PgoutputOptions], ChangeSource]
"""Makes what decodes for one stream."""


@dataclass(frozen=True, slots=True)
class SessionServices:
    """Everything that a session is given. ``system_identifier``: as IDENTIFY_SYSTEM tells it.

    ``wal_sender_timeout_s``: 0 for none. ``settings``: what SHOW gives, lower-case names.
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
    settings: Mapping[str, str]
    version: int
    system_identifier: str
    database: str
    database_oid: int
    wal_sender_timeout_s: float
    sessions: Sessions = field(default_factory=Sessions)
    check_warehouse: Callable[[], None] = lambda: None
    """Raises where the warehouse is not there, so that missing files mean nothing."""
