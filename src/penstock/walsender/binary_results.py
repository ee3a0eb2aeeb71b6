"""Cells of results in PostgreSQL's binary format (the send functions of utils/adt).

In: cells in text format with the types of their columns. Out: the same in binary; only for types
that queries of the catalogs give. Rows of tables are copied in binary by ``pipeline``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from penstock.errors import FeatureNotSupported
from penstock.lsn import Lsn
from penstock.protocol.backend_messages import FieldDescription


def _packed(form: str) -> Callable[[bytes], bytes]:
    packer = struct.Struct(form)
    number = float if form.endswith(("f", "d")) else int
    return lambda cell: packer.pack(number(cell))


def _as_it_is(cell: bytes) -> bytes:
    return cell


_SEND: Final[Mapping[int, Callable[[bytes], bytes]]] = {
    16: lambda cell: b"\1" if cell == b"t" else b"\0",
    20: _packed("!q"),
    21: _packed("!h"),
    23: _packed("!i"),
    26: _packed("!I"),
    700: _packed("!f"),
    701: _packed("!d"),
    3220: lambda cell: struct.pack("!Q", Lsn.parse(cell.decode())),
    **dict.fromkeys((18, 19, 25, 705, 1042, 1043, 2278), _as_it_is),
}


def check_binary(fields: Sequence[FieldDescription]) -> None:
    """Raises FeatureNotSupported: a column's type has no binary format here."""
    for field in fields:
        if field.type_oid not in _SEND:
            raise FeatureNotSupported(
                f'binary results are not supported for the type of column "{field.name}"'
            )


def binary_row(
    row: Sequence[bytes | None], fields: Sequence[FieldDescription]
) -> list[bytes | None]:
    """One row; the fields were checked."""
    return [
        None if cell is None else _SEND[field.type_oid](cell)
        for cell, field in zip(row, fields, strict=True)
    ]
