"""Row messages of many rows at once: the reverse of ``columnar`` (proto.c, logicalrep_write_*).

In: columns of cells in PostgreSQL's output format. Out: one message per row, the same as from
``encoder``, each as a CopyData message with its XLogData header in front, so that the data of the
array can go to a client as it is. The caller chooses the rows and their order.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.civil import EPOCH_MICROSECONDS
from penstock.lsn import Lsn
from penstock.pgoutput.messages import OldTuple
from penstock.wire_rows import Lengths, counted_prefix, framed, joined

HEADER: Final = struct.Struct("!cIcQQq")
"""d, length, w, start and end of the data, time of sending."""
_LENGTH_AT: Final = 1
_NULL: Final = b"n"


@dataclass(frozen=True, slots=True)
class EncodedColumn:
    """Cells of one attribute: Arrow binary, null for NULL. ``binary``: by the send function."""

    cells: pa.Array
    binary: bool = False


@dataclass(frozen=True, slots=True)
class XLogDataHeader:
    """The header in front of each message. ``send_time``: microseconds since the Unix epoch."""

    lsn: Lsn
    send_time: int

    def bytes(self) -> bytes:
        """Return the head of a CopyData message whose length is still to be written."""
        time = self.send_time - EPOCH_MICROSECONDS
        return HEADER.pack(b"d", 0, b"w", self.lsn, self.lsn, time)


Tuple = Sequence[EncodedColumn]


def insert_messages(
    oid: int, new: Tuple, rows: int, header: XLogDataHeader, xid: int | None = None
) -> pa.Array:
    """Return ``I`` messages of ``rows`` rows, as CopyData."""
    return _messages(_head(b"I", xid, oid), [(b"N", new)], rows, header)


def delete_messages(
    oid: int,
    old: Tuple,
    kind: OldTuple,
    rows: int,
    header: XLogDataHeader,
    xid: int | None = None,
) -> pa.Array:
    """Return ``D`` messages. Columns that are no part of a key are null in a ``K`` tuple."""
    return _messages(_head(b"D", xid, oid), [(kind.value.encode(), old)], rows, header)


def update_messages(
    oid: int,
    new: Tuple,
    rows: int,
    header: XLogDataHeader,
    *,
    old: Tuple | None = None,
    kind: OldTuple | None = None,
    xid: int | None = None,
) -> pa.Array:
    """Return ``U`` messages; ``old`` with its ``kind`` if the old tuple is sent."""
    tuples = [] if old is None or kind is None else [(kind.value.encode(), old)]
    return _messages(_head(b"U", xid, oid), [*tuples, (b"N", new)], rows, header)


def _head(kind: bytes, xid: int | None, oid: int) -> bytes:
    return kind + (b"" if xid is None else struct.pack("!I", xid)) + struct.pack("!I", oid)


def _messages(
    head: bytes, tuples: Sequence[tuple[bytes, Tuple]], rows: int, header: XLogDataHeader
) -> pa.Array:
    parts: list[pa.Array | bytes] = []
    sizes: Lengths = np.zeros(rows, np.int64)
    constant = 0
    for kind, columns in tuples:
        mark = kind + struct.pack("!H", len(columns))
        parts.append(mark)
        constant += len(mark)
        for column in columns:
            prefix, size = counted_prefix(column.cells, b"b" if column.binary else b"t", _NULL)
            parts += [prefix, column.cells]
            sizes += size
    return xlog_data_messages(parts, sizes + constant, header, head)


def xlog_data_messages(
    parts: Sequence[pa.Array | bytes], sizes: Lengths, header: XLogDataHeader, head: bytes = b""
) -> pa.Array:
    """Return a CopyData message with XLogData for each row of ``parts``.

    ``sizes``: bytes of a row's parts together. ``head``: the bytes that every row's data begins
    with.
    """
    return joined([framed(header.bytes() + head, _LENGTH_AT, _LENGTH_AT, sizes), *parts])
