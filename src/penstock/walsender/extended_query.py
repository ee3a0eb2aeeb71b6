"""The extended query protocol: prepared statements and portals (Message Flow; postgres.c).

In: Parse, Bind, Describe, Execute, Close, Sync of one session. Out: their answers. A portal is run
when it is executed, and to its end: there are no cursors that stay open.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.errors import FeatureNotSupported, PenstockError
from penstock.protocol import frontend_messages as m
from penstock.protocol.backend_messages import BINARY_FORMAT, TEXT_FORMAT
from penstock.protocol.session import ServerSession
from penstock.protocol.session_input import Event
from penstock.walsender.answers import Rows, StatementRunner
from penstock.walsender.binary_results import binary_row, check_binary
from penstock.walsender.message_pump import MessagePump
from penstock.walsender.query_answers import send_answer


@dataclass(frozen=True, slots=True)
class _Portal:
    text: str
    parameters: tuple[bytes | None, ...]
    binary: bool


class ExtendedQuery:
    """Statements and portals of one session."""

    def __init__(self, session: ServerSession, pump: MessagePump, runner: StatementRunner) -> None:
        self._session = session
        self._pump = pump
        self._runner = runner
        self._statements: dict[str, str] = {}
        self._portals: dict[str, _Portal] = {}

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
                named = self._statements if event.kind == m.STATEMENT else self._portals
                named.pop(event.name, None)
                self._pump.send(self._session.close_complete())
            case m.Sync():
                self._portals.clear()
                self._session.transaction_status = self._runner.transaction_status
                self._pump.send(self._session.ready_for_query())
            case _:
                raise PenstockError(f"unexpected message {type(event).__name__}")

    def _parse(self, message: m.Parse) -> None:
        if message.statement and message.statement in self._statements:
            raise PenstockError(
                f'prepared statement "{message.statement}" already exists', sqlstate="42P05"
            )
        self._statements[message.statement] = message.query
        self._pump.send(self._session.parse_complete())

    def _bind(self, message: m.Bind) -> None:
        if any(code != TEXT_FORMAT for code in message.parameter_formats):
            raise FeatureNotSupported("binary parameters are not supported")
        formats = set(message.result_formats)
        if len(formats) > 1:
            raise FeatureNotSupported("columns of a result in several formats are not supported")
        text = self._statement(message.statement)
        self._portals[message.portal] = _Portal(text, message.values, BINARY_FORMAT in formats)
        self._pump.send(self._session.bind_complete())

    def _describe(self, message: m.Describe) -> None:
        if message.kind == m.STATEMENT:
            description = self._runner.describe(self._statement(message.name))
            self._pump.send(self._session.parameter_description(description.parameters))
        else:
            portal = self._portal(message.name)
            description = self._runner.describe(portal.text)
            if portal.binary and description.fields is not None:
                check_binary(description.fields)
                fields = tuple(replace(f, format=BINARY_FORMAT) for f in description.fields)
                description = replace(description, fields=fields)
        if description.fields is None:
            self._pump.send(self._session.no_data())
        else:
            self._pump.send(self._session.row_description(description.fields))

    def _execute(self, message: m.Execute) -> None:
        if message.max_rows > 0:
            raise FeatureNotSupported("portals cannot be executed in parts")
        portal = self._portal(message.portal)
        for answer in self._runner.execute(portal.text, portal.parameters):
            if portal.binary and isinstance(answer, Rows):
                answer = _in_binary(answer)
            send_answer(self._session, self._pump, answer, described=True)

    def _statement(self, name: str) -> str:
        text = self._statements.get(name)
        if text is None:
            what = f'prepared statement "{name}"' if name else "unnamed prepared statement"
            raise PenstockError(f"{what} does not exist", sqlstate="26000")
        return text

    def _portal(self, name: str) -> _Portal:
        portal = self._portals.get(name)
        if portal is None:
            raise PenstockError(f'portal "{name}" does not exist', sqlstate="34000")
        return portal


def _in_binary(answer: Rows) -> Rows:
    check_binary(answer.fields)
    return replace(answer, rows=(binary_row(row, answer.fields) for row in answer.rows))
