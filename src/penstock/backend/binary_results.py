"""Cells of results as the client wants them: binary format, its encoding (the send functions).

In: rows in text format and UTF-8, with the types and formats of their columns. Out: the same rows
in those formats. Types that tables have are written by ``pgtypes``, those of the catalogs here.
Rows of COPY are written by ``pipeline``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import numpy as np

from penstock.cells import Cells as Column
from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.pgtypes import find, pg_type
from penstock.pgtypes.binary_output import binary_output
from penstock.protocol.answers import Cells
from penstock.protocol.backend_messages import BINARY_FORMAT, FieldDescription
from penstock.protocol.encoding import UTF8, ClientEncoding
from penstock.sql.builtin.type_cache import ENUM, is_enum, types
from penstock.sql.text.array_literals import split_array
from penstock.sqlstate import UndefinedFunction

CHARACTER_TYPES: Final = frozenset(
    (
        pg_type.CHAR,
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
"""Types whose binary format is their text, in the client's encoding."""
_VECTORS: Final[Mapping[int, int]] = {
    pg_type.INT2VECTOR: pg_type.INT2,
    pg_type.OIDVECTOR: pg_type.OID,
}
"""int2vector and oidvector: arrays that begin at 0, and their elements."""
_ROWS: Final = 1000
"""Rows that are put into binary format at once."""
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
    pg_type.FLOAT4: _packer("!f"),
    pg_type.FLOAT8: _packer("!d"),
    pg_type.PG_LSN: lambda cell: struct.pack("!Q", Lsn.parse(cell.decode())),
    pg_type.XID8: _packer("!Q"),
    pg_type.VOID: lambda cell: b"",
    **dict.fromkeys(CHARACTER_TYPES, lambda cell: cell),
}


def in_formats(rows: Iterable[Cells], fields: Sequence[FieldDescription]) -> Iterator[Cells]:
    """Rows with the columns in binary format whose fields say so, drawn as far as they are needed.

    Raises PenstockError (42883) at a value of a type that has no binary format here.
    """
    if all(field.format != BINARY_FORMAT for field in fields):
        return iter(rows)
    return _batches(iter(rows), fields)


def _batches(rows: Iterator[Cells], fields: Sequence[FieldDescription]) -> Iterator[Cells]:
    while batch := list(islice(rows, _ROWS)):
        columns = [
            _binary(cells, field) if field.format == BINARY_FORMAT else cells
            for cells, field in zip(zip(*batch, strict=True), fields, strict=True)
        ]
        yield from zip(*columns, strict=True)


def _binary(cells: Sequence[bytes | None], field: FieldDescription) -> Sequence[bytes | None]:
    send = _send(field.type_oid)
    if send is not None:
        return [None if cell is None else send(cell) for cell in cells]
    family = find(field.type_oid)
    if field.type_oid in family.oids:
        read = family.text_column(_column(cells), field.typmod)
        return binary_output(read, field.type_oid, field.typmod).to_pylist()  # type: ignore[no-any-return]
    if all(cell is None for cell in cells):
        return cells
    raise no_function("output", field.type_oid)


def _send(type_oid: int) -> _Send | None:
    """For one cell; None where ``pgtypes`` has to do it, or nobody can."""
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
    """Of what an array may hold here."""
    return _SEND[pg_type.TEXT] if is_enum(type_oid) else _SEND.get(type_oid)


def _array(items: Sequence[str | None], element: int, first: int = 1) -> bytes:
    """array_send of one dimension."""
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
    """As type families read cells."""
    lengths = np.array([0 if cell is None else len(cell) for cell in cells], np.intp)
    ends = np.cumsum(lengths)
    return Column(
        np.frombuffer(b"".join(cell for cell in cells if cell is not None), np.uint8),
        ends - lengths,
        lengths,
        np.array([cell is None for cell in cells]),
    )


def in_encoding(
    rows: Iterable[Cells], fields: Sequence[FieldDescription], encoding: ClientEncoding
) -> Iterable[Cells]:
    """Rows with their text in the client's encoding. Raises ValueNotRepresentable (22P05)."""
    if encoding.codec == UTF8.codec:
        return rows
    text = [f.format != BINARY_FORMAT or f.type_oid in CHARACTER_TYPES for f in fields]
    return (
        [
            encoding.encode(cell.decode()) if cell is not None and is_text else cell
            for cell, is_text in zip(row, text, strict=True)
        ]
        for row in rows
    )


def no_function(which: str, type_oid: int) -> PenstockError:
    """PostgreSQL's error for a type without such a function; ``which``: input or output."""
    known = types().get(type_oid)
    name = str(type_oid) if known is None else known.sql_name
    return UndefinedFunction(
        f"no binary {which} function available for type {name}",
        hint="Ask for the text format of this value.",
    )
