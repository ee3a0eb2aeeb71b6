"""ErrorResponse and NoticeResponse (Error and Notice Message Fields; elog.c).

In: an error with PostgreSQL's fields, or the parts of a notice; or a message that a server has
sent. Out: bytes; or the fields. Nothing here fails, since failures are told by it: characters that
the client's encoding lacks become ``?``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from penstock.errors import PenstockError
from penstock.protocol.encoding import UTF8, ClientEncoding
from penstock.protocol.framing import frame

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
