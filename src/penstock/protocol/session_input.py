"""The client's half of a connection: its messages in their order (Message Flow; postgres.c).

The client's bytes, split anywhere, are cut into messages. While one is being answered, the next
waits. Answers change the phase, so ``session`` has both.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from penstock.errors import FeatureNotSupported, PenstockError, ProtocolViolation
from penstock.protocol import authentication as auth
from penstock.protocol import frontend_messages as m
from penstock.protocol.authentication import MAX_SASL_LENGTH
from penstock.protocol.encoding import UTF8, ClientEncoding
from penstock.protocol.framing import Frame, FrameReader
from penstock.protocol.startup import (
    GSSENC_REQUEST_CODE,
    MAX_STARTUP_PACKET_LENGTH,
    PROTOCOL_3_2,
    SSL_REQUEST_CODE,
    CancelRequest,
    GssEncRequest,
    SslRequest,
    StartupMessage,
    StartupPacket,
    decode_startup,
    unsupported_protocol,
)

# Phases of a connection, and the client's messages that each allows (postgres.c, walsender.c).


SMALL_MESSAGE_LIMIT: Final = 10_000
"""PQ_SMALL_MESSAGE_LIMIT: length of messages that only hold a name or nothing."""
DEFAULT_LARGE_MESSAGE_LIMIT: Final = 64 * 1024 * 1024


class Phase(Enum):
    """The state of a connection as its server sees it."""

    STARTUP = auto()
    """Waiting for a startup packet."""
    ENCRYPTION = auto()
    """SSLRequest or GSSENCRequest waits for our answer."""
    STARTING = auto()
    """The startup packet is here; we must ask for authentication, or begin the session."""
    SASL_INITIAL = auto()
    """Waiting for SASLInitialResponse."""
    SASL = auto()
    """Waiting for SASLResponse."""
    READY = auto()
    """Waiting for a query, or for the next message of an extended query."""
    BUSY = auto()
    """A message is being answered; what arrives meanwhile waits."""
    COPY_IN = auto()
    COPY_OUT = auto()
    COPY_BOTH = auto()
    CLOSED = auto()


WAITING: Final = frozenset(
    {
        Phase.STARTUP,
        Phase.SASL_INITIAL,
        Phase.SASL,
        Phase.READY,
        Phase.COPY_IN,
        Phase.COPY_BOTH,
    }
)
"""Phases in which the client's next message is read."""
EXTENDED_QUERY: Final = frozenset(b"PBDECH")
_SMALL: Final = frozenset(b"XCDEHScf")
_LARGE: Final = frozenset(b"QPBFd")
_COPY_IN: Final = frozenset(b"dcfHS")
_COPY_BOTH: Final = frozenset(b"dcX")


@dataclass(frozen=True, slots=True)
class Limits:
    """Lengths in bytes: of a startup packet's body; of large messages with their length word."""

    startup: int = MAX_STARTUP_PACKET_LENGTH
    large_message: int = DEFAULT_LARGE_MESSAGE_LIMIT

    def of(self, phase: Phase, kind: int) -> int:
        """Return the largest length of a message of a type.

        Raises ProtocolViolation if no such message may come in this phase.
        """
        match phase:
            case Phase.SASL_INITIAL | Phase.SASL:
                if kind != ord("p"):
                    raise ProtocolViolation(f"expected SASL response, got message type {kind}")
                return MAX_SASL_LENGTH
            case Phase.COPY_IN if kind not in _COPY_IN:
                raise ProtocolViolation(
                    f"unexpected message type 0x{kind:02X} during COPY from stdin"
                )
            case Phase.COPY_BOTH if kind not in _COPY_BOTH:
                raise ProtocolViolation(f'invalid standby message type "{chr(kind)}"')
        if kind in _SMALL:
            return min(SMALL_MESSAGE_LIMIT, self.large_message)
        if kind in _LARGE:
            return self.large_message
        raise ProtocolViolation(f"invalid frontend message type {kind}")


Event = StartupPacket | auth.SaslInitialResponse | auth.SaslResponse | m.FrontendMessage


class SessionInput:
    """The input of a session. The owner sets ``client_encoding`` and ``walsender``.

    A ``walsender`` session, known once the startup packet is read, refuses the extended query
    protocol.
    """

    def __init__(
        self, limits: Limits | None = None, *, latest_protocol: int = PROTOCOL_3_2
    ) -> None:
        self.client_encoding: ClientEncoding = UTF8
        self.walsender = False
        self._latest_protocol = latest_protocol
        self._limits = limits or Limits()
        self._frames = FrameReader()
        self._phase = Phase.STARTUP
        self._encryption_asked: set[type[StartupPacket]] = set()
        self._extended = False  # the message being answered is one of an extended query
        self._skipping = False  # after an error in one, until Sync
        self._broken = False  # the client's bytes make no sense any more
        self._silent = False  # the peer does not speak this protocol at all

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def closed(self) -> bool:
        """True once no more is read or sent."""
        return self._phase is Phase.CLOSED

    @property
    def buffered(self) -> int:
        """Bytes fed and not used yet; stop reading while the number is high."""
        return self._frames.buffered

    def feed(self, data: bytes) -> None:
        """Take bytes as they arrive."""
        if not self.closed:
            self._frames.feed(data)

    def next_event(self) -> Event | None:
        """Return the client's next message, None if there is none or it has to wait.

        Raises ProtocolViolation and the other errors of the decoders; pass them to ``fail``.
        """
        while self._phase in WAITING and not self._broken:
            if self._phase is Phase.STARTUP:
                return self._startup_packet()
            frame = self._next_frame()
            if frame is None:
                return None
            event = self._event(frame)
            if event is not None:
                return event
        return None

    def end_of_input(self) -> None:
        """Note that the client has closed its side. Raises ProtocolViolation if it was not done."""
        phase, cut_off = self._phase, self._phase in WAITING and self._frames.buffered > 0
        self._phase = Phase.CLOSED
        if cut_off and phase is Phase.STARTUP:
            raise ProtocolViolation("incomplete startup packet")
        if cut_off:
            raise ProtocolViolation("incomplete message from client")
        if phase is Phase.COPY_BOTH:
            raise ProtocolViolation("unexpected EOF on standby connection")
        if phase is Phase.COPY_IN:
            raise ProtocolViolation(
                "unexpected EOF on client connection with an open transaction", sqlstate="08006"
            )

    def _startup_packet(self) -> StartupPacket | None:
        self._silent = self._broken = True  # reset below if the packet is valid
        body = self._frames.next_startup(self._limits.startup)
        self._silent = False
        if body is not None:
            packet = decode_startup(body, self._latest_protocol)
            self._enter(packet)
        self._broken = False
        return None if body is None else packet

    def _enter(self, packet: StartupPacket) -> None:
        if isinstance(packet, CancelRequest):
            self._phase = Phase.CLOSED
        elif isinstance(packet, StartupMessage):
            self._phase = Phase.STARTING
        elif type(packet) in self._encryption_asked:
            # In a second request, the code is a protocol version like any other.
            code = SSL_REQUEST_CODE if isinstance(packet, SslRequest) else GSSENC_REQUEST_CODE
            raise unsupported_protocol(code, self._latest_protocol)
        else:
            self._phase = Phase.ENCRYPTION
            self._encryption_asked.add(type(packet))

    def _next_frame(self) -> Frame | None:
        try:
            return self._frames.next_frame(lambda kind: self._limits.of(self._phase, kind))
        except PenstockError:
            self._broken = True
            raise

    def _event(self, frame: Frame) -> Event | None:
        """Return the message of a frame, None for one that is ignored in this phase."""
        phase = self._phase
        if phase in (Phase.COPY_IN, Phase.COPY_BOTH):
            return self._copy_event(frame)
        if phase is Phase.READY:
            return self._query_event(frame)
        self._phase = Phase.STARTING
        if phase is Phase.SASL_INITIAL:
            return auth.decode_sasl_initial(frame.payload)
        return auth.SaslResponse(frame.payload)

    def _copy_event(self, frame: Frame) -> Event | None:
        if frame.kind in b"HS":  # libpq may have sent them before it knew of the COPY
            return None
        if frame.kind != ord("d"):
            self._phase = Phase.CLOSED if frame.kind == ord("X") else Phase.BUSY
        return m.decode_frontend(frame, self.client_encoding)

    def _query_event(self, frame: Frame) -> Event | None:
        if frame.kind == ord("X"):
            self._phase = Phase.CLOSED
            return m.Terminate()
        if frame.kind == ord("S"):
            self._skipping = False
        if self._skipping or frame.kind in b"dcf":  # the rest of a COPY that has failed
            return None
        self._extended = frame.kind in EXTENDED_QUERY
        self._phase = Phase.BUSY
        if self.walsender and frame.kind in EXTENDED_QUERY - {ord("H")}:
            raise ProtocolViolation(
                "extended query protocol not supported in a replication connection"
            )
        message = m.decode_frontend(frame, self.client_encoding)
        if isinstance(message, m.FunctionCall):
            raise self._no_fast_path()
        if isinstance(message, m.Flush):  # nothing answers it
            self._phase = Phase.READY
        return message

    def _no_fast_path(self) -> PenstockError:
        if self.walsender:
            return ProtocolViolation(
                "fastpath function calls not supported in a replication connection"
            )
        return FeatureNotSupported("fastpath function calls are not supported")


def encryption_accepted() -> set[type[StartupPacket]]:
    """Return the requests that are no longer allowed inside TLS: those for encryption."""
    return {SslRequest, GssEncRequest}
