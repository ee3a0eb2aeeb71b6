"""Answers to the wire (printtup.c, copyto.c): rows, copies and streams, portion by portion.

In: an ``Answer``, the session's state machine and its socket. Out: bytes, of which never more than
a portion waits here, whatever the client's speed.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from penstock.backend.binary_results import in_encoding
from penstock.backend.client_socket import MessagePump
from penstock.protocol.answers import (
    Answer,
    CopyOut,
    Done,
    Empty,
    Notice,
    ParameterChange,
    Rows,
    Streaming,
)
from penstock.protocol.backend_messages import (
    BINARY_FORMAT,
    TEXT_FORMAT,
    data_row,
    parameter_status,
)
from penstock.protocol.encoding import find_encoding
from penstock.protocol.error_messages import Severity, notice_response
from penstock.protocol.frontend_messages import CopyDone, CopyFail, FrontendMessage, Terminate
from penstock.protocol.session import ServerSession

_PORTION: Final = 1 << 16
"""Bytes of rows that are sent at once."""
_CLIENT_ENCODING: Final = "client_encoding"


class StreamEnded(Exception):
    """The client has left a stream without CopyDone."""


def send_answer(
    session: ServerSession, pump: MessagePump, answer: Answer, *, described: bool = False
) -> None:
    """Send one statement's answer. ``described``: its columns were told already.

    Raises what drawing the rows raises, and ConnectionFailure.
    """
    match answer:
        case Rows():
            send_rows(session, pump, answer, described=described)
        case Done(tag):
            pump.send(session.command_complete(tag))
        case Notice():
            pump.send(_notice(session, answer))
        case ParameterChange(name, value):
            if name == _CLIENT_ENCODING:
                session.client_encoding = find_encoding(value)
            pump.send(parameter_status(name, value, session.client_encoding))
        case Empty():
            pump.send(session.empty_query_response())
        case CopyOut():
            _send_copy(session, pump, answer)
        case Streaming(run):
            pump.send(session.copy_both_response())
            run(_Stream(pump))
            pump.send(session.finish_streaming())


def send_rows(
    session: ServerSession,
    pump: MessagePump,
    answer: Rows,
    *,
    described: bool = False,
    limit: int = 0,
) -> None:
    """Send rows in the formats of their fields: all, or ``limit`` of them where it is above 0.

    Raises as ``send_answer``.
    """
    out, count = bytearray(), 0
    if not described:
        out += session.row_description(answer.fields)
    rows = in_encoding(answer.rows, answer.fields, session.client_encoding)
    for row in islice(rows, limit) if limit > 0 else rows:
        out += data_row(row)
        count += 1
        if len(out) >= _PORTION:
            pump.send(bytes(out))
            out.clear()
    if limit > 0 and count == limit:
        pump.send(bytes(out) + session.portal_suspended())
        return
    tag = f"{answer.tag} {count}" if answer.counted else answer.tag
    pump.send(bytes(out) + session.command_complete(tag))


def _send_copy(session: ServerSession, pump: MessagePump, answer: CopyOut) -> None:
    code = BINARY_FORMAT if answer.binary else TEXT_FORMAT
    pump.send(session.copy_out_response(answer.columns, code))
    count = 0
    for rows, messages in answer.chunks:
        count += rows
        pump.send(messages)
    pump.send(session.copy_done() + session.command_complete(f"COPY {count}"))


def _notice(session: ServerSession, notice: Notice) -> bytes:
    return notice_response(
        notice.message,
        Severity(notice.severity),
        sqlstate=notice.sqlstate,
        detail=notice.detail,
        hint=notice.hint,
        encoding=session.client_encoding,
    )


class _Stream:
    """COPY BOTH for a walsender."""

    def __init__(self, pump: MessagePump) -> None:
        self._pump = pump

    def send(self, data: bytes, waiting: Callable[[], object] | None = None) -> None:
        self._pump.send(data, waiting)

    def next_message(self, timeout_s: float) -> FrontendMessage | None:
        event = self._pump.next_event(timeout_s)
        if event is None or isinstance(event, CopyDone):
            return event
        if isinstance(event, Terminate | CopyFail):
            raise StreamEnded
        return event  # type: ignore[return-value]
