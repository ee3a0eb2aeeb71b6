"""Convert result rows to the format and encoding that the client wants (the send functions).

Rows come in text format and UTF-8. ``pgtypes`` converts the types that tables have, this file those
that only catalogs have. ``pipeline`` writes the rows of COPY.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.cells import Cells as Column
from penstock.civil import print_interval, print_time
from penstock.errors import FeatureNotSupported, PenstockError, ProtocolViolation
from penstock.lsn import Lsn
from penstock.pgtypes import find, pg_type
from penstock.pgtypes.binary_output import binary_output
from penstock.pgtypes.floating import read_float
from penstock.pgtypes.gather import cells_of
from penstock.pgtypes.text_output import text_output
from penstock.protocol.answers import Cells, ColumnRows, as_cstrings
from penstock.protocol.backend_messages import BINARY_FORMAT, FieldDescription
from penstock.protocol.encoding import UTF8, ClientEncoding
from penstock.sql.builtin.type_cache import ENUM, is_enum, types
from penstock.sql.text.array_literals import join_array, split_array
from penstock.sqlstate import CharacterNotInRepertoire, DatatypeMismatch, UndefinedFunction

CHARACTER_TYPES: Final = frozenset(
    (
        pg_type.NAME,
        pg_type.TEXT,
        pg_type.JSON,
        pg_type.PG_NODE_TREE,
        pg_type.UNKNOWN,
        pg_type.BPCHAR,
        pg_type.VARCHAR,
        pg_type.CSTRING,
    )
)
"""Types whose binary format is the text, in the client's encoding."""
_VECTORS: Final[Mapping[int, int]] = {
    pg_type.INT2VECTOR: pg_type.INT2,
    pg_type.OIDVECTOR: pg_type.OID,
}
"""The array types whose subscripts begin at 0, with their element types."""
_ROWS: Final = 1000
"""The number of rows that are converted to binary format at once."""
_NULL: Final = b"\xff\xff\xff\xff"

_Send = Callable[[bytes], bytes]


def _packer(form: str) -> _Send:
    packer = struct.Struct(form)
    number = float if form.endswith(("f", "d")) else int
    return lambda cell: packer.pack(number(cell))


_SEND: Final[Mapping[int, _Send]] = {
    pg_type.BOOL: lambda cell: b"\1" if cell == b"t" else b"\0",
    pg_type.INT8: _packer("!q"),
    pg_type.INT2: _packer("!h"),
    pg_type.INT4: _packer("!i"),
    pg_type.OID: _packer("!I"),
    pg_type.XID: _packer("!I"),
    pg_type.CID: _packer("!I"),
    pg_type.FLOAT4: lambda cell: struct.pack("!f", read_float(cell.decode(), pa.float32())),
    pg_type.FLOAT8: _packer("!d"),
    pg_type.PG_LSN: lambda cell: struct.pack("!Q", Lsn.parse(cell.decode())),
    pg_type.XID8: _packer("!Q"),
    pg_type.VOID: lambda cell: b"",
    pg_type.CHAR: lambda cell: _char(cell),
    **dict.fromkeys(CHARACTER_TYPES, lambda cell: cell),
}


def _char(cell: bytes) -> bytes:
    """Return the one byte of a "char", whose text is nothing for 0 and octal beyond ASCII
    (charin)."""
    if len(cell) == len("\\377"):
        return bytes([int(cell[1:], 8)])
    return cell or b"\0"


def in_formats(rows: Iterable[Cells], fields: Sequence[FieldDescription]) -> Iterable[Cells]:
    """Return the rows, with columns in binary format where their fields ask for it, to be read
    once. ``rows`` is read only as far as needed.

    Raises PenstockError (42883) for a value of a type that has no binary format here.
    """
    binary = any(field.format == BINARY_FORMAT for field in fields)
    if isinstance(rows, ColumnRows):
        return ColumnRows(_columns(rows, fields)) if binary else rows
    return _batches(iter(rows), fields) if binary else iter(rows)


def _columns(rows: ColumnRows, fields: Sequence[FieldDescription]) -> Iterator[Sequence[pa.Array]]:
    for columns in rows.batches:
        yield [
            _binary_column(column, field)
            if field.format == BINARY_FORMAT
            else (as_cstrings(column) if rows.raw else column)
            for column, field in zip(columns, fields, strict=True)
        ]


def _binary_column(column: pa.Array, field: FieldDescription) -> pa.Array:
    oid = field.attribute.type_oid
    family = find(oid)
    if oid in CHARACTER_TYPES:
        return column
    if oid not in _SEND and oid in family.oids:
        read = family.text_column(cells_of(column), field.attribute.typmod)
        return binary_output(read, oid, field.attribute.typmod)
    kinds = column.dictionary_encode()  # positions and xids of many rows are few
    sent = pa.array(_binary(kinds.dictionary.to_pylist(), field), pa.binary())
    return sent.take(kinds.indices)


def _batches(rows: Iterator[Cells], fields: Sequence[FieldDescription]) -> Iterator[Cells]:
    while batch := list(islice(rows, _ROWS)):
        columns = [
            _binary(cells, field) if field.format == BINARY_FORMAT else cells
            for cells, field in zip(zip(*batch, strict=True), fields, strict=True)
        ]
        yield from zip(*columns, strict=True)


def _binary(cells: Sequence[bytes | None], field: FieldDescription) -> Sequence[bytes | None]:
    send = _send(field.attribute.type_oid)
    if send is not None:
        return [None if cell is None else send(cell) for cell in cells]
    family = find(field.attribute.type_oid)
    if field.attribute.type_oid in family.oids:
        read = family.text_column(_column(cells), field.attribute.typmod)
        return binary_output(read, field.attribute.type_oid, field.attribute.typmod).to_pylist()  # type: ignore[no-any-return]
    if all(cell is None for cell in cells):
        return cells
    raise no_function("output", field.attribute.type_oid)


def _send(type_oid: int) -> _Send | None:
    """Return the send function for one cell; None if the type is left to ``pgtypes``, or is
    unknown to both."""
    if type_oid in _SEND:
        return _SEND[type_oid]
    if type_oid in _VECTORS:
        element = _VECTORS[type_oid]
        return lambda cell: _array(list(cell.decode().split()), element, first=0)
    known = types().get(type_oid)
    if known is not None and known.kind == ENUM:
        return _SEND[pg_type.TEXT]
    if known is not None and not known.is_vector and _send_own(known.element):
        return lambda cell: _array(split_array(cell.decode()), known.element)
    return None


def _send_own(type_oid: int) -> _Send | None:
    """Return the send function for array elements of this type, or None."""
    return _SEND[pg_type.TEXT] if is_enum(type_oid) else _SEND.get(type_oid)


def _array(items: Sequence[str | None], element: int, first: int = 1) -> bytes:
    """Write a one-dimensional array (array_send)."""
    if not items and first:
        return struct.pack("!iiI", 0, 0, element)
    out = [struct.pack("!iiIii", 1, int(None in items), element, len(items), first)]
    for item in items:
        if item is None:
            out.append(_NULL)
        else:
            send = _send_own(element)
            assert send is not None
            value = send(item.encode())
            out += (struct.pack("!i", len(value)), value)
    return b"".join(out)


def _column(cells: Sequence[bytes | None]) -> Column:
    """Return cells as a ``Column``, which the type families of ``pgtypes`` read."""
    lengths = np.array([0 if cell is None else len(cell) for cell in cells], np.int32)
    ends = np.cumsum(lengths, dtype=np.int32)
    return Column(
        np.frombuffer(b"".join(cell for cell in cells if cell is not None), np.uint8),
        ends - lengths,
        lengths,
        np.array([cell is None for cell in cells]),
    )


def in_encoding(
    rows: Iterable[Cells], fields: Sequence[FieldDescription], encoding: ClientEncoding
) -> Iterable[Cells]:
    """Return the rows with text in the client's encoding. Raises ValueNotRepresentable (22P05)."""
    if encoding.codec == UTF8.codec:
        return rows
    text = [f.format != BINARY_FORMAT or f.attribute.type_oid in CHARACTER_TYPES for f in fields]
    return (
        [
            encoding.encode(_decoded(cell)) if cell is not None and is_text else cell
            for cell, is_text in zip(row, text, strict=True)
        ]
        for row in rows
    )


def _decoded(cell: bytes) -> str:
    """Decode a cell. Raises CharacterNotInRepertoire (22021): a plugin may write any bytes."""
    try:
        return UTF8.decode(cell)
    except ProtocolViolation as error:
        raise CharacterNotInRepertoire(error.message) from None


def no_function(which: str, type_oid: int) -> PenstockError:
    """Return the error for a type without a binary function. ``which``: input or output."""
    known = types().get(type_oid)
    name = str(type_oid) if known is None else known.sql_name
    return UndefinedFunction(
        f"no binary {which} function available for type {name}",
        hint="Ask for the text format of this value.",
    )


# Convert binary parameters of Bind to text format (the receive functions of utils/adt).
#
# ``pgtypes`` reads the types that tables have, this file a few more. Parameters in text format are
# read when the statement runs.

_HEADER: Final = struct.Struct("!iiI")
_DIMENSION: Final = struct.Struct("!ii")
_LENGTH: Final = struct.Struct("!i")
_TIME: Final = struct.Struct("!q")
_INTERVAL: Final = struct.Struct("!qii")
_INFINITIES: Final = {
    ((1 << 63) - 1, (1 << 31) - 1, (1 << 31) - 1): b"infinity",
    (-(1 << 63), -(1 << 31), -(1 << 31)): b"-infinity",
}
"""Infinite intervals, of PostgreSQL 17 and later (timestamp.h)."""
_OIDS: Final = (*pg_type.REG_TYPES, pg_type.OID, pg_type.XID, pg_type.CID)
"""Types of four-byte unsigned numbers: oid, the reg* types, xid and cid."""

_SIZES: Final[Mapping[int, int]] = {
    **dict.fromkeys((pg_type.INT4, pg_type.FLOAT4, pg_type.DATE, *_OIDS), 4),
    **dict.fromkeys(
        (
            pg_type.INT8,
            pg_type.FLOAT8,
            pg_type.TIME,
            pg_type.TIMESTAMP,
            pg_type.TIMESTAMPTZ,
            pg_type.PG_LSN,
        ),
        8,
    ),
    pg_type.BOOL: 1,
    pg_type.CHAR: 1,
    pg_type.INT2: 2,
    pg_type.INTERVAL: 16,
    pg_type.UUID: 16,
}
"""The binary size of each fixed-size type, in bytes."""

_Receive = Callable[[bytes], bytes]


def parameter_text(value: bytes, type_oid: int, number: int) -> bytes:
    """Return parameter ``$number`` as text. Raises ProtocolViolation (22P03, 08P01), PenstockError
    (42883)."""
    if len(value) < _SIZES.get(type_oid, 0):
        raise ProtocolViolation("insufficient data left in message")
    try:
        return _parameter_text(value, type_oid)
    except (struct.error, ProtocolViolation):
        raise ProtocolViolation(
            f"incorrect binary data format in bind parameter {number}", sqlstate="22P03"
        ) from None


def _parameter_text(value: bytes, type_oid: int) -> bytes:
    receive = _RECEIVE.get(type_oid)
    if receive is not None:
        return receive(value)
    family = find(type_oid)
    if type_oid in family.oids and family.binary:
        cells = Column(
            np.frombuffer(value, np.uint8), np.zeros(1, np.int32), np.full(1, len(value), np.int32)
        )
        text = text_output(family.binary_column(cells, -1), type_oid)[0].as_py()
        assert isinstance(text, bytes)
        return text
    if is_enum(type_oid):
        return value
    known = types().get(type_oid)
    if known is not None and known.element and not known.is_vector:
        return _parameter_array(value, known.element)
    raise no_function("input", type_oid)


def _parameter_array(value: bytes, element: int) -> bytes:
    """Read a binary array with at most one dimension (array_recv)."""
    dimensions, _, sent = _HEADER.unpack_from(value)
    if sent != element:
        raise DatatypeMismatch(
            f"binary data has array element type {sent} instead of expected {element}",
        )
    if dimensions > 1:
        raise FeatureNotSupported("arrays of several dimensions are not supported")
    items: list[str | None] = []
    count, first, at = 0, 1, _HEADER.size
    if dimensions:
        count, first = _DIMENSION.unpack_from(value, at)
        at += _DIMENSION.size
    if count and first != 1:
        raise FeatureNotSupported(f"arrays with the lower bound {first} are not supported")
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(value, at)
        at += _LENGTH.size
        if length > len(value) - at or length < -1:
            raise _malformed()
        items.append(None)
        if length >= 0:
            items[-1] = _parameter_text(value[at : at + length], element).decode()
            at += length
    if at != len(value) or dimensions < 0 or count < 0:
        raise _malformed()
    return join_array(items).encode()


def _malformed() -> ProtocolViolation:
    return ProtocolViolation("incorrect binary data format", sqlstate="22P03")


def _char_text(value: bytes) -> bytes:
    """Return the text of the one byte of a "char" (charout)."""
    (byte,) = struct.unpack("!B", value)
    if byte >= 0x80:
        return f"\\{byte:o}".encode()
    return value if byte else b""


def _time(value: bytes) -> bytes:
    return print_time(*_TIME.unpack(value)).encode()


def _interval(value: bytes) -> bytes:
    microseconds, days, months = found = _INTERVAL.unpack(value)
    if found in _INFINITIES:
        return _INFINITIES[found]
    return print_interval(months, days, microseconds).encode()


_RECEIVE: Final[Mapping[int, _Receive]] = {
    pg_type.PG_LSN: lambda value: str(Lsn(struct.unpack("!Q", value)[0])).encode(),
    pg_type.TIME: _time,
    pg_type.INTERVAL: _interval,
    pg_type.CHAR: lambda value: _char_text(value),
    **dict.fromkeys(_OIDS, lambda value: str(struct.unpack("!I", value)[0]).encode()),
    **dict.fromkeys(CHARACTER_TYPES, lambda value: value),
}
