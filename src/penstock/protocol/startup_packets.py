"""The first packet of a connection (Message Formats; backend_startup.c, ProcessStartupPacket).

In: the body of a packet without a type byte. Out: StartupMessage, SSLRequest, GSSENCRequest or
CancelRequest. The meaning of the parameters is left to ``startup``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.errors import FeatureNotSupported, ProtocolViolation
from penstock.protocol.encoding import UTF8
from penstock.protocol.message_reader import MessageReader

PROTOCOL_3_0: Final = 3 << 16
PROTOCOL_3_2: Final = 3 << 16 | 2
CANCEL_REQUEST_CODE: Final = 1234 << 16 | 5678
SSL_REQUEST_CODE: Final = 1234 << 16 | 5679
GSSENC_REQUEST_CODE: Final = 1234 << 16 | 5680
MAX_STARTUP_PACKET_LENGTH: Final = 10_000
"""Bytes of a packet's body."""
_LONGEST_CANCEL_KEY: Final = 256


@dataclass(frozen=True, slots=True)
class StartupMessage:
    """``protocol``: major version << 16 | minor; parameters in the client's order."""

    protocol: int
    parameters: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SslRequest:
    """The client asks for TLS; the answer is the byte ``S`` or ``N``."""


@dataclass(frozen=True, slots=True)
class GssEncRequest:
    """The client asks for GSSAPI encryption; the answer is the byte ``G`` or ``N``."""


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """A request to cancel what the session of that id and key does; nothing is answered."""

    process_id: int
    key: bytes = field(repr=False)


StartupPacket = StartupMessage | SslRequest | GssEncRequest | CancelRequest


def decode_startup(body: bytes, latest_protocol: int = PROTOCOL_3_2) -> StartupPacket:
    """Read a packet. Raises ProtocolViolation, FeatureNotSupported for other major versions."""
    reader = MessageReader(body, UTF8)
    protocol = reader.uint32()
    if protocol == SSL_REQUEST_CODE:
        return SslRequest()
    if protocol == GSSENC_REQUEST_CODE:
        return GssEncRequest()
    if protocol == CANCEL_REQUEST_CODE:
        return _cancel_request(reader)
    if protocol >> 16 != PROTOCOL_3_0 >> 16:
        raise unsupported_protocol(protocol, latest_protocol)
    return StartupMessage(protocol, tuple(_parameters(reader)))


def unsupported_protocol(protocol: int, latest_protocol: int) -> FeatureNotSupported:
    """Return the error for a major version that the node does not speak."""
    return FeatureNotSupported(
        f"unsupported frontend protocol {protocol >> 16}.{protocol & 0xFFFF}:"
        f" server supports 3.0 to 3.{latest_protocol & 0xFFFF}"
    )


def _parameters(reader: MessageReader) -> list[tuple[str, str]]:
    """Return the pairs up to an empty name, which has to be the packet's last byte."""
    parameters = []
    try:
        while name := reader.raw_string():
            value = reader.raw_string()
            parameters.append((UTF8.decode(name), UTF8.decode(value)))
    except ProtocolViolation as error:
        if error.sqlstate != ProtocolViolation.default_sqlstate:
            raise
        raise _layout() from None
    if reader.left:
        raise _layout()
    return parameters


def _layout() -> ProtocolViolation:
    return ProtocolViolation("invalid startup packet layout: expected terminator as last byte")


def _cancel_request(reader: MessageReader) -> CancelRequest:
    if reader.left < 4:
        raise ProtocolViolation("invalid length of cancel request packet")
    process_id = reader.int32()
    if not 0 < reader.left <= _LONGEST_CANCEL_KEY:
        raise ProtocolViolation("invalid length of cancel key in cancel request packet")
    return CancelRequest(process_id, reader.raw(reader.left))
