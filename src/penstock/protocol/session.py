"""One connection as its server sees it, without its socket (Message Flow; postgres.c).

Messages without an effect on the connection's state (rows, CopyData, notices, ParameterStatus) are
sent directly from ``backend_messages``. ``backend`` handles sockets, TLS, roles and statements.

A round: ``feed``, then ``next_event`` until it returns None. If it or an answer raises a
PenstockError, send what ``fail`` returns; close the connection once it is ``closed``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.errors import PenstockError, ProtocolViolation
from penstock.protocol import authentication as auth
from penstock.protocol import backend_messages as backend
from penstock.protocol.backend_messages import (
    FieldDescription,
    Severity,
    TransactionStatus,
    error_response,
)
from penstock.protocol.session_input import Limits, Phase, SessionInput, encryption_accepted
from penstock.protocol.startup import PROTOCOL_3_2, SslRequest, StartupMessage, negotiated

_IN_COMMAND = (Phase.BUSY, Phase.COPY_IN, Phase.COPY_OUT, Phase.COPY_BOTH)


class ServerSession(SessionInput):
    """The state machine of one connection.

    The owner sets ``transaction_status`` before the ReadyForQuery that reports it.
    """

    def __init__(
        self, limits: Limits | None = None, *, latest_protocol: int = PROTOCOL_3_2
    ) -> None:
        super().__init__(limits, latest_protocol=latest_protocol)
        self.transaction_status = TransactionStatus.IDLE
        self.protocol = latest_protocol
        self._authenticated = False
        self.shown: Callable[[str], str] = lambda text: text
        """Returns a text of an error as the client may see it."""

    # The start of a connection

    def refuse_encryption(self) -> bytes:
        """Refuse SSLRequest or GSSENCRequest; the client goes on in the clear, or leaves."""
        self._move(Phase.ENCRYPTION, Phase.STARTUP)
        return b"N"

    def accept_tls(self) -> bytes:
        """Accept SSLRequest; all bytes fed from now on come from TLS.

        Raises ProtocolViolation if the client has already sent more bytes, unencrypted.
        """
        self._move(Phase.ENCRYPTION, Phase.STARTUP)
        if SslRequest not in self._encryption_asked:
            raise PenstockError("there was no SSLRequest to accept")
        if self.buffered:
            raise ProtocolViolation(
                "received unencrypted data after SSL request",
                detail="This could be either a client-software bug or evidence of an attempted"
                " man-in-the-middle attack.",
            )
        self.encrypted()
        return b"S"

    def encrypted(self) -> None:
        """Note that the connection is inside TLS from here on."""
        self._encryption_asked = encryption_accepted()

    def negotiate(self, message: StartupMessage) -> bytes:
        """Return NegotiateProtocolVersion; empty if the client asks for a version that we speak."""
        self._expect(Phase.STARTING)
        self.protocol, unknown = negotiated(message, self._latest_protocol)
        if unknown or message.protocol > self._latest_protocol:
            return backend.negotiate_protocol_version(self.protocol, unknown)
        return b""

    def request_sasl(self, mechanisms: Sequence[str]) -> bytes:
        self._move(Phase.STARTING, Phase.SASL_INITIAL)
        return auth.authentication_sasl(mechanisms)

    def continue_sasl(self, data: bytes) -> bytes:
        self._move(Phase.STARTING, Phase.SASL)
        return auth.authentication_sasl_continue(data)

    def finish_sasl(self, data: bytes) -> bytes:
        """Return AuthenticationSASLFinal; AuthenticationOk comes next."""
        self._expect(Phase.STARTING)
        return auth.authentication_sasl_final(data)

    def authentication_ok(self) -> bytes:
        """Return AuthenticationOk.

        ParameterStatus, BackendKeyData and the first ReadyForQuery come next.
        """
        self._expect(Phase.STARTING)
        self._authenticated = True
        return auth.authentication_ok()

    # Answers to queries

    def ready_for_query(self) -> bytes:
        """End the session's start, a simple query, or Sync."""
        self._expect(Phase.STARTING if self._phase is Phase.STARTING else Phase.BUSY)
        if not self._authenticated:
            raise PenstockError("ReadyForQuery without authentication")
        self._phase, self._extended = Phase.READY, False
        return backend.ready_for_query(self.transaction_status)

    def parse_complete(self) -> bytes:
        return self._answered(backend.PARSE_COMPLETE)

    def bind_complete(self) -> bytes:
        return self._answered(backend.BIND_COMPLETE)

    def close_complete(self) -> bytes:
        return self._answered(backend.CLOSE_COMPLETE)

    def parameter_description(self, type_oids: Sequence[int]) -> bytes:
        """Answer Describe of a statement; RowDescription or NoData comes next."""
        self._expect(Phase.BUSY)
        return backend.parameter_description(type_oids)

    def row_description(self, fields: Sequence[FieldDescription]) -> bytes:
        """Answer Describe; in a simple query rows come next."""
        return self._answered(backend.row_description(fields, self.client_encoding))

    def no_data(self) -> bytes:
        return self._answered(backend.NO_DATA)

    def command_complete(self, tag: str) -> bytes:
        """Answer Execute; in a simple query more statements may come."""
        return self._answered(backend.command_complete(tag, self.client_encoding))

    def empty_query_response(self) -> bytes:
        return self._answered(backend.EMPTY_QUERY_RESPONSE)

    def portal_suspended(self) -> bytes:
        return self._answered(backend.PORTAL_SUSPENDED)

    # COPY

    def copy_in_response(self, columns: int, format_code: int = backend.TEXT_FORMAT) -> bytes:
        """Start a COPY from the client: CopyData, then CopyDone or CopyFail come next."""
        self._move(Phase.BUSY, Phase.COPY_IN)
        return backend.copy_in_response(columns, format_code)

    def copy_out_response(self, columns: int, format_code: int = backend.TEXT_FORMAT) -> bytes:
        """Start a COPY to the client; rows go by ``backend_messages.copy_data``."""
        self._move(Phase.BUSY, Phase.COPY_OUT)
        return backend.copy_out_response(columns, format_code)

    def copy_done(self) -> bytes:
        """End our rows; CommandComplete comes next."""
        self._move(Phase.COPY_OUT, Phase.BUSY)
        return backend.COPY_DONE

    def copy_both_response(self) -> bytes:
        """Begin streaming; it ends with the client's CopyDone."""
        self._move(Phase.BUSY, Phase.COPY_BOTH)
        return backend.copy_both_response()

    def finish_streaming(self) -> bytes:
        """Answer CopyDone with ours, and the two tags that libpqwalreceiver waits for."""
        self._expect(Phase.BUSY)
        tags = (backend.command_complete(tag) for tag in ("COPY 0", "START_REPLICATION"))
        return backend.COPY_DONE + b"".join(tags) + self.ready_for_query()

    # Errors

    def fail(
        self, error: PenstockError, *, fatal: bool = False, position: int | None = None
    ) -> bytes:
        """Return ErrorResponse, and move to the state from which the client goes on.

        Before the session has begun, and if the client's bytes are invalid, an error is FATAL and
        the connection is ``closed``. In an extended query all messages up to Sync are skipped;
        otherwise ReadyForQuery follows. Returns nothing if the peer does not speak this protocol.
        """
        if self.closed or self._silent:
            self._phase = Phase.CLOSED
            return b""
        fatal = fatal or self._broken or self._phase not in _IN_COMMAND
        severity = Severity.FATAL if fatal else Severity.ERROR
        texts = ("message", "detail", "hint", "context")
        given = {name: text for name in texts if (text := getattr(error, name))}
        shown = {name: self.shown(text) for name, text in given.items()}
        error = error if shown == given else error.changed(**shown)
        out = error_response(error, severity, position=position, encoding=self.client_encoding)
        if fatal:
            self._phase = Phase.CLOSED
            return out
        self._phase = Phase.READY
        if self._extended:
            self._skipping = True
            return out
        return out + backend.ready_for_query(self.transaction_status)

    def close(self) -> None:
        """Close the connection without a message to the client."""
        self._phase = Phase.CLOSED

    def _answered(self, answer: bytes) -> bytes:
        """Return the last answer for a message of an extended query; wait for the next message."""
        self._expect(Phase.BUSY)
        if self._extended:
            self._phase = Phase.READY
        return answer

    def _move(self, before: Phase, after: Phase) -> None:
        self._expect(before)
        self._phase = after

    def _expect(self, phase: Phase) -> None:
        if self._phase is not phase:
            raise PenstockError(f"protocol session is {self._phase.name}, expected {phase.name}")
