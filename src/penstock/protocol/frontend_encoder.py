"""Client messages to bytes: the reverse of ``frontend_messages`` and ``startup_packets``.

In: a message. Out: its bytes. For the client's role and for tests; the server never needs it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import singledispatch

from penstock.protocol import frontend_messages as m
from penstock.protocol.encoding import UTF8, ClientEncoding
from penstock.protocol.framing import LENGTH_SIZE, frame
from penstock.protocol.startup_packets import (
    CANCEL_REQUEST_CODE,
    GSSENC_REQUEST_CODE,
    SSL_REQUEST_CODE,
    CancelRequest,
    GssEncRequest,
    SslRequest,
    StartupMessage,
    StartupPacket,
)


def encode_startup(packet: StartupPacket) -> bytes:
    """A packet without a type byte."""
    match packet:
        case StartupMessage(protocol, parameters):
            pairs = b"".join(_string(n, UTF8) + _string(v, UTF8) for n, v in parameters)
            body = struct.pack("!I", protocol) + pairs + b"\0"
        case SslRequest():
            body = struct.pack("!I", SSL_REQUEST_CODE)
        case GssEncRequest():
            body = struct.pack("!I", GSSENC_REQUEST_CODE)
        case CancelRequest(process_id, key):
            body = struct.pack("!Ii", CANCEL_REQUEST_CODE, process_id) + key
    return struct.pack("!I", len(body) + LENGTH_SIZE) + body


def encode_frontend(message: m.FrontendMessage, encoding: ClientEncoding = UTF8) -> bytes:
    """A typed message."""
    return _encode(message, encoding)


@singledispatch
def _encode(message: object, encoding: ClientEncoding) -> bytes:
    raise TypeError(f"not a frontend message: {type(message).__name__}")


@_encode.register
def _(message: m.Query, encoding: ClientEncoding) -> bytes:
    return frame(b"Q", _string(message.text, encoding))


@_encode.register
def _(message: m.Parse, encoding: ClientEncoding) -> bytes:
    head = _string(message.statement, encoding) + _string(message.query, encoding)
    count = len(message.parameter_types)
    return frame(b"P", head + struct.pack(f"!H{count}I", count, *message.parameter_types))


@_encode.register
def _(message: m.Bind, encoding: ClientEncoding) -> bytes:
    out = _string(message.portal, encoding) + _string(message.statement, encoding)
    out += _formats(message.parameter_formats) + struct.pack("!H", len(message.values))
    for value in message.values:
        out += struct.pack("!i", -1 if value is None else len(value)) + (value or b"")
    return frame(b"B", out + _formats(message.result_formats))


@_encode.register
def _(message: m.Describe, encoding: ClientEncoding) -> bytes:
    return frame(b"D", message.kind.encode() + _string(message.name, encoding))


@_encode.register
def _(message: m.Execute, encoding: ClientEncoding) -> bytes:
    return frame(b"E", _string(message.portal, encoding) + struct.pack("!i", message.max_rows))


@_encode.register
def _(message: m.Close, encoding: ClientEncoding) -> bytes:
    return frame(b"C", message.kind.encode() + _string(message.name, encoding))


@_encode.register
def _(message: m.CopyData, encoding: ClientEncoding) -> bytes:
    return frame(b"d", message.data)


@_encode.register
def _(message: m.CopyFail, encoding: ClientEncoding) -> bytes:
    return frame(b"f", _string(message.message, encoding))


@_encode.register
def _(message: m.Sync, encoding: ClientEncoding) -> bytes:
    return frame(b"S")


@_encode.register
def _(message: m.Flush, encoding: ClientEncoding) -> bytes:
    return frame(b"H")


@_encode.register
def _(message: m.CopyDone, encoding: ClientEncoding) -> bytes:
    return frame(b"c")


@_encode.register
def _(message: m.Terminate, encoding: ClientEncoding) -> bytes:
    return frame(b"X")


def _formats(codes: Sequence[int]) -> bytes:
    return struct.pack(f"!H{len(codes)}H", len(codes), *codes)


def _string(text: str, encoding: ClientEncoding) -> bytes:
    return encoding.encode(text) + b"\0"
