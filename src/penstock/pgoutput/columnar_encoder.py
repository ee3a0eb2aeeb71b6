"""Row messages of many rows at once: the reverse of ``columnar`` (proto.c, logicalrep_write_*).

Columns of cells in PostgreSQL's output format become one message per row, the same as from
``encoder``. Before each stands the head of a CopyData message: the caller gives it, and the length
is filled in here. So the bytes can be sent to a client unchanged. The caller chooses the rows and
their order.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from penstock.pgoutput.messages import OldTuple
from penstock.wire_rows import Column, Part, messages_of

_NULL: Final = b"n"


@dataclass(frozen=True, slots=True)
class EncodedColumn:
    """Cells of one attribute: Arrow binary, null for NULL. ``binary``: by the send function."""

    cells: pa.Array
    binary: bool = False


Tuple = Sequence[EncodedColumn]


def insert_messages(oid: int, new: Tuple, rows: int, header: bytes) -> bytes:
    """Return ``I`` messages of ``rows`` rows, as CopyData."""
    return _messages(b"I", oid, [(b"N", new)], rows, header)


def delete_messages(oid: int, old: Tuple, kind: OldTuple, rows: int, header: bytes) -> bytes:
    """Return ``D`` messages. Columns that are no part of a key are null in a ``K`` tuple."""
    return _messages(b"D", oid, [(kind.value.encode(), old)], rows, header)


def update_messages(
    oid: int,
    new: Tuple,
    rows: int,
    header: bytes,
    *,
    old: Tuple | None = None,
    kind: OldTuple | None = None,
) -> bytes:
    """Return ``U`` messages; ``old`` with its ``kind`` if the old tuple is sent."""
    tuples = [] if old is None or kind is None else [(kind.value.encode(), old)]
    return _messages(b"U", oid, [*tuples, (b"N", new)], rows, header)


def _messages(
    kind: bytes, oid: int, tuples: Sequence[tuple[bytes, Tuple]], rows: int, header: bytes
) -> bytes:
    parts: list[Part] = []
    head = kind + struct.pack("!I", oid)
    for tuple_kind, columns in tuples:
        parts.append(tuple_kind + struct.pack("!H", len(columns)))
        parts += [
            Column(each.cells, null=_NULL, kind=b"b" if each.binary else b"t", counted=True)
            for each in columns
        ]
    return messages_of(header + head, parts, rows)
