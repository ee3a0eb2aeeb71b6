"""The statements of one session, each to the one that runs it (postgres.c, exec_simple_query).

In: query strings. Out: answers. Replication commands go to ``replication``; what concerns the
session itself is done here; commands, catalog queries and the lake's rows are the node's services.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from penstock.backend.authentication import role_now
from penstock.backend.backend import SessionContext
from penstock.backend.cancellation import Cancellation
from penstock.backend.copy_statement import copy_of_rows, copy_request
from penstock.backend.node_commands import NodeCommands
from penstock.backend.prepared_queries import BoundValues, describe_query, described_parameters
from penstock.backend.replication import ReplicationCommands
from penstock.backend.services import SessionServices
from penstock.backend.session_settings import SessionSettings
from penstock.backend.standby_wait import StandbyWait
from penstock.backend.transaction_block import TransactionBlock
from penstock.backend.transactions import Transactions
from penstock.backend.variables import Variables
from penstock.catalog import Role, SessionSequences
from penstock.errors import FeatureNotSupported
from penstock.executor.writer import Writer
from penstock.pg_catalog.session_facts import SessionFacts
from penstock.protocol.answers import (
    Answer,
    Description,
    Done,
    Empty,
    Notice,
    ParameterChange,
    Prepared,
    Rows,
)
from penstock.protocol.backend_messages import TransactionStatus
from penstock.protocol.replication_grammar import (
    is_replication_command,
    parse_replication_command,
)
from penstock.protocol.startup import ReplicationMode
from penstock.sql import (
    CloseCursor,
    Copy,
    Deallocate,
    Discard,
    QueryStatement,
    ResetVariable,
    SetTransaction,
    SetTransactionSnapshot,
    SetVariable,
    ShowVariable,
    Statement,
    Transaction,
    Truncate,
    Unlisten,
    parse,
    parse_script,
)
from penstock.sql.builtin.enum_types import remember_enums
from penstock.sql.command_tag import command_tag, reads
from penstock.sql.grammar.table import CreateTableAs
from penstock.sql.to_duckdb.session_values import SessionValues
from penstock.sql.typed.parameters import with_values
from penstock.sqlstate import InvalidCursorName, InvalidSqlStatementName

_WARNING = "01000"


class SessionRunner:
    """Runs what one client sends; made when it has logged in."""

    def __init__(self, context: SessionContext, services: SessionServices) -> None:
        self._context = context
        self._services = services
        self._cancellation = Cancellation(services.jobs)
        self._walsender = context.parameters.replication is not ReplicationMode.NONE
        own = {"is_superuser": "on" if context.role.superuser else "off"}
        node, given = ChainMap(own, services.settings), context.parameters.settings
        self._settings = SessionSettings(
            node, given, services.version, lambda: self._role().superuser
        )
        self.prepared: dict[str, Prepared] = {}
        self._warnings: list[Notice] = []
        self._sequences = SessionSequences()
        self._block = TransactionBlock(services.sequencer.position, self._settings)
        self._variables = Variables(
            self._settings,
            self._block,
            lambda name: services.sessions.name(context.pid, name),
        )
        self._commands = NodeCommands(services, self._block, self._cancellation)
        self._standbys = StandbyWait(
            services, lambda: self._settings.show("synchronous_commit"), self._cancellation
        )
        self._transactions = Transactions(
            services, self._block, self._commands, self._cancellation, self._standbys
        )
        self._replication = ReplicationCommands(
            context, services, self._block, self._settings.show, self._cancellation
        )

    # StatementRunner

    def simple(self, text: str) -> Iterator[Answer]:
        """Run a query string."""
        self._cancellation.begin()
        version = self._services.version
        if self._walsender and is_replication_command(text, version):
            yield from self._replication.run(parse_replication_command(text, version))
            return
        self._require_database()
        statements = parse_script(text)
        if not statements:
            yield Empty()
        for statement in statements:
            yield from self._run(statement, _source(statement, text), BoundValues())

    def prepare(self, text: str, types: Sequence[int]) -> Prepared:
        """What a statement takes and gives."""
        description = Description(tuple(types), None)
        if not text.strip():
            return Prepared(text, description)
        self._learn_types()
        statement = parse(text)
        if not isinstance(statement, Transaction):
            self._block.check()
        services = self._services.within(self._block.rows)
        match statement:
            case ShowVariable(name=name):
                description = replace(description, fields=self._variables.fields(name))
            case QueryStatement() if reads(statement):
                at, role = self._block.now(), self._role()
                facts = self._facts(role)
                description = describe_query(services, text, types, at, facts, role)
            case QueryStatement():
                parameters = described_parameters(services, text, types)
                description = Description(parameters, None)
        return Prepared(text, description)

    def execute(self, statement: Prepared, parameters: Sequence[bytes | None]) -> Iterable[Answer]:
        """Run one prepared statement."""
        self._cancellation.begin()
        text = statement.text
        if not text.strip():
            return [Empty()]
        self._learn_types()
        given = BoundValues(parameters, statement.description.parameters)
        if parameters and not self._services.catalog_queries.reads_catalog_only(text):
            text, given = with_values(text, given.values, given.types), BoundValues()
        return self._run(parse(text), text, given)

    @property
    def transaction_status(self) -> TransactionStatus:
        """What ReadyForQuery tells."""
        return self._block.status

    def failed(self) -> Iterable[ParameterChange]:
        """The running statement has failed; temporary slots go with it, as in PostgreSQL."""
        self._block.fail()
        self._services.slots.take_back(self._context.pid, sent=False)
        self._services.slots.end_session(self._context.pid)
        return self._variables.settle()

    def cancel(self) -> None:
        """End the running statement soon."""
        self._cancellation.request()

    def terminate(self) -> None:
        """End the running statement soon, and every other one."""
        self._cancellation.end()

    def close(self) -> None:
        """The session ends."""
        self._block.abandon()
        self._services.snapshots.withdraw(self._context.pid)
        self._services.slots.take_back(self._context.pid, sent=True)
        self._services.slots.end_session(self._context.pid)

    # One statement

    def _run(self, statement: Statement, text: str, parameters: BoundValues) -> Iterator[Answer]:
        for message in statement.notices:
            yield Notice("NOTICE", message, sqlstate="42622")
        if isinstance(statement, Transaction):
            yield from self._transactions.run(statement, self._role)
            yield from self._variables.settle()
            return
        self._block.check()
        self._block.check_read_only(command_tag(statement))
        self._services.snapshots.withdraw(self._context.pid)
        self._learn_types()
        before = None if self._block.open else self._standbys.before(statement)
        for answer in self._in_session(statement, text, parameters):
            if isinstance(answer, Done):
                yield from self._standbys.after(before)
            yield answer
        self._block.settle()
        yield from self._variables.settle()

    def _in_session(
        self, statement: Statement, text: str, parameters: BoundValues
    ) -> Iterator[Answer]:
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
                self.prepared.clear()
                if what in ("all", "sequences"):
                    self._sequences.forget()
                yield Done(f"DISCARD {what.upper()}")
            case Deallocate():
                yield self._deallocate(statement.name)
            case CloseCursor(name=None):
                yield Done("CLOSE CURSOR ALL")
            case CloseCursor(name=cursor):
                raise InvalidCursorName(f'cursor "{cursor}" does not exist')
            case Unlisten():
                yield Done("UNLISTEN")
            case _:
                yield from self._of_the_node(statement, text, parameters)

    def _of_the_node(
        self, statement: Statement, text: str, parameters: BoundValues
    ) -> Iterator[Answer]:
        services, role = self._services.within(self._block.rows), self._role()
        match statement:
            case Copy(query=str(query)) if services.catalog_queries.reads_catalog_only(query):
                rows = self._catalog_rows(query, BoundValues())
                yield from self._warned()
                copied = copy_of_rows(rows, statement)
                yield replace(copied, chunks=self._cancellation.copied(copied.chunks))
            case Copy():
                # Of a replication connection: no client but a subscriber copies tables by one.
                request = replace(copy_request(statement), packed=self._walsender)
                copied = services.lake.copy(request, self._block.snapshot(), role)
                yield replace(copied, chunks=self._cancellation.copied(copied.chunks))
            case QueryStatement() if reads(statement):
                rows = self._query(text, parameters)
                yield from self._warned()
                yield rows
            case QueryStatement(kind=kind):
                with self._cancellation.running():
                    outcome = self._transactions.change(kind.upper(), text, self._writer(role))
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

    def _query(self, text: str, parameters: BoundValues) -> Rows:
        services = self._services.within(self._block.rows)
        if services.catalog_queries.reads_catalog_only(text):
            return self._catalog_rows(text, parameters)
        role = self._role()
        with self._cancellation.running():
            found = services.lake.query(
                text, self._block.snapshot(), role, self._cancellation, self._values(role)
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

    def _catalog_rows(self, text: str, parameters: BoundValues) -> Rows:
        """A query of the catalogs, which may end sessions: this one, too."""
        self._block.check_catalogs()
        self._block.query()
        catalogs = self._services.within(self._block.rows).catalog_queries
        facts = self._facts(self._role())
        with self._standbys.query(self._warnings):
            rows = catalogs.query(text, parameters.values, facts, parameters.types)
        self._cancellation.check()
        return rows

    def _warn(self, message: str) -> None:
        self._warnings.append(Notice("WARNING", message, sqlstate=_WARNING))

    def _warned(self) -> Iterator[Notice]:
        """What functions of the query had to say."""
        warnings, self._warnings = self._warnings, []
        yield from warnings

    def _deallocate(self, name: str | None) -> Done:
        if name is None:
            self.prepared.clear()
            return Done("DEALLOCATE ALL")
        if self.prepared.pop(name, None) is None:
            raise InvalidSqlStatementName(f'prepared statement "{name}" does not exist')
        return Done("DEALLOCATE")

    def _require_database(self) -> None:
        if not self._context.parameters.database:
            raise FeatureNotSupported(
                "cannot execute SQL commands in WAL sender for physical replication",
            )

    def _learn_types(self) -> None:
        """The node's own types, as the statement that begins finds them."""
        with self._services.catalog.read() as t:
            remember_enums(t.types.all())

    def _role(self) -> Role:
        """Looked up for every statement: what was revoked since is gone."""
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
            warn=self._warn,
            cancelled=self._cancellation.requested,
            wrote=self._standbys.wrote,
            emit=self._emit if self._block.open else None,
            sequences=self._sequences,
            read_only=self._block.read_only,
            started=self._services.sessions.transaction_started(self._context.pid),
            statement_started=self._services.sessions.statement_started(self._context.pid),
        )

    def _emit(self, prefix: str, content: bytes) -> None:
        """A message that belongs to the block."""
        lake = self._services.lake
        self._block.emit(prefix, content, "pg_logical_emit_message", lake.open_block)


def _source(statement: Statement, text: str) -> str:
    start, end = statement.span
    return text[start:end]
