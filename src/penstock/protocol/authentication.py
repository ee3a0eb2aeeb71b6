"""Messages of the authentication phase (Message Formats; auth.c, auth-sasl.c).

The server's last request decides how the payload of a ``p`` message is read. The client's secrets
are kept out of every ``repr``. The server's requests are written as bytes. ``scram`` and the
session's owner check passwords.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.protocol.encoding import UTF8
from penstock.protocol.framing import MessageReader, frame

MAX_SASL_LENGTH: Final = 1024
"""PG_MAX_SASL_MESSAGE_LENGTH: the longest SASL message, with its length."""

_OK: Final = 0
_SASL: Final = 10
_SASL_CONTINUE: Final = 11
_SASL_FINAL: Final = 12


@dataclass(frozen=True, slots=True)
class SaslInitialResponse:
    """The client's first SASL message. ``data``: None if the server shall begin."""

    mechanism: str
    data: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class SaslResponse:
    """A further SASL message of the client."""

    data: bytes = field(repr=False)


def decode_sasl_initial(payload: bytes) -> SaslInitialResponse:
    """Read a SASLInitialResponse. Raises ProtocolViolation."""
    reader = MessageReader(payload)
    mechanism = UTF8.decode(reader.raw_string())
    data = reader.counted()
    reader.finish()
    return SaslInitialResponse(mechanism, data)


def authentication_ok() -> bytes:
    return frame(b"R", struct.pack("!I", _OK))


def authentication_sasl(mechanisms: Sequence[str]) -> bytes:
    """Offer the mechanisms, the preferred one first."""
    names = b"".join(name.encode("ascii") + b"\0" for name in mechanisms)
    return frame(b"R", struct.pack("!I", _SASL) + names + b"\0")


def authentication_sasl_continue(data: bytes) -> bytes:
    return frame(b"R", struct.pack("!I", _SASL_CONTINUE) + data)


def authentication_sasl_final(data: bytes) -> bytes:
    return frame(b"R", struct.pack("!I", _SASL_FINAL) + data)
