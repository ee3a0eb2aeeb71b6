"""The extended query protocol: prepared statements and portals (Message Flow; postgres.c).

In: Parse, Bind, Describe, Execute, Close, Flush, Sync of one session. Out: their answers.
Parameters come in text or binary format and are handed on as text; results go out in the format
that was asked for, column by column. A portal that was executed in part goes on where it stopped,
until its transaction ends. What a statement takes and gives is left to the ``StatementRunner``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from penstock.backend.binary_parameters import parameter_text
from penstock.backend.binary_results import CHARACTER_TYPES, in_formats
from penstock.backend.client_socket import MessagePump
from penstock.backend.query_answers import send_answer, send_rows
from penstock.errors import (
    FeatureNotSupported,
    NotInPrerequisiteState,
    PenstockError,
    ProtocolViolation,
)
from penstock.protocol import frontend_messages as m
from penstock.protocol.answers import Cells, Prepared, Rows, StatementRunner
from penstock.protocol.backend_messages import (
    BINARY_FORMAT,
    TEXT_FORMAT,
    FieldDescription,
    TransactionStatus,
)
from penstock.protocol.encoding import ClientEncoding
from penstock.protocol.session import ServerSession
from penstock.protocol.session_input import Event
from penstock.sql.typed.literals import canonical
from penstock.sqlstate import (
    DuplicateCursor,
    DuplicatePreparedStatement,
    InvalidCursorName,
    InvalidSqlStatementName,
)


@dataclass(slots=True)
class _Portal:
    """``fields``: with the formats asked for. ``rows``: what is still to come, once it has run."""

    prepared: Prepared
    parameters: tuple[bytes | None, ...] = field(repr=False)
    fields: tuple[FieldDescription, ...] | None
    answer: Rows | None = None
    rows: Iterator[Cells] | None = None
    ran: bool = False


class ExtendedQuery:
    """Statements and portals of one session. The statements are the runner's, as DEALLOCATE is."""

    def __init__(self, session: ServerSession, pump: MessagePump, runner: StatementRunner) -> None:
        self._session = session
        self._pump = pump
        self._runner = runner
        self._portals: dict[str, _Portal] = {}
        self._status = TransactionStatus.IDLE

    def handle(self, event: Event) -> None:
        """Answer one message. Raises PenstockError, which the session turns into an answer."""
        match event:
            case m.Parse():
                self._parse(event)
            case m.Bind():
                self._bind(event)
            case m.Describe():
                self._describe(event)
            case m.Execute():
                self._execute(event)
            case m.Close():
                named: dict[str, Prepared] | dict[str, _Portal] = self._portals
                if event.kind == m.STATEMENT:
                    named = self._runner.prepared
                named.pop(event.name, None)
                self._pump.send(self._session.close_complete())
            case m.Flush():
                return  # every answer was sent when it was there
            case m.Sync():
                self._sync()
            case _:
                raise PenstockError(f"unexpected message {type(event).__name__}")

    def simple_query(self) -> None:
        """A simple query comes: it takes the place of what has no name (exec_simple_query)."""
        self._runner.prepared.pop("", None)
        self._portals.pop("", None)

    def end_transaction(self) -> None:
        """Portals end with their transaction."""
        self._portals.clear()

    def after_statement(self) -> None:
        """COMMIT and ROLLBACK end the portals of their block."""
        before, self._status = self._status, self._runner.transaction_status
        if before is not TransactionStatus.IDLE and self._status is TransactionStatus.IDLE:
            self.end_transaction()

    def _sync(self) -> None:
        status = self._runner.transaction_status
        if status is TransactionStatus.IDLE:
            self.end_transaction()
        self._session.transaction_status = status
        self._pump.send(self._session.ready_for_query())

    def _parse(self, message: m.Parse) -> None:
        prepared = self._runner.prepare(message.query, message.parameter_types)
        if message.statement and message.statement in self._runner.prepared:
            raise DuplicatePreparedStatement(
                f'prepared statement "{message.statement}" already exists'
            )
        self._runner.prepared[message.statement] = prepared
        self._pump.send(self._session.parse_complete())

    def _bind(self, message: m.Bind) -> None:
        prepared = self._statement(message.statement)
        types = prepared.description.parameters
        if len(message.values) != len(types):
            raise ProtocolViolation(
                f"bind message supplies {len(message.values)} parameters, but prepared statement "
                f'"{message.statement}" requires {len(types)}'
            )
        if message.portal and message.portal in self._portals:
            raise DuplicateCursor(f'cursor "{message.portal}" already exists')
        formats = _each(message.parameter_formats, len(types))
        encoding = self._session.client_encoding
        values = tuple(
            None if value is None else _text(value, type_oid, code, number, encoding)
            for number, (value, type_oid, code) in enumerate(
                zip(message.values, types, formats, strict=True), 1
            )
        )
        fields = _with_formats(prepared.description.fields, message.result_formats)
        self._portals[message.portal] = _Portal(prepared, values, fields)
        self._pump.send(self._session.bind_complete())

    def _describe(self, message: m.Describe) -> None:
        if message.kind == m.STATEMENT:
            description = self._statement(message.name).description
            self._pump.send(self._session.parameter_description(description.parameters))
            fields = description.fields
        else:
            fields = self._portal(message.name).fields
        if fields is None:
            self._pump.send(self._session.no_data())
        else:
            self._pump.send(self._session.row_description(fields))

    def _execute(self, message: m.Execute) -> None:
        portal = self._portal(message.portal)
        if portal.ran and portal.answer is None:
            raise NotInPrerequisiteState(f'portal "{message.portal}" cannot be run')
        if portal.answer is None:
            self._run(portal)
            self.after_statement()
        if portal.answer is None:
            return
        assert portal.rows is not None
        answer = replace(portal.answer, rows=portal.rows)
        send_rows(self._session, self._pump, answer, described=True, limit=message.max_rows)

    def _run(self, portal: _Portal) -> None:
        """From the start, to the first rows; what gives none has run then."""
        portal.ran = True
        for answer in self._runner.execute(portal.prepared, portal.parameters):
            if not isinstance(answer, Rows):
                send_answer(self._session, self._pump, answer, described=True)
                continue
            if portal.fields is None or not _same_types(answer.fields, portal.fields):
                raise FeatureNotSupported("cached plan must not change result type")
            portal.rows = in_formats(answer.rows, portal.fields)
            portal.answer = replace(answer, fields=portal.fields)

    def _statement(self, name: str) -> Prepared:
        prepared = self._runner.prepared.get(name)
        if prepared is None:
            what = f'prepared statement "{name}"' if name else "unnamed prepared statement"
            raise InvalidSqlStatementName(f"{what} does not exist")
        return prepared

    def _portal(self, name: str) -> _Portal:
        portal = self._portals.get(name)
        if portal is None:
            raise InvalidCursorName(f'portal "{name}" does not exist')
        return portal


def _each(codes: Sequence[int], count: int) -> Sequence[int]:
    """None is text for all, one is for all."""
    if len(codes) > 1:
        return codes
    return [codes[0] if codes else TEXT_FORMAT] * count


def _with_formats(
    fields: tuple[FieldDescription, ...] | None, codes: Sequence[int]
) -> tuple[FieldDescription, ...] | None:
    if fields is None:
        return None
    if len(codes) > 1 and len(codes) != len(fields):
        raise ProtocolViolation(
            f"bind message has {len(codes)} result formats but query has {len(fields)} columns"
        )
    formats = _each(codes, len(fields))
    return tuple(replace(f, format=code) for f, code in zip(fields, formats, strict=True))


def _same_types(found: Sequence[FieldDescription], described: Sequence[FieldDescription]) -> bool:
    return [f.type_oid for f in found] == [f.type_oid for f in described]


def _text(value: bytes, type_oid: int, code: int, number: int, encoding: ClientEncoding) -> bytes:
    """A parameter in text format and UTF-8. Raises PostgreSQL's errors of input functions."""
    if code == BINARY_FORMAT:
        value = parameter_text(value, type_oid, number)
        return value if type_oid not in CHARACTER_TYPES else encoding.decode(value).encode()
    text = encoding.decode(value)
    with suppress(FeatureNotSupported):  # of a type whose values are read later
        text = canonical(text, type_oid)
    return text.encode()
