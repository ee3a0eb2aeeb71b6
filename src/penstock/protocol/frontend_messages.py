"""Messages of a client after its startup packet (Message Formats; postgres.c, PostgresMain).

Values of Bind stay bytes, since only the statement knows their types. ``session`` decides whether a
message is allowed in its phase. Startup packets are in ``startup``, passwords in
``authentication``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import InvalidParameterValue, ProtocolViolation
from penstock.protocol.encoding import UTF8, ClientEncoding
from penstock.protocol.framing import Frame, MessageReader

STATEMENT: Final = "S"
PORTAL: Final = "P"


@dataclass(frozen=True, slots=True)
class Query:
    """A simple query; it may hold several statements."""

    text: str = field(repr=False)  # a statement may hold a password


@dataclass(frozen=True, slots=True)
class Parse:
    """``parameter_types``: OIDs, 0 for those to be inferred."""

    statement: str
    query: str = field(repr=False)
    parameter_types: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bind:
    """Parameters of a statement; values are None for NULL.

    Formats are 0 (text) or 1 (binary): none given (all text), one for all, or one each.
    """

    portal: str
    statement: str
    parameter_formats: tuple[int, ...]
    values: tuple[bytes | None, ...] = field(repr=False)
    result_formats: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Describe:
    """``kind``: STATEMENT or PORTAL."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Execute:
    """``max_rows``: 0 (or less) for all."""

    portal: str
    max_rows: int


@dataclass(frozen=True, slots=True)
class Close:
    """``kind``: STATEMENT or PORTAL. Closing what does not exist is no error."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Sync:
    """End of an extended query: close the implicit transaction, then ReadyForQuery."""


@dataclass(frozen=True, slots=True)
class Flush:
    """Send what is pending."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """The fast path; its content is not read, since it is always refused."""


@dataclass(frozen=True, slots=True)
class CopyData:
    """A piece of a COPY stream; pieces need not be whole rows."""

    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class CopyDone:
    """The client's side of the COPY has ended well."""


@dataclass(frozen=True, slots=True)
class CopyFail:
    """The client gives up the COPY."""

    message: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """The client leaves."""


FrontendMessage = (
    Query
    | Parse
    | Bind
    | Describe
    | Execute
    | Close
    | Sync
    | Flush
    | FunctionCall
    | CopyData
    | CopyDone
    | CopyFail
    | Terminate
)


def decode_frontend(frame: Frame, encoding: ClientEncoding = UTF8) -> FrontendMessage:
    """Read the message of a frame.

    Raises ProtocolViolation (08P01, or 22021 for text that is not of the encoding) and
    InvalidParameterValue (22023) for an unknown format code.
    """
    read = _READERS.get(frame.kind)
    if read is None:
        raise ProtocolViolation(f"invalid frontend message type {frame.kind}")
    reader = MessageReader(frame.payload, encoding)
    message = read(reader)
    if not isinstance(message, FunctionCall):
        reader.finish()
    return message


def _parse(reader: MessageReader) -> Parse:
    statement, query = reader.string(), reader.string()
    return Parse(statement, query, tuple(reader.uint32() for _ in range(reader.uint16())))


def _bind(reader: MessageReader) -> Bind:
    portal, statement = reader.string(), reader.string()
    formats = _formats(reader)
    count = reader.uint16()
    if len(formats) > 1 and len(formats) != count:
        raise ProtocolViolation(
            f"bind message has {len(formats)} parameter formats but {count} parameters"
        )
    values = tuple(reader.counted() for _ in range(count))
    return Bind(portal, statement, formats, values, _formats(reader))


def _formats(reader: MessageReader) -> tuple[int, ...]:
    codes = tuple(reader.uint16() for _ in range(reader.uint16()))
    for code in codes:
        if code > 1:
            # The server keeps it as an int16.
            signed = code - 0x10000 if code > 0x7FFF else code
            raise InvalidParameterValue(f"unsupported format code: {signed}")
    return codes


def _target(reader: MessageReader, message: str) -> tuple[str, str]:
    kind, name = reader.byte(), reader.string()
    reader.finish()
    if chr(kind) not in (STATEMENT, PORTAL):
        raise ProtocolViolation(f"invalid {message} message subtype {kind}")
    return chr(kind), name


def _copy_fail(reader: MessageReader) -> CopyFail:
    message = reader.string()
    reader.raw(reader.left)  # as the server, which does not look behind it
    return CopyFail(message)


def _copy_done(reader: MessageReader) -> CopyDone:
    reader.raw(reader.left)
    return CopyDone()


def _terminate(reader: MessageReader) -> Terminate:
    reader.raw(reader.left)
    return Terminate()


_READERS: Final[dict[int, Callable[[MessageReader], FrontendMessage]]] = {
    ord("Q"): lambda reader: Query(reader.string()),
    ord("P"): _parse,
    ord("B"): _bind,
    ord("D"): lambda reader: Describe(*_target(reader, "DESCRIBE")),
    ord("E"): lambda reader: Execute(reader.string(), reader.int32()),
    ord("C"): lambda reader: Close(*_target(reader, "CLOSE")),
    ord("S"): lambda reader: Sync(),
    ord("H"): lambda reader: Flush(),
    ord("F"): lambda reader: FunctionCall(),
    ord("d"): lambda reader: CopyData(reader.raw(reader.left)),
    ord("c"): _copy_done,
    ord("f"): _copy_fail,
    ord("X"): _terminate,
}
