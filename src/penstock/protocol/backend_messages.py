"""Messages of the server (Message Formats; pqformat.c, printtup.c).

Text is sent in the client's encoding. Cells of rows are bytes already, since their types write
them. Requests for a password are in ``authentication``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final

import pyarrow as pa

from penstock.attribute import Attribute
from penstock.errors import PenstockError
from penstock.protocol.encoding import UTF8, ClientEncoding
from penstock.protocol.framing import LENGTH_SIZE, frame
from penstock.wire_rows import Column, messages_of

TEXT_FORMAT: Final = 0
BINARY_FORMAT: Final = 1
_NULL: Final = b"\xff\xff\xff\xff"
_PACK_LENGTH: Final = struct.Struct("!I").pack


class TransactionStatus(Enum):
    """The transaction's state in ReadyForQuery."""

    IDLE = b"I"
    IN_TRANSACTION = b"T"
    FAILED = b"E"


@dataclass(frozen=True, slots=True)
class FieldDescription:
    """One column of RowDescription; the defaults are those of an expression (printtup.c)."""

    attribute: Attribute
    type_size: int = -1
    table_oid: int = 0
    attribute_number: int = 0
    format: int = TEXT_FORMAT


PARSE_COMPLETE: Final = frame(b"1")
BIND_COMPLETE: Final = frame(b"2")
CLOSE_COMPLETE: Final = frame(b"3")
NO_DATA: Final = frame(b"n")
PORTAL_SUSPENDED: Final = frame(b"s")
EMPTY_QUERY_RESPONSE: Final = frame(b"I")
COPY_DONE: Final = frame(b"c")


def parameter_status(name: str, value: str, encoding: ClientEncoding = UTF8) -> bytes:
    """Return a parameter's value, which is reported at the start and after every change."""
    return frame(b"S", cstring(name, encoding) + cstring(value, encoding))


def backend_key_data(process_id: int, key: bytes) -> bytes:
    """Return the key for a CancelRequest: 4 bytes in protocol 3.0, up to 256 in 3.2."""
    return frame(b"K", struct.pack("!i", process_id) + key)


def ready_for_query(status: TransactionStatus) -> bytes:
    """Tell the client that the server waits for the next query."""
    return frame(b"Z", status.value)


def negotiate_protocol_version(newest: int, unrecognized: Sequence[str]) -> bytes:
    """Return the server's choice of protocol.

    ``newest``: the protocol version that the server will speak. ``unrecognized``: ``_pq_.`` options
    that the server does not know.
    """
    names = b"".join(cstring(name, UTF8) for name in unrecognized)
    return frame(b"v", struct.pack("!II", newest, len(unrecognized)) + names)


def row_description(fields: Sequence[FieldDescription], encoding: ClientEncoding = UTF8) -> bytes:
    """Describe the columns of the rows that follow."""
    out = bytearray(struct.pack("!H", len(fields)))
    for field in fields:
        out += cstring(field.attribute.name, encoding)
        out += struct.pack(
            "!IhIhih",
            field.table_oid,
            field.attribute_number,
            field.attribute.type_oid,
            field.type_size,
            field.attribute.typmod,
            field.format,
        )
    return frame(b"T", bytes(out))


def data_row(values: Sequence[bytes | None]) -> bytes:
    """Return one row; None is NULL."""
    parts = [struct.pack("!H", len(values))]
    for value in values:
        parts += (_NULL,) if value is None else (_PACK_LENGTH(len(value)), value)
    return frame(b"D", b"".join(parts))


def data_rows(columns: Sequence[pa.Array]) -> bytes:
    """Return the rows of columns, which are Arrow binary arrays, null for NULL."""
    cells = [Column(column, null=_NULL, counted=True) for column in columns]
    return messages_of(b"D\0\0\0\0" + struct.pack("!H", len(cells)), cells, len(columns[0]))


def command_complete(tag: str, encoding: ClientEncoding = UTF8) -> bytes:
    """End a command. ``tag``: ``SELECT 3``, ``CREATE SUBSCRIPTION``, ``COPY 0``, ..."""
    return frame(b"C", cstring(tag, encoding))


def parameter_description(type_oids: Sequence[int]) -> bytes:
    """Return the types of a prepared statement's parameters."""
    return frame(b"t", struct.pack(f"!H{len(type_oids)}I", len(type_oids), *type_oids))


def copy_in_response(columns: int, format_code: int = TEXT_FORMAT) -> bytes:
    """Ask the client to send rows."""
    return _copy_response(b"G", columns, format_code)


def copy_out_response(columns: int, format_code: int = TEXT_FORMAT) -> bytes:
    """Announce rows."""
    return _copy_response(b"H", columns, format_code)


def copy_both_response() -> bytes:
    """Begin streaming (walsender.c): text, no columns."""
    return _copy_response(b"W", 0, TEXT_FORMAT)


def copy_data(data: bytes) -> bytes:
    """Return a row of COPY, or a walsender's frame."""
    return b"d" + _PACK_LENGTH(len(data) + LENGTH_SIZE) + data


def cstring(text: str, encoding: ClientEncoding) -> bytes:
    """Return the text NUL-terminated.

    Raises ValueNotRepresentable if the encoding lacks a character.
    """
    return encoding.encode(text).replace(b"\0", b"") + b"\0"


def _copy_response(kind: bytes, columns: int, format_code: int) -> bytes:
    formats = [format_code] * columns
    return frame(kind, struct.pack(f"!BH{columns}H", format_code, columns, *formats))


# ErrorResponse and NoticeResponse (Error and Notice Message Fields; elog.c). Nothing here raises,
# since it reports errors: characters that the client's encoding lacks become ``?``.

SUCCESSFUL_COMPLETION: Final = "00000"


class Severity(StrEnum):
    """The severity of an error or notice; after FATAL the server closes the connection."""

    ERROR = "ERROR"
    FATAL = "FATAL"
    PANIC = "PANIC"
    WARNING = "WARNING"
    NOTICE = "NOTICE"
    DEBUG = "DEBUG"
    INFO = "INFO"
    LOG = "LOG"


def error_response(
    error: PenstockError,
    severity: Severity = Severity.ERROR,
    *,
    position: int | None = None,
    encoding: ClientEncoding = UTF8,
) -> bytes:
    """Return an error. ``position``: its character in the query, counted from 1."""
    objects = error.objects or {}
    fields = [
        ("S", severity.value),
        ("V", severity.value),
        ("C", error.sqlstate),
        ("M", error.message),
        ("D", error.detail),
        ("H", error.hint),
        ("P", None if position is None else str(position)),
        ("W", error.context),
        ("s", objects.get("schema")),
        ("t", objects.get("table")),
        ("c", objects.get("column")),
        ("n", objects.get("constraint")),
    ]
    return frame(b"E", _fields(fields, encoding))


def notice_response(
    message: str,
    severity: Severity = Severity.NOTICE,
    *,
    sqlstate: str = SUCCESSFUL_COMPLETION,
    detail: str | None = None,
    hint: str | None = None,
    context: str | None = None,
    encoding: ClientEncoding = UTF8,
) -> bytes:
    """Return a notice or warning; clients print it and go on."""
    fields = [
        ("S", severity.value),
        ("V", severity.value),
        ("C", sqlstate),
        ("M", message),
        ("D", detail),
        ("H", hint),
        ("W", context),
    ]
    return frame(b"N", _fields(fields, encoding))


def message_fields(payload: bytes) -> dict[int, str]:
    """Return the fields of a server's message by their bytes (libpq's PG_DIAG_...)."""
    return {part[0]: part[1:].decode(errors="replace") for part in payload.split(b"\0") if part}


def _fields(fields: list[tuple[str, str | None]], encoding: ClientEncoding) -> bytes:
    out = bytearray()
    for code, text in fields:
        if text is not None:
            out += code.encode() + encoding.encode_lossy(text).replace(b"\0", b"") + b"\0"
    return bytes(out) + b"\0"
