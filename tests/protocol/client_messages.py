"""What a client sends and reads, cell by cell: the reverse of ``frontend_messages`` and others.

In: a message, or rows as cells. Out: bytes; and what a walsender says as frozen messages. The node
has no need of it: libpq is its client, and its rows are encoded by columns.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import singledispatch
from typing import Final

from penstock.civil import EPOCH_MICROSECONDS
from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn
from penstock.protocol import frontend_messages as m
from penstock.protocol.backend_messages import copy_data
from penstock.protocol.copy_both import StandbyStatusUpdate
from penstock.protocol.encoding import UTF8, ClientEncoding
from penstock.protocol.framing import LENGTH_SIZE, MessageReader, frame
from penstock.protocol.startup import (
    CANCEL_REQUEST_CODE,
    GSSENC_REQUEST_CODE,
    SSL_REQUEST_CODE,
    CancelRequest,
    GssEncRequest,
    SslRequest,
    StartupMessage,
    StartupPacket,
)

TEXT_NULL: Final = b"\\N"
_SPECIAL: Final = re.compile(rb"[\x08-\x0d\\]")
_ESCAPES: Final = {
    b"\b": rb"\b",
    b"\t": rb"\t",
    b"\n": rb"\n",
    b"\v": rb"\v",
    b"\f": rb"\f",
    b"\r": rb"\r",
    b"\\": rb"\\",
}
_MINUS_ONE: Final = b"\xff\xff\xff\xff"
_PACK_LENGTH: Final = struct.Struct("!I").pack


def escape_text(cell: bytes) -> bytes:
    """A cell in text format with the default delimiter, tab (CopyAttributeOutText)."""
    if _SPECIAL.search(cell) is None:
        return cell
    return _SPECIAL.sub(lambda found: _ESCAPES[found[0]], cell)


def text_row(cells: Sequence[bytes | None]) -> bytes:
    """One row with its line end; None is NULL. No cells at all is an empty line."""
    return b"\t".join([TEXT_NULL if c is None else escape_text(c) for c in cells]) + b"\n"


def binary_row(cells: Sequence[bytes | None]) -> bytes:
    """One row; None is NULL."""
    parts = [struct.pack("!H", len(cells))]
    for cell in cells:
        parts += (_MINUS_ONE,) if cell is None else (_PACK_LENGTH(len(cell)), cell)
    return b"".join(parts)


def text_messages(rows: Sequence[Sequence[bytes | None]]) -> bytes:
    """A CopyData message for each row, joined."""
    return b"".join([copy_data(text_row(row)) for row in rows])


def binary_messages(rows: Sequence[Sequence[bytes | None]]) -> bytes:
    """A CopyData message for each row, joined; without header."""
    return b"".join([copy_data(binary_row(row)) for row in rows])


@dataclass(frozen=True, slots=True)
class XLogData:
    """A piece of the stream; both LSNs 0 where it is not the last of its change."""

    start: Lsn
    end: Lsn
    send_time: int
    payload: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class PrimaryKeepalive:
    """``end``: the stream is sent up to there."""

    end: Lsn
    send_time: int
    reply_requested: bool


def status_update(update: StandbyStatusUpdate) -> bytes:
    """Payload of a CopyData message, for the receiver's role."""
    lsns = (update.write, update.flush, update.apply)
    time = update.send_time - EPOCH_MICROSECONDS
    return struct.pack("!cQQQq?", b"r", *lsns, time, update.reply_requested)


def decode_sender_message(payload: bytes) -> XLogData | PrimaryKeepalive:
    """What a walsender says. Raises ProtocolViolation."""
    reader = MessageReader(payload)
    kind = reader.byte()
    if kind == ord("w"):
        start, end = reader.lsn(), reader.lsn()
        return XLogData(start, end, reader.int64() + EPOCH_MICROSECONDS, reader.raw(reader.left))
    if kind == ord("k"):
        message = PrimaryKeepalive(
            reader.lsn(), reader.int64() + EPOCH_MICROSECONDS, reader.byte() != 0
        )
        reader.finish()
        return message
    raise ProtocolViolation(f'unexpected message type "{chr(kind)}"')


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
