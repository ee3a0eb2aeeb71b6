r"""Types of variable length: characters, json, bytea, and the text of every type without a family
(varlena.c, varchar.c, name.c, json.c, jsonb.c).

text, varchar(n), char(n) with its trailing blanks, name and json have the same bytes in text and in
binary format. jsonb in binary is a version byte (1) and the text of its output function. json and
jsonb are kept as text, so that no number loses digits and no key is lost. bytea in text is ``\x``
and hexadecimal digits, which our sessions ask for, or the old escape format. All other types
(enums, domains, ranges, composites, network, geometric, interval, time, xml, extensions ...) stay
as their output function prints them; their binary format cannot be read here.
"""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.cells import Cells
from penstock.errors import ValueNotRepresentable
from penstock.kernel import BYTES, FLAGS, PLACES, kernel
from penstock.pgtypes import pg_type
from penstock.pgtypes.family import Family, shown
from penstock.pgtypes.gather import cells_of, nulls, present, strings, validity, written


class TextFamily(Family):
    """Bytes in the client encoding, which is always UTF8."""

    def __init__(self, *oids: int) -> None:
        self.name = pg_type.types()[oids[0]].sql_name if oids else "text"
        self.oids = oids

    def arrow(self, typmod: int) -> pa.DataType:
        return pa.string()

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        return utf8_column(cells)

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        return utf8_column(cells)

    def text_value(self, raw: bytes, typmod: int) -> str:
        return utf8_value(raw)

    def binary_value(self, raw: bytes, typmod: int) -> str:
        return utf8_value(raw)


class OutputTextFamily(TextFamily):
    """Every type without a family of its own: the text of its output function."""

    binary = False

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        raise self.malformed_binary()

    def binary_value(self, raw: bytes, typmod: int) -> str:
        raise self.malformed_binary()

    def copied_as_text(self, typmod: int) -> bool:
        return True

    def copy_expression(self, column_sql: str, typmod: int) -> str:
        # A cast to text is not the output function: inet gains a netmask, a domain over char(n)
        # loses blanks, one over boolean becomes "true". format() calls the output function;
        # num_nulls() tells NULL from a composite value whose fields are all NULL.
        return (
            f"CASE WHEN pg_catalog.num_nulls({column_sql}) = 0"
            f" THEN pg_catalog.format('%s', {column_sql}) END"
        )


def utf8_column(cells: Cells) -> pa.Array:
    """Return cells as strings. Raises ValueNotRepresentable (22021) if they are not UTF-8.

    A database with encoding SQL_ASCII sends whatever it has, unconverted.
    """
    column = strings(cells, pa.string())
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        for index in range(len(cells)):
            utf8_value(cells.raw(index) or b"")
        raise
    return column


def utf8_value(raw: bytes) -> str:
    """Return one string. Raises ValueNotRepresentable (22021) if it is not UTF-8."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueNotRepresentable(
            f'invalid byte sequence for encoding "UTF8": "{shown(raw)}"',
            hint="The publisher's database holds bytes that are not valid in its encoding.",
            sqlstate="22021",
        ) from None


OUTPUT_TEXT = OutputTextFamily()


_VERSION = 1


class JsonbFamily(TextFamily):
    """jsonb: text behind a version byte in binary."""

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        null = cells.null if cells.null is not None else np.zeros(len(cells), np.bool_)
        if (~null & (cells.length < 1)).any():
            raise self.malformed_binary()
        if (cells.buffer[cells.start[~null]] != _VERSION).any():
            raise self.malformed_binary()
        return utf8_column(Cells(cells.buffer, cells.start + 1, cells.length - 1, cells.null))

    def binary_value(self, raw: bytes, typmod: int) -> str:
        if raw[:1] != bytes([_VERSION]):
            raise self.malformed_binary()
        return utf8_value(raw[1:])


HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
NOT_HEX = 255
_BACKSLASH, _X = map(ord, "\\x")
NIBBLES = np.full(256, NOT_HEX, np.uint8)
for _digits in (b"0123456789abcdef", b"0123456789ABCDEF"):
    NIBBLES[np.frombuffer(_digits, np.uint8)] = np.arange(16)
_ESCAPE = re.compile(rb"\\(?:\\|([0-3][0-7]{2}))")
_ESCAPED = re.compile(rb"(?:[^\\]|\\\\|\\[0-3][0-7]{2})*", re.DOTALL)


class ByteaFamily(Family):
    """PostgreSQL's bytea."""

    name = "bytea"
    oids = (pg_type.BYTEA,)

    def arrow(self, typmod: int) -> pa.DataType:
        return pa.binary()

    def text_column(self, cells: Cells, typmod: int) -> pa.Array:
        offsets = np.zeros(len(cells) + 1, np.int32)
        data = np.empty(int(cells.length.sum(dtype=np.int64, where=present(cells))) // 2, np.uint8)
        where = cells.buffer, cells.start, cells.length, nulls(cells)
        if _read_hex(*where, offsets, data) >= 0:  # the old format, or no bytea
            raws = (cells.raw(index) for index in range(len(cells)))
            values = [None if raw is None else self.text_value(raw, typmod) for raw in raws]
            return pa.array(values, pa.binary())
        buffers = [validity(cells.null), pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.binary(), len(cells), buffers)

    def binary_column(self, cells: Cells, typmod: int) -> pa.Array:
        return strings(cells, pa.binary())

    def text_value(self, raw: bytes, typmod: int) -> bytes:
        if raw.startswith(b"\\x"):
            if not re.fullmatch(rb"(?:[0-9a-fA-F]{2})*", raw[2:]):
                raise self.malformed_text(raw)
            return bytes.fromhex(raw[2:].decode("ascii"))
        if not _ESCAPED.fullmatch(raw):
            raise self.malformed_text(raw)
        return _ESCAPE.sub(lambda m: bytes([int(m[1], 8)]) if m[1] else b"\\", raw)

    def binary_value(self, raw: bytes, typmod: int) -> bytes:
        return raw


@kernel(f"int64({BYTES}, {PLACES}, {PLACES}, {FLAGS}, int32[::1], uint8[::1])")
def _read_hex(
    buffer: NDArray[np.uint8],
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    null: NDArray[np.bool_],
    offsets: NDArray[np.int32],
    data: NDArray[np.uint8],
) -> int:
    """Read values in hexadecimal digits; return the first row that is in another form, or -1."""
    to = 0
    for row in range(len(start)):
        if not (len(null) and null[row]):
            at, size = start[row], length[row]
            if size < 2 or size % 2 or buffer[at] != _BACKSLASH or buffer[at + 1] != _X:
                return row
            for digit in range(2, size, 2):
                high, low = NIBBLES[buffer[at + digit]], NIBBLES[buffer[at + digit + 1]]
                if high == NOT_HEX or low == NOT_HEX:
                    return row
                data[to] = high << 4 | low
                to += 1
        offsets[row + 1] = to
    return -1


def bytea_text(array: pa.Array) -> pa.Array:
    """Return ``\\x`` and the hexadecimal digits of each value."""
    cells = cells_of(array)
    most = 2 * (len(array) + int(cells.length.sum(dtype=np.int64)))
    where = cells.buffer, cells.start, cells.length
    return written(array, pa.binary(), most, _print_hex, *where)


@kernel(f"void({BYTES}, {PLACES}, {PLACES}, {FLAGS}, int32[::1], uint8[::1])")
def _print_hex(
    buffer: NDArray[np.uint8],
    start: NDArray[np.int32],
    length: NDArray[np.int32],
    null: NDArray[np.bool_],
    offsets: NDArray[np.int32],
    out: NDArray[np.uint8],
) -> None:
    at = 0
    for row in range(len(start)):
        if not (len(null) and null[row]):
            out[at], out[at + 1] = _BACKSLASH, _X
            at += 2
            for place in range(start[row], start[row] + length[row]):
                out[at], out[at + 1] = HEX[buffer[place] >> 4], HEX[buffer[place] & 15]
                at += 2
        offsets[row + 1] = at
