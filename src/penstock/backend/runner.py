"""Run the statements of one session (postgres.c, exec_simple_query).

A query string is parsed, and each statement is answered. This file runs statements about the
session itself, ``replication`` runs replication commands, and the node's services run DDL commands,
catalog queries and statements on the lake's rows.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from threading import Event
from typing import Any, Final, TypeGuard
from weakref import finalize

import pyarrow as pa

from penstock.attribute import Attribute
from penstock.backend.authentication import role_now
from penstock.backend.backend import SessionContext
from penstock.backend.binary_values import in_formats
from penstock.backend.cancellation import Cancellation
from penstock.backend.replication import ReplicationCommands
from penstock.backend.services import SessionServices
from penstock.backend.session_settings import SessionSettings
from penstock.backend.transaction_block import TransactionBlock
from penstock.backend.turns import Turn
from penstock.catalog import Role, SessionSequences
from penstock.errors import (
    ConnectionFailure,
    FeatureNotSupported,
    InvalidParameterValue,
    PenstockError,
    SqlSyntaxError,
)
from penstock.executor.lake import CopyRequest
from penstock.executor.writer import Writer
from penstock.guc import in_seconds_or_bytes, read_integer
from penstock.interrupts import BeginAgain, close_open, notice_commits, repeat_with
from penstock.lsn import Lsn
from penstock.pg_catalog.snapshot import SessionFacts
from penstock.pgtypes.pg_type import TEXT
from penstock.protocol.answers import (
    Answer,
    Cells,
    ColumnRows,
    CommandOutcome,
    CopyOut,
    Description,
    Done,
    Empty,
    Notice,
    ParameterChange,
    Prepared,
    Rows,
)
from penstock.protocol.backend_messages import (
    BINARY_FORMAT,
    TEXT_FORMAT,
    FieldDescription,
    TransactionStatus,
)
from penstock.protocol.copy_columns import binary_copy, binary_rows, text_rows
from penstock.protocol.replication_grammar import (
    is_replication_command,
    parse_replication_command,
)
from penstock.protocol.startup import ReplicationMode
from penstock.query_memory import MEMORY, Held, belongs_to
from penstock.sql import (
    CloseCursor,
    Copy,
    Deallocate,
    Discard,
    ExecuteQuery,
    LockTable,
    PrepareQuery,
    QueryStatement,
    ResetVariable,
    SetTransaction,
    SetTransactionSnapshot,
    SetVariable,
    ShowVariable,
    Statement,
    Transaction,
    TransactionKind,
    Truncate,
    Unlisten,
    parse,
    parse_script,
)
from penstock.sql.builtin.enum_types import remember_enums
from penstock.sql.builtin.search_path import (
    read_search_path,
    remember_database,
    remember_search_path,
    schemas_to_search,
)
from penstock.sql.builtin.type_cache import field_descriptions
from penstock.sql.command_tag import command_tag, reads
from penstock.sql.grammar.copy import CopyTarget, copy_query
from penstock.sql.grammar.parsenodes import (
    DeleteStmt,
    InsertStmt,
    PreparableStmt,
    RangeTable,
    RangeVar,
    ResTarget,
    RowStmt,
    SelectStmt,
    Star,
    UpdateStmt,
)
from penstock.sql.grammar.session import TransactionModes
from penstock.sql.grammar.table import CreateTableAs, DropTable
from penstock.sql.text.limits import too_deep
from penstock.sql.text.quoting import quote_identifier, type_text
from penstock.sql.to_duckdb.session_values import SessionValues
from penstock.sql.typed.expression_analysis import find_type
from penstock.sql.typed.parameters import (
    execute_parameters,
    last_parameter,
    parameter_types,
    with_values,
)
from penstock.sqlstate import (
    DuplicatePreparedStatement,
    InvalidCursorName,
    InvalidSqlStatementName,
)
from penstock.walsender.sequencer import Position
from penstock.walsender.syncrep import MODES

_WARNING = "01000"
_TEXT_BYTES: Final = 32
"""The memory that compiling takes for a byte of a large statement, besides its tree."""
_STRING_BYTES: Final = 2
"""The same for a byte of its strings."""
_STRINGS: Final = re.compile(
    r"""[eE]'(?:[^'\\]|\\.|'')*+'|'[^']*+'|"[^"]*+"|\$(\w*+)\$.*?\$\1\$|--[^\n]*+|/\*.*?\*/""",
    re.DOTALL,
)


def _memory(text: str) -> int:
    """Return the bytes that compiling a statement takes, about."""
    outside = len(_STRINGS.sub("", text))
    return outside * _TEXT_BYTES + (len(text) - outside) * _STRING_BYTES


class SessionRunner:
    """Runs the statements of one client that has logged in."""

    def __init__(self, context: SessionContext, services: SessionServices) -> None:
        self._context = context
        self._services = services
        belongs_to(None if context.role.superuser else context.role.oid)
        self._turn = Turn(services.turns)
        self._cancellation = Cancellation(services.jobs, self._turn.share)
        repeat_with(self._repeated)
        self._walsender = context.parameters.replication is not ReplicationMode.NONE
        own = {"is_superuser": "on" if context.role.superuser else "off"}
        node, given = ChainMap(own, services.settings), context.parameters.settings
        self._settings = SessionSettings(
            node, given, services.version, lambda: self._role().superuser
        )
        self.prepared: dict[str, Prepared] = {}
        self._source = ""
        """The text that is being run."""
        self._source_memory = 0
        self._held = Held(MEMORY)
        """The prepared statements."""
        self._one_transaction = False
        """True if that text is one transaction, as several statements are on a server."""
        self._warnings: list[Notice] = []
        self._reads = False
        self._notify: Callable[[Notice], None] = self._warnings.append
        self._sequences = SessionSequences()
        self._block = TransactionBlock(
            services.sequencer.position,
            self._settings,
            lambda: services.snapshots.withdraw(context.pid, block=True),
        )
        self._variables = Variables(
            self._settings,
            self._block,
            lambda name: services.sessions.name(context.pid, name),
        )
        self._commands = NodeCommands(services, self._block, self._cancellation)
        self._standbys = StandbyWait(
            services,
            lambda: self._settings.show("synchronous_commit"),
            self._cancellation,
            self._turn,
        )
        self._transactions = Transactions(
            services, self._block, self._commands, self._cancellation, self._standbys
        )
        self._commits = Event()
        self._replication = ReplicationCommands(
            context, services, self._block, self._settings.show, self._cancellation
        )

    # StatementRunner

    @property
    def may_last(self) -> bool:
        """True once a statement that changes something has begun to commit."""
        return self._commits.is_set() and not self._reads

    @property
    def changes_nothing(self) -> bool:
        """True while a statement runs that only reads."""
        return self._reads

    def turn(self) -> AbstractContextManager[None]:
        """Wait for the session's turn, and have it in the ``with`` block. Superusers and
        replication connections do not wait."""
        role = self._role()
        if role.superuser or self._walsender:
            return nullcontext()
        self._cancellation.begin()
        self.begin_statement()
        return self._turn.of(role.oid, self._cancellation.check)

    def _repeated(self, work: Callable[[], Any]) -> Any:
        """Implement ``repeat_with``: the work begins again with a turn, if it is a guest for too
        long."""
        while True:
            try:
                with self._turn.repeatable(self._cancellation.begin_again):
                    return work()
            except BeginAgain:
                pass
            finally:
                self._cancellation.begins_again()
            self._turn.wait_again()

    def leave_turn(self) -> None:
        """Let others have the turn while the session waits for its client."""
        self._turn.leave()

    @property
    def waits_for_turn(self) -> bool:
        """True while the session waits for its turn."""
        return self._turn.waits

    def begin_statement(self) -> None:
        """Start the timer of ``statement_timeout``, unless it runs already."""
        self._cancellation.start_timer(_seconds(self._settings.show("statement_timeout")))

    def end_statement(self) -> None:
        """Stop the timer, and let a client that leaves end nothing."""
        self._reads = False
        self._commits.clear()
        self._cancellation.stop_timer()

    def simple(self, text: str) -> Generator[Answer, None, None]:
        """Run a query string of the simple query protocol."""
        self._cancellation.begin()
        version = self._services.version
        if self._walsender and is_replication_command(text, version):
            yield from self._replication_command(text)
            return
        self._require_database()
        self.begin_statement()  # the first one's time includes that of parsing
        with Held(MEMORY) as held:
            held.take(_memory(text))
            statements = parse_script(text, held.take)
            if not statements:
                yield Empty()
            self._source, self._one_transaction = text, len(statements) > 1
            self._source_memory = held.size
            for statement in statements:
                self._turn.share()
                self.begin_statement()
                yield from self._run(statement, BoundValues())
                self.end_statement()
        self.end_statement()

    def _replication_command(self, text: str) -> Iterator[Answer]:
        cut: list[str] = []
        try:
            command = parse_replication_command(text, self._services.version, cut.append)
        finally:
            yield from _notices(cut)
        yield from self._replication.run(command)

    def prepare(self, text: str, types: Sequence[int]) -> Prepared:
        """Describe the parameters and columns of a statement."""
        self._cancellation.begin()
        description = Description(tuple(types), None)
        if not text.strip():
            return Prepared(text, description)
        self._learn_types()
        with Held(MEMORY) as held:
            held.take(_memory(text))
            statement = parse(text, held.take)
            description = self._statement_described(statement, description)
            size = held.size
        return self._kept(Prepared(text, description, statement), size)

    def _kept(self, prepared: Prepared, size: int) -> Prepared:
        """Count the memory of a prepared statement for as long as the session has it."""
        self._held.take(size)
        finalize(prepared, self._held.give, size)
        return prepared

    def _statement_described(self, statement: Statement, description: Description) -> Description:
        if not isinstance(statement, Transaction):
            self._block.check()
        match statement:
            case ShowVariable(name=name):
                return replace(description, fields=self._variables.fields(name))
            case ExecuteQuery(name=name):
                return replace(description, fields=self._prepared_query(name).description.fields)
            case QueryStatement(query=query):
                return self._described(query, description.parameters, self._role())
        return description

    def _described(self, query: PreparableStmt, types: Sequence[int], role: Role) -> Description:
        services = self._services.within(self._block.rows)
        if not isinstance(query, SelectStmt):
            return Description(described_parameters(services, query, types), None)
        facts = self._facts(role)
        return describe_query(services, query, types, self._block.now(), facts, role)

    def execute(self, prepared: Prepared, parameters: Sequence[bytes | None]) -> Iterable[Answer]:
        """Run one prepared statement."""
        self._cancellation.begin()
        self._source, self._one_transaction = prepared.text, False
        return self._executed(prepared, parameters)

    def _executed(self, prepared: Prepared, parameters: Sequence[bytes | None]) -> Iterable[Answer]:
        statement: Statement | None = prepared.statement
        if statement is None:
            return [Empty()]
        given = BoundValues(parameters, prepared.description.parameters)
        match statement:
            case QueryStatement(query=query) if parameters and not self._is_catalogs(query):
                bound = with_values(query, given.values, given.types)
                statement, given = replace(statement, query=bound), BoundValues()
        return self._counted(prepared.text, self._run(statement, given))

    def _counted(self, text: str, answers: Iterator[Answer]) -> Iterator[Answer]:
        """Yield the answers of a statement, whose memory is counted meanwhile."""
        with Held(MEMORY) as held:
            held.take(_memory(text))
            yield from answers

    def _is_catalogs(self, query: PreparableStmt) -> TypeGuard[SelectStmt]:
        return self._services.catalog_queries.reads_catalog_only(query)

    @property
    def transaction_status(self) -> TransactionStatus:
        """The status that ReadyForQuery reports."""
        return self._block.status

    def failed(self) -> Iterable[ParameterChange]:
        """Clean up after a failed statement. Drop temporary slots, as PostgreSQL does. Return the
        settings that the rollback has changed."""
        self.end_statement()
        close_open()
        self._block.fail()
        self._services.slots.take_back(self._context.pid, sent=False)
        self._services.slots.end_session(self._context.pid)
        return self._variables.settle()

    def cancel(self) -> None:
        """Cancel the running statement."""
        self._cancellation.request()

    def terminate(self) -> None:
        """Cancel the running statement and every later one."""
        self._cancellation.end()

    def close(self) -> None:
        """End the session: roll back its block, and release its snapshot and slots."""
        self.end_statement()
        close_open()
        self._held.release()
        self._block.abandon()
        self._services.snapshots.withdraw(self._context.pid, block=True)
        self._services.slots.take_back(self._context.pid, sent=True)
        self._services.slots.end_session(self._context.pid)

    # One statement

    def _run(self, statement: Statement, parameters: BoundValues) -> Iterator[Answer]:
        self._reads = reads(statement) and not isinstance(statement, Transaction)
        self._commits.clear()
        notice_commits(self._commits.set)
        yield from _notices(statement.notices)
        if statement.notices:  # commands tell them, too
            statement = replace(statement, notices=())
        if isinstance(statement, Transaction):
            yield from self._transactions.run(statement, self._role)
            yield from self._variables.settle()
            return
        self._block.check()
        if isinstance(statement, ExecuteQuery):
            self._check_end(statement)
            prepared = self._prepared_query(statement.name)
            arguments = self._arguments(statement, prepared)
            yield from self._warned()
            yield from self._executed(prepared, arguments)
            return
        self._block.check_read_only(command_tag(statement))
        self._services.snapshots.withdraw(self._context.pid)
        self._learn_types()
        before = None if self._block.open else self._standbys.before(statement)
        for answer in self._in_session(statement, parameters):
            if isinstance(answer, Done):
                yield from self._standbys.after(before)
            yield answer
        self._block.settle()
        yield from self._variables.settle()

    def _in_session(self, statement: Statement, parameters: BoundValues) -> Iterator[Answer]:
        match statement:
            case SetVariable() | ResetVariable() | ShowVariable() | SetTransaction():
                yield from self._variables.run(statement)
            case SetTransactionSnapshot(snapshot=name):
                self._block.import_snapshot(lambda: self._services.snapshots.take(name))
                yield Done("SET")
            case Discard(what=what):
                if what == "all":
                    self._block.outside("DISCARD ALL")
                    self._settings.reset_all()
                    self._drop_prepared()
                if what in ("all", "sequences"):
                    self._sequences.forget()
                yield Done(f"DISCARD {what.upper()}")
            case PrepareQuery():
                yield self._prepare_query(statement)
            case Deallocate():
                yield self._deallocate(statement.name)
            case LockTable(relations=relations):
                self._lock(relations)
                yield Done("LOCK TABLE")
            case CloseCursor(name=None):
                yield Done("CLOSE CURSOR ALL")
            case CloseCursor(name=cursor):
                raise InvalidCursorName(f'cursor "{cursor}" does not exist')
            case Unlisten():
                yield Done("UNLISTEN")
            case _:
                try:
                    yield from self._of_the_node(statement, parameters)
                except PenstockError:
                    yield from self._warned()
                    raise

    def _of_the_node(self, statement: Statement, parameters: BoundValues) -> Iterator[Answer]:
        services, role = self._services.within(self._block.rows), self._role()
        match statement:
            case Copy():
                copied = self._copy(statement, role)
                yield replace(copied, chunks=self._cancellation.copied(copied.chunks))
            case QueryStatement(query=SelectStmt() as query):
                yield self._query(query, parameters)
            case QueryStatement(query=InsertStmt() | UpdateStmt() | DeleteStmt() as change):
                with self._cancellation.running():
                    outcome = self._transactions.change(statement.tag, change, self._writer(role))
                yield from outcome.notices
                yield Done(outcome.tag)
            case CreateTableAs():
                self._block.refuse("CREATE TABLE AS")
                with self._cancellation.running():
                    outcome = self._commands.create_table_as(statement, self._writer(role))
                yield from outcome.notices
                yield Done(outcome.tag)
            case Truncate(relations=relations, restart_identity=restart):
                self._block.refuse("TRUNCATE")
                with self._cancellation.running():
                    outcome = services.lake.truncate(relations, role, restart=restart)
                yield from outcome.notices
                yield Done(outcome.tag)
            case _:
                outcome = self._commands.run(statement, role)
                yield from outcome.notices
                yield Done(outcome.tag)

    def _copy(self, statement: Copy, role: Role) -> CopyOut:
        """Run COPY TO STDOUT: of a table as subscribers ask for it, or of any other query."""
        request = copy_request(statement)
        if request is None or (statement.query and self._is_catalogs(statement.query)):
            assert statement.query is not None
            return copy_of_rows(self._query(statement.query, BoundValues()), statement)
        # ``packed``: on a replication connection the client is a tablesync worker.
        lake = self._services.within(self._block.rows).lake
        return lake.copy(replace(request, packed=self._walsender), self._block.snapshot(), role)

    def _query(self, query: SelectStmt, parameters: BoundValues) -> Rows:
        if self._is_catalogs(query):
            return self._catalog_rows(query, parameters)
        services = self._services.within(self._block.rows)
        role = self._role()
        with self._cancellation.running():
            found = services.lake.query(
                query, self._block.snapshot(), role, self._cancellation, self._values(role)
            )
        return replace(found, rows=self._cancellation.drawn(found.rows))

    def _values(self, role: Role) -> SessionValues:
        return SessionValues(
            "" if role.dropped else role.name,
            role.oid,
            self._context.parameters.database,
            self._services.sessions.transaction_started(self._context.pid),
        )

    def _writer(self, role: Role) -> Writer:
        return Writer(role, self._values(role), self._sequences, self._cancellation)

    def _catalog_rows(self, query: SelectStmt, parameters: BoundValues) -> Rows:
        """Run a query on the catalogs. Its functions may even terminate this session."""
        self._block.check_catalogs()
        self._block.query()
        catalogs = self._services.within(self._block.rows).catalog_queries
        facts = self._facts(self._role())
        with self._standbys.query(self._warnings):
            rows = catalogs.query(query, parameters.values, facts, parameters.types)
        rows = replace(rows, notices=self._telling)
        if self._standbys.wrote:  # it is too late to cancel what has been committed
            return rows
        self._cancellation.check()
        return replace(rows, rows=self._cancellation.drawn(rows.rows))

    def _warned(self) -> Sequence[Notice]:
        """Return the warnings that the query's functions have raised since the last call."""
        warnings = tuple(self._warnings)
        self._warnings.clear()
        return warnings

    @contextmanager
    def _telling(self, tell: Callable[[Notice], None]) -> Iterator[None]:
        """Implement ``Notices`` for the running query."""
        for notice in self._warned():
            tell(notice)
        self._notify = tell
        try:
            yield
        finally:
            self._notify = self._warnings.append

    def _prepare_query(self, statement: PrepareQuery) -> Done:
        """Run PREPARE (PrepareQuery). Rights are checked when the query runs."""
        types = [find_type(name)[0] for name in statement.types]
        description = self._described(statement.query, types, replace(self._role(), superuser=True))
        if statement.name in self.prepared:
            raise DuplicatePreparedStatement(
                f'prepared statement "{statement.name}" already exists'
            )
        query = QueryStatement(statement.query)
        prepared = Prepared(self._source, description, query)
        self.prepared[statement.name] = self._kept(prepared, self._source_memory)
        return Done("PREPARE")

    def _prepared_query(self, name: str) -> Prepared:
        prepared = self.prepared.get(name)
        if prepared is None:
            raise InvalidSqlStatementName(f'prepared statement "{name}" does not exist')
        return prepared

    def _arguments(self, statement: ExecuteQuery, prepared: Prepared) -> Cells:
        """Return the values of EXECUTE's arguments in text format (EvaluateParams)."""
        expected, given = prepared.description.parameters, statement.arguments
        if not expected:  # a server ignores arguments then
            return ()
        if len(given) != len(expected):
            raise SqlSyntaxError(
                f'wrong number of parameters for prepared statement "{statement.name}"',
                detail=f"Expected {len(expected)} parameters but got {len(given)}.",
            )
        self._learn_types()
        (values,) = self._query(execute_parameters(given, expected), BoundValues()).rows
        return values

    def _check_end(self, statement: ExecuteQuery) -> None:
        """Refuse prepared statements that execute one another for ever: Parse may have given them
        EXECUTE. Raises PenstockError (54001)."""
        names: set[str] = set()
        following: Statement | None = statement
        while isinstance(following, ExecuteQuery):
            if following.name in names:
                raise too_deep()
            names.add(following.name)
            following = self._prepared_query(following.name).statement

    def _lock(self, relations: Iterable[RangeVar]) -> None:
        """Check a lock's tables and the rights to them (LockTableCommand). Nothing conflicts with
        ACCESS SHARE: queries read versions."""
        if not self._one_transaction:
            self._block.inside("LOCK TABLE")
        for relation in relations:
            query = SelectStmt((ResTarget(Star()),), (RangeTable(relation),))
            self._described(query, (), self._role())

    def _deallocate(self, name: str | None) -> Done:
        if name is None:
            self._drop_prepared()
            return Done("DEALLOCATE ALL")
        self._prepared_query(name)
        del self.prepared[name]
        return Done("DEALLOCATE")

    def _drop_prepared(self) -> None:
        """Drop all prepared statements that have a name (DropAllPreparedStatements)."""
        for name in filter(None, tuple(self.prepared)):
            del self.prepared[name]

    def _require_database(self) -> None:
        if not self._context.parameters.database:
            raise FeatureNotSupported(
                "cannot execute SQL commands in WAL sender for physical replication",
            )

    def _learn_types(self) -> None:
        """Read the node's own types at the beginning of a statement, and the search path."""
        role = self._role()
        with self._services.catalog.read() as t:
            remember_enums(t.types.all())
            own = None if t.namespaces.find(role.name) is None else role.name
        remember_database(self._services.database)
        remember_search_path(read_search_path(self._settings.show("search_path"), own))

    def _role(self) -> Role:
        """Look up the role again for each statement: privileges may have been revoked."""
        return role_now(self._services.catalog, self._context.role)

    def _facts(self, role: Role) -> SessionFacts:
        return SessionFacts(
            pid=self._context.pid,
            user="" if role.dropped else role.name,
            role_oid=role.oid,
            superuser=role.superuser,
            replication=role.replication,
            database=self._context.parameters.database,
            version=self._services.version,
            settings=self._variables.values(),
            set_config=self._variables.set_config,
            notify=lambda notice: self._notify(notice),
            cancelled=self._cancellation.requested,
            wrote=self._standbys.note_write,
            emit=self._emit if self._block.open else None,
            check_no_writes=self._block.check_no_writes,
            export_snapshot=self._export_snapshot,
            sequences=self._sequences,
            read_only=self._block.read_only,
            started=self._services.sessions.transaction_started(self._context.pid),
            statement_started=self._services.sessions.statement_started(self._context.pid),
        )

    def _export_snapshot(self) -> str:
        """Export the snapshot of the block for as long as it runs; outside of a block, of the
        statement."""
        block = self._block
        return self._services.snapshots.export(
            self._context.pid, block.to_export(), block=block.open
        )

    def _emit(self, prefix: str, content: bytes) -> None:
        """Stage a message of pg_logical_emit_message in the block."""
        lake = self._services.lake
        self._block.emit(prefix, content, "pg_logical_emit_message", lake.open_block)


@lru_cache(maxsize=64)
def _seconds(timeout: str) -> float:
    """Return a time that SHOW has printed."""
    return float(in_seconds_or_bytes(read_integer("statement_timeout", timeout, "ms"), "ms"))


def _notices(cut: Iterable[str]) -> Iterator[Notice]:
    """Yield the notices of names that were cut (ERRCODE_NAME_TOO_LONG)."""
    return (Notice("NOTICE", message, sqlstate="42622") for message in cut)


# COPY TO STDOUT (copyto.c).
#
# COPY as subscribers send it (tablesync.c, copy_table) becomes a request to read a table's files
# and write them in a format. Any other query runs as SELECT, and its rows are written as COPY's. A
# wrong option raises PostgreSQL's error. The lake looks up tables and columns and checks
# privileges.

_FORMATS: Final = {"text": False, "binary": True}
_PORTION_BYTES: Final = 1 << 18
"""The bytes of rows that are converted at once."""
_ROW_BYTES: Final = 16
"""Bytes added for each row, because a row without columns also needs memory."""


def copy_request(statement: Copy) -> CopyRequest | None:
    """Return the request for a COPY of a table; None for other queries. Raises FeatureNotSupported,
    InvalidParameterValue (22023)."""
    binary = _binary(statement)
    if statement.relation is not None:
        columns = None if statement.columns is None else tuple(map(CopyTarget, statement.columns))
        return CopyRequest(statement.relation, columns, None, binary)
    query = None if statement.query is None else copy_query(statement.query)
    if query is None:
        return None
    relation = query.relation
    return CopyRequest(relation, query.columns, query.where, binary, relation.only, query=True)


def copy_of_rows(rows: Rows, statement: Copy) -> CopyOut:
    """Return the answer to COPY of a query. Rows are read while the client takes them."""
    binary = _binary(statement)
    code = BINARY_FORMAT if binary else TEXT_FORMAT
    fields = [replace(field, format=code) for field in rows.fields]
    portions = _portions(in_formats(rows.rows, fields), binary=binary)
    chunks = binary_copy(portions) if binary else portions
    return CopyOut(len(rows.fields), binary, chunks, rows.notices)


def _portions(rows: Iterable[Cells], *, binary: bool) -> Iterator[tuple[int, bytes]]:
    encoded = binary_rows if binary else text_rows
    if isinstance(rows, ColumnRows):
        for columns in rows.portions():
            yield len(columns[0]), encoded(columns, len(columns[0]))
        return
    cells: list[Cells] = []
    size = 0
    for row in rows:
        cells.append(row)
        size += _ROW_BYTES + sum(len(cell) for cell in row if cell is not None)
        if size >= _PORTION_BYTES:
            yield len(cells), encoded(_columns(cells), len(cells))
            cells, size = [], 0
    yield len(cells), encoded(_columns(cells), len(cells))


def _columns(cells: list[Cells]) -> list[pa.Array]:
    return [pa.array(column, pa.binary()) for column in zip(*cells, strict=True)]


def _binary(statement: Copy) -> bool:
    binary = False
    for option in statement.options:
        if option.name != "format":
            raise FeatureNotSupported(f'COPY option "{option.name}" is not supported')
        name = str(option.arg)
        if name == "csv":
            raise FeatureNotSupported("COPY format csv is not supported")
        if name not in _FORMATS:
            raise InvalidParameterValue(f'COPY format "{name}" not recognized')
        binary = _FORMATS[name]
    return binary


# Describe prepared statements (parse_analyze_varparams).
#
# Queries on catalogs are described by ``CatalogQueries``. In statements on tables of the lake,
# parameters get their types from their use; for the description their values are NULL.


@dataclass(frozen=True, slots=True)
class BoundValues:
    """Values of parameters in text format, and their type oids."""

    values: Cells = ()
    types: Sequence[int] = ()


def describe_query(
    services: SessionServices,
    query: SelectStmt,
    said: Sequence[int],
    at: Position,
    facts: SessionFacts,
    role: Role,
) -> Description:
    """Describe a SELECT. Raises PostgreSQL's errors."""
    if services.catalog_queries.reads_catalog_only(query):
        return services.catalog_queries.describe(query, facts, said)
    parameters = described_parameters(services, query, said)
    nulls = with_values(query, (None,) * len(parameters), parameters)
    return Description(parameters, services.lake.describe(nulls, at, role))


def described_parameters(
    services: SessionServices, query: PreparableStmt, said: Sequence[int]
) -> tuple[int, ...]:
    """Return the parameter types of a statement on tables of the lake."""
    count = max(last_parameter(query), len(said))

    def columns(schema: str | None, table: str) -> Mapping[str, int]:
        find = services.catalog_queries.column_types
        found = (find(each, table) for each in schemas_to_search(schema))
        return next((types for types in found if types), {})

    return parameter_types(query, count, said, columns)


# Run transaction statements, and changes of rows inside transactions (xact.c).
#
# ``Transactions`` runs parsed statements of one session. ``transaction_block`` keeps the state of
# the block; the lake stages and commits its rows.

_Ended = tuple[str, Sequence[Notice]]
"""The command tag, and the notices to send before it."""


class Transactions:
    """Runs the transaction statements of one session."""

    def __init__(
        self,
        services: SessionServices,
        block: TransactionBlock,
        commands: NodeCommands,
        cancellation: Cancellation,
        standbys: StandbyWait,
    ) -> None:
        self._services = services
        self._block = block
        self._commands = commands
        self._cancellation = cancellation
        self._standbys = standbys

    def change(self, what: str, statement: RowStmt, writer: Writer) -> CommandOutcome:
        """Run INSERT, UPDATE or DELETE, and commit it or stage it in the block. Raises
        PenstockError."""
        lake = self._services.lake
        if not self._block.open:
            return lake.change(statement, writer)
        rows = self._block.changing(what, lake.open_block)
        lake = self._services.within(rows).lake
        return lake.stage(statement, self._block.snapshot(), writer, rows)

    def run(self, statement: Transaction, role: Callable[[], Role]) -> Iterator[Answer]:
        """Run a transaction statement. Raises PenstockError; a failed COMMIT ends the block."""
        if statement.kind in (TransactionKind.BEGIN, TransactionKind.START):
            self._block.check()
            yield from self._block.begin(statement.modes)
            yield Done(statement.kind.value)
            return
        self._cancellation.stop_timer()  # a commit has no timeout (finish_xact_command)
        tag, warnings = self._run(statement, role)
        yield from warnings
        yield Done(tag)

    def _run(self, statement: Transaction, role: Callable[[], Role]) -> _Ended:
        tag = statement.kind.value
        match statement.kind:
            case TransactionKind.SAVEPOINT:
                self._block.define_savepoint(statement.name)
                return tag, ()
            case TransactionKind.RELEASE:
                self._block.release_savepoint(statement.name)
                return tag, ()
            case TransactionKind.ROLLBACK_TO:
                self._block.rollback_to_savepoint(statement.name)
                return "ROLLBACK", ()
            case TransactionKind.COMMIT | TransactionKind.ROLLBACK:
                return self._end(statement, role)
            case TransactionKind.PREPARE:
                return self._prepare(statement.name, role)
            case TransactionKind.COMMIT_PREPARED | TransactionKind.ROLLBACK_PREPARED:
                return self._end_prepared(statement, role)
        raise AssertionError(statement.kind)

    def _prepare(self, gid: str, role: Callable[[], Role]) -> _Ended:
        """Prepare the block, or roll it back if this fails (PrepareTransactionBlock)."""
        prepares = self._block.open and not self._block.failed
        before = self._standbys.now() if prepares else None
        if prepares:
            try:
                self._block.check_prepare()
                with self._cancellation.running():
                    self._services.lake.prepare(gid, self._block.rows, role(), self._cancellation)
            except BaseException:
                self._block.abandon()
                raise
        tag, warning = self._block.end(TransactionKind.PREPARE.value if prepares else "ROLLBACK")
        waited = tuple(self._standbys.after(before))
        return tag, waited if warning is None else (*waited, warning)

    def _end_prepared(self, statement: Transaction, role: Callable[[], Role]) -> _Ended:
        """Commit or roll back a transaction that any session has prepared."""
        tag, lake = statement.kind.value, self._services.lake
        self._block.check()
        self._block.outside(tag)
        before = self._standbys.now()
        if statement.kind is TransactionKind.ROLLBACK_PREPARED:
            lake.rollback_prepared(statement.name, role())
        else:
            lake.commit_prepared(statement.name, role())
        return tag, tuple(self._standbys.after(before))

    def _end(self, statement: Transaction, role: Callable[[], Role]) -> _Ended:
        tag = statement.kind.value
        if statement.chain:
            self._block.check_chain(tag)
        commits = self._block.commits(tag)
        writes = commits and (self._block.commands or self._block.rows is not None)
        before = self._standbys.now() if writes else None
        try:
            if commits:
                self._commands.commit(role())
                if self._block.rows is not None:
                    self._services.lake.commit(self._block.rows)
        except BaseException:
            self._block.abandon()
            raise
        end = self._block.chained if statement.chain else self._block.end
        tag, warning = end(tag)
        waited = tuple(self._standbys.after(before))
        return tag, waited if warning is None else (*waited, warning)


# SET, RESET and SHOW, in all forms (guc_funcs.c, ExecSetVariableStmt).
#
# ``Variables`` runs these statements and set_config() for one session. ``session_settings`` keeps
# the values; the block keeps its transaction modes.

VariableStatement = SetVariable | ResetVariable | ShowVariable | SetTransaction

_ISOLATION: Final = "transaction_isolation"
_READ_ONLY: Final = "transaction_read_only"
_DEFERRABLE: Final = "transaction_deferrable"
_APPLICATION: Final = "application_name"


class Variables:
    """The variables of one session. ``tell_name`` is called with each new application_name."""

    def __init__(
        self, settings: SessionSettings, block: TransactionBlock, tell_name: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._block = block
        self._tell_name = tell_name
        self._name = settings.show(_APPLICATION)

    def run(self, statement: VariableStatement) -> Iterator[Answer]:
        """Run SET, RESET or SHOW. Raises as ``set_config``."""
        match statement:
            case ShowVariable(name=name):
                yield self._show(name)
            case ResetVariable(name=None):
                self._settings.reset_all()
                yield Done("RESET")
            case ResetVariable(name=str(name)):
                self._set(name, None, local=False)
                yield Done("RESET")
            case SetVariable(name=name, local=local):
                if local:
                    yield from self._outside("SET LOCAL")
                self._set(name, None if statement.values is None else statement.text, local=local)
                yield Done("SET")
            case SetTransaction(modes=modes, session=True):
                for key, value in _as_settings(modes).items():
                    self._settings.set(f"default_{key}", value)
                yield Done("SET")
            case SetTransaction(modes=modes):
                yield from self._outside("SET TRANSACTION")
                self._block.set_modes(modes)
                yield Done("SET")

    def set_config(self, name: str, value: str | None, is_local: bool) -> str:
        """Set a variable and return its new value. Raises PenstockError (42704, 55P02, 42501,
        22023, 25001, 0A000)."""
        self._set(name, value, local=is_local)
        return self.show(name)

    def show(self, name: str) -> str:
        """Return a variable's value. Raises UndefinedObject (42704)."""
        return self._modes().get(name.lower()) or self._settings.show(name)

    def values(self) -> Mapping[str, str]:
        """Return all settings by lower-case name."""
        return {**self._settings.values(), **self._modes()}

    def fields(self, name: str | None) -> tuple[FieldDescription, ...]:
        """Return the columns of SHOW, or of SHOW ALL if ``name`` is None."""
        title = ("name", "setting", "description")
        names = title if name is None else (self._settings.title(name),)
        return field_descriptions(Attribute(column, TEXT) for column in names)

    def settle(self) -> list[ParameterChange]:
        """Publish application_name after each statement, even a failed one. Return the changes to
        report to the client."""
        name = self._settings.show(_APPLICATION)
        if name != self._name:
            self._name = name
            self._tell_name(name)
        return self._settings.changed()

    def _set(self, name: str, value: str | None, *, local: bool) -> None:
        """Set or reset a variable. Setting a transaction mode outside of a block has no effect: the
        transaction ends with the statement."""
        key = name.lower()
        if key not in (_ISOLATION, _READ_ONLY, _DEFERRABLE):
            self._settings.set(name, value, local=local)
            return
        if value is None:
            raise FeatureNotSupported(f'parameter "{name}" cannot be reset')
        checked = self._settings.check(name, value)
        if key == _ISOLATION:
            self._block.set_modes(TransactionModes(isolation=checked))
        elif key == _READ_ONLY:
            self._block.set_modes(TransactionModes(read_only=checked == "on"))
        else:
            self._block.set_modes(TransactionModes(deferrable=checked == "on"))

    def _outside(self, what: str) -> Iterator[Notice]:
        """Yield the warning for a statement that needs a block (WarnNoTransactionBlock)."""
        if not self._block.open:
            message = f"{what} can only be used in transaction blocks"
            yield Notice("WARNING", message, sqlstate="25P01")

    def _modes(self) -> Mapping[str, str]:
        return _as_settings(self._block.modes)

    def _show(self, name: str | None) -> Rows:
        if name is not None:
            return Rows(self.fields(name), [[self.show(name).encode()]], "SHOW", counted=False)
        values = sorted(self.values().items())
        rows = [[key.encode(), value.encode(), b""] for key, value in values]
        return Rows(self.fields(None), rows, "SHOW", counted=False)


def _as_settings(modes: TransactionModes) -> dict[str, str]:
    """Return the modes that are not None, as settings."""
    said = {
        _ISOLATION: modes.isolation,
        _READ_ONLY: None if modes.read_only is None else ("off", "on")[modes.read_only],
        _DEFERRABLE: None if modes.deferrable is None else ("off", "on")[modes.deferrable],
    }
    return {key: value for key, value in said.items() if value is not None}


# Synchronous replication: a statement that commits waits for standbys before its answer is sent
# (SyncRepWaitForLSN).
#
# The session waits if its settings ask for it and the node's log has grown during the statement. If
# the wait is cancelled, the client gets PostgreSQL's warning; the commit stays.

_SHUTDOWN: Final = "57P01"
_DETAIL: Final = (
    "The transaction has already committed locally, but might not have been replicated to the "
    "standby."
)


@dataclass(frozen=True, slots=True)
class Before:
    """The end of the node's log before a commit. ``mode``: the synchronous_commit of the commit,
    which SET LOCAL may have set for its block only."""

    lsn: Lsn
    mode: str


class StandbyWait:
    """Waits for standbys, for one session. ``mode`` returns its present synchronous_commit."""

    def __init__(
        self,
        services: SessionServices,
        mode: Callable[[], str],
        cancellation: Cancellation,
        turn: Turn,
    ) -> None:
        self._services = services
        self._mode = mode
        self._turn = turn
        self._cancellation = cancellation
        self.wrote = False
        """True if the last query has committed something."""

    def before(self, statement: Statement) -> Before | None:
        """Return the end of the node's log before a statement; None if the statement changes
        nothing, or there is no standby to wait for."""
        if reads(statement):
            return None
        return self.now()

    def note_write(self) -> None:
        """Note that the running query has committed something."""
        self.wrote = True

    @contextmanager
    def query(self, warnings: list[Notice]) -> Iterator[None]:
        """Run a query in the ``with`` block, and then wait if the query has committed something.
        Add a warning to ``warnings`` if the wait is cancelled."""
        self.wrote, before = False, self.now()
        yield
        if self.wrote:
            warnings += self.after(before)

    def now(self) -> Before | None:
        """Return the end of the node's log; None if there is no standby to wait for."""
        mode = self._mode()
        if mode not in MODES or self._services.sync_rep.config() is None:
            return None
        return Before(self._services.sequencer.position().lsn, mode)

    def after(self, before: Before | None) -> Iterator[Notice]:
        """Wait until standbys have everything up to the present end of the node's log. This takes
        as long as it takes: a commit has no timeout (finish_xact_command)."""
        if before is None:
            return
        services, cancellation = self._services, self._cancellation
        cancellation.stop_timer()
        self._turn.leave()
        end = services.sequencer.position().lsn
        if end <= before.lsn or services.sync_rep.wait(end, before.mode, cancellation.requested):
            return
        if cancellation.ended:
            message = (
                "canceling the wait for synchronous replication and terminating connection due "
                "to administrator command"
            )
            yield Notice("WARNING", message, _DETAIL, sqlstate=_SHUTDOWN)
            return
        cancellation.forget()
        message = "canceling wait for synchronous replication due to user request"
        yield Notice("WARNING", message, _DETAIL, sqlstate=_WARNING)


# Run the commands (DDL) of one session, outside of or in a transaction block (utility.c; xact.c).
#
# COMMIT makes all changes of a block in one transaction of the catalog; until then nobody sees them
# and nothing is locked. A command in a block is run, together with all earlier ones, and rolled
# back, so that its errors and notices are reported at once. Tables that a block creates are staged
# with its rows instead (``executor.block``).


class NodeCommands:
    """Runs the commands of one session."""

    def __init__(
        self, services: SessionServices, block: TransactionBlock, cancellation: Cancellation
    ) -> None:
        self._services = services
        self._block = block
        self._cancellation = cancellation

    def run(self, statement: Statement, role: Role) -> CommandOutcome:
        """Execute a command; in a block, try it and keep it for COMMIT. Raises PenstockError."""
        check, blocks = self._cancellation.check, self._services.blocks
        try:
            if not self._block.open:
                return self._services.run_command(statement, role, check)
            if blocks is not None and blocks.defines(statement):
                tag = command_tag(statement) or ""
                rows = self._block.changing(tag, self._services.lake.open_block)
                return blocks.define(statement, role, rows)
            self._block.check_command()
            if blocks is None or not blocks.takes(statement):
                raise self._block.refusal("This statement")
            tried = (*self._block.commands, statement)
            outcome = blocks.run(tried, role, commit=False)
        except ConnectionFailure as error:  # to a publisher; it must not end this session
            raise PenstockError(
                error.message, detail=error.detail, hint=error.hint, sqlstate=error.sqlstate
            ) from None
        self._block.commands = tried
        return outcome

    def commit(self, role: Role) -> None:
        """Execute the block's commands. After PenstockError nothing has changed."""
        blocks, commands = self._services.blocks, self._block.commands
        if blocks is not None and commands:
            blocks.run(commands, role, commit=True)

    def create_table_as(self, statement: CreateTableAs, writer: Writer) -> CommandOutcome:
        """Run CREATE TABLE AS, outside of a block."""
        lake, at, role = self._services.lake, self._block.now(), writer.role
        return create_table_as(
            statement,
            lambda query: lake.describe(query, at, role),
            lambda command: self.run(command, role),
            lambda change: lake.change(change, writer),
        )


# CREATE TABLE ... AS (createas.c): create a table with the columns of a query and insert its rows.
#
# The command tag is SELECT. One commit creates the table, the next one inserts its rows. If the
# query fails, the table is dropped.

_DUPLICATE_TABLE = "42P07"


def create_table_as(
    statement: CreateTableAs,
    describe: Callable[[SelectStmt], Sequence[FieldDescription]],
    run: Callable[[Statement], CommandOutcome],
    change: Callable[[InsertStmt], CommandOutcome],
) -> CommandOutcome:
    """Create a table and fill it. ``describe`` returns the columns of a query, ``run`` executes a
    command, ``change`` executes an INSERT.

    Raises their errors, and SqlSyntaxError.
    """
    fields = describe(statement.query)
    if len(statement.columns) > len(fields):
        raise SqlSyntaxError("too many column names were specified")
    names = [*statement.columns, *(f.attribute.name for f in fields[len(statement.columns) :])]
    columns = ", ".join(
        f"{quote_identifier(name)} {type_text(field.attribute.type_oid, field.attribute.typmod)}"
        for name, field in zip(names, fields, strict=True)
    )
    table = _text(statement.relation)
    guard = "IF NOT EXISTS " if statement.missing_ok else ""
    made = run(parse(f"CREATE TABLE {guard}{table} ({columns})"))
    skipped = any(told.sqlstate == _DUPLICATE_TABLE for told in made.notices)
    if skipped or not statement.with_data:
        return CommandOutcome("CREATE TABLE AS", made.notices)
    try:
        filled = change(InsertStmt(statement.relation, None, statement.query))
    except BaseException:
        run(DropTable((statement.relation,)))
        raise
    count = filled.tag.rpartition(" ")[2]
    return CommandOutcome(f"SELECT {count}", (*made.notices, *filled.notices))


def _text(relation: RangeVar) -> str:
    parts = [part for part in (relation.schema, relation.name) if part]
    return ".".join(map(quote_identifier, parts))
