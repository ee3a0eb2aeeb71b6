"""The writes of plugins, as batches (logicalfuncs.c, LogicalOutputWrite; walsender.c,
WalSndWriteData).

Plugins write texts or bytes with LSN and xid, singly or as columns, or finished messages. SQL
functions get Arrow columns (``Output``), clients get CopyData messages with XLogData. The bytes of
waiting writes are counted, so the caller can hand them on in time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.lsn import Lsn
from penstock.protocol.copy_both import read_xlog_data, xlog_data, xlog_data_head
from penstock.sqlstate import CharacterNotInRepertoire
from penstock.wire_rows import Column, messages_of

MAX_ALLOC_SIZE: Final = 0x3FFFFFFF
"""Bytes that one callback may write (memutils.h)."""
_ROW_BYTES: Final = 12
_BINARY: Final = "Read the slot as bytes: by the binary functions, or by START_REPLICATION."


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """Writes in order, as three columns of one length. ``lsns`` are uint64. ``xids`` are uint32, 0
    for messages outside of transactions. ``data`` are strings, or binary if the plugin's output is
    binary or the reader wants bytes."""

    lsns: pa.Array
    xids: pa.Array
    data: pa.Array

    def __len__(self) -> int:
        return len(self.data)

    def rows(self) -> Iterator[tuple[int, int, str | bytes]]:
        """Yield LSN, xid and data row by row."""
        columns = (self.lsns, self.xids, self.data)
        return zip(*(column.to_pylist() for column in columns), strict=True)

    def copy_data(self) -> bytes:
        """Return a CopyData message with XLogData for each write."""
        data, at, sent = self.data.cast(pa.binary()), np.asarray(self.lsns), _now()
        starts = np.flatnonzero(np.diff(at, prepend=at[:1] + np.uint64(1)))
        out = bytearray()
        for start, stop in zip(starts, [*starts[1:], len(at)], strict=True):
            part = data.slice(start, stop - start)
            header = xlog_data_head(Lsn(int(at[start])), sent)
            out += messages_of(header, [Column(part)], len(part))
        return bytes(out)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Writes that were made one by one."""

    lsns: list[Lsn]
    xids: list[int]
    data: list[bytes]

    def output(self, type_: pa.DataType) -> Output:
        data = pa.array(self.data, pa.binary()).cast(type_)
        return Output(pa.array(self.lsns, pa.uint64()), pa.array(self.xids, pa.uint32()), data)

    def copy_data(self) -> bytes:
        sent = _now()
        pairs = zip(self.lsns, self.data, strict=True)
        return b"".join(xlog_data(lsn, sent, data) for lsn, data in pairs)


@dataclass(frozen=True, slots=True)
class _Messages:
    """Writes with one xid that are CopyData messages with XLogData already."""

    data: bytes
    xid: int

    def output(self, type_: pa.DataType) -> Output:
        lsns, data = read_xlog_data(self.data)
        xids = pa.repeat(pa.scalar(self.xid, pa.uint32()), len(data))
        return Output(pa.array(lsns), xids, data.cast(type_))

    def copy_data(self) -> bytes:
        return self.data


class Writes:
    """Writes that have not been handed on; ``nbytes`` counts their bytes."""

    def __init__(self) -> None:
        self.binary = False
        self.nbytes = 0
        self._parts: list[Output | _Rows | _Messages] = []
        self._rows = _Rows([], [], [])

    def add(self, lsn: Lsn, xid: int, pieces: list[str | bytes]) -> None:
        """Add one write. Raises CharacterNotInRepertoire (22021) for bytes that are not text."""
        raw = b"".join(p if isinstance(p, bytes) else p.encode() for p in pieces)
        if not self.binary:
            decode_text(raw)
        self._rows.lsns.append(lsn)
        self._rows.xids.append(xid)
        self._rows.data.append(raw)
        self.nbytes += len(raw) + _ROW_BYTES

    def add_batch(self, lsns: Lsn | NDArray[np.uint64], xid: int, data: pa.Array) -> None:
        """Add a write for each element of an array of strings or binary without nulls."""
        self._close_rows()
        if isinstance(data, pa.ChunkedArray):
            data = data.combine_chunks()
        if data.null_count:
            raise ValueError("a write is not null")
        count = len(data)
        places = np.full(count, lsns, np.uint64) if isinstance(lsns, Lsn) else lsns
        columns = (pa.array(places, pa.uint64()), pa.array(np.full(count, xid, np.uint32)))
        self._parts.append(Output(*columns, self._typed(data)))
        self.nbytes += data.nbytes + _ROW_BYTES * count

    def add_messages(self, data: bytes, xid: int) -> None:
        """Add CopyData messages with XLogData, which are sent to a client unchanged."""
        self._close_rows()
        self._parts.append(_Messages(data, xid))
        self.nbytes += len(data)

    def take(self) -> list[Output]:
        """Take out all writes."""
        type_ = pa.binary() if self.binary else pa.string()
        return [p if isinstance(p, Output) else p.output(type_) for p in self._taken()]

    def take_copy_data(self) -> list[bytes]:
        """Take out all writes as CopyData messages with XLogData."""
        return [part.copy_data() for part in self._taken()]

    def drop(self) -> None:
        """Discard all writes."""
        self._taken()

    def _taken(self) -> list[Output | _Rows | _Messages]:
        self._close_rows()
        parts, self._parts, self.nbytes = self._parts, [], 0
        return parts

    def _close_rows(self) -> None:
        if self._rows.data:
            self._parts.append(self._rows)
            self._rows = _Rows([], [], [])

    def _typed(self, data: pa.Array) -> pa.Array:
        return data.cast(pa.binary()) if self.binary else as_text(data)


def as_text(data: pa.Array) -> pa.Array:
    """Cast strings or bytes to strings. Raises CharacterNotInRepertoire (22021) for bytes that are
    not text."""
    try:
        text = data.cast(pa.string())
        valid = not pc.any(pc.match_substring(text, "\0")).as_py()
    except pa.ArrowInvalid:
        valid = False
    if not valid:
        for raw in data.cast(pa.binary()).to_pylist():
            decode_text(raw)
    return text


def _now() -> int:
    """Return the time of sending, in microseconds since the Unix epoch."""
    return time.time_ns() // 1000


def decode_text(raw: bytes) -> str:
    """Decode a write. Raises CharacterNotInRepertoire (22021)."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        shown = " ".join(f"0x{byte:02x}" for byte in raw[error.start : error.start + 1])
        raise _no_text(shown) from None
    if 0 in raw:
        raise _no_text("0x00")
    return text


def _no_text(shown: str = "") -> CharacterNotInRepertoire:
    what = f": {shown}" if shown else ""
    return CharacterNotInRepertoire(
        f'invalid byte sequence for encoding "UTF8"{what}', hint=_BINARY
    )
