"""Phases of a connection, and the client's messages that each allows (postgres.c, walsender.c).

In: a phase and the type of a message that begins to arrive. Out: the largest length that it may
have, or the error for a type that has no place there. ``session`` keeps the state itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from penstock.errors import ProtocolViolation
from penstock.protocol.authentication import MAX_SASL_LENGTH
from penstock.protocol.startup_packets import MAX_STARTUP_PACKET_LENGTH

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
