"""The writes of plugins, as batches (logicalfuncs.c, LogicalOutputWrite).

In: pieces of text or bytes, each with its LSN and xid, or columns of them. Out: ``Output``: Arrow
columns. The bytes that wait here are counted, so that the caller can hand them on in time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.lsn import Lsn
from penstock.sqlstate import CharacterNotInRepertoire
from penstock.wire_rows import bytes_of

MAX_ALLOC_SIZE: Final = 0x3FFFFFFF
"""Bytes that one callback may write (memutils.h)."""
_ROW_BYTES: Final = 12
_BINARY: Final = "Read the slot as bytes: by the binary functions, or by START_REPLICATION."


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """Writes in order, as three columns of one length. ``lsns`` are uint64. ``xids`` are uint32, 0
    for messages that belong to no transaction. ``data`` are strings, or binary if the plugin's
    output is binary or the reader wants bytes."""

    lsns: pa.Array
    xids: pa.Array
    data: pa.Array

    def __len__(self) -> int:
        return len(self.data)

    def rows(self) -> Iterator[tuple[int, int, str | bytes]]:
        """Yield LSN, xid and data row by row."""
        columns = (self.lsns, self.xids, self.data)
        return zip(*(column.to_pylist() for column in columns), strict=True)


class Writes:
    """Hold writes that have not been handed on; ``nbytes`` counts their bytes."""

    def __init__(self) -> None:
        self.binary = False
        self.nbytes = 0
        self._ready: list[Output] = []
        self._lsns: list[int] = []
        self._xids: list[int] = []
        self._data: list[str] | list[bytes] = []

    def add(self, lsn: Lsn, xid: int, pieces: list[str | bytes]) -> None:
        """Add one write. Raises CharacterNotInRepertoire (22021) for bytes that are not text."""
        raw = b"".join(p if isinstance(p, bytes) else p.encode() for p in pieces)
        if not self.binary:
            _check_text(raw)
        self._lsns.append(lsn)
        self._xids.append(xid)
        self._data.append(raw)  # type: ignore[arg-type]
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
        self._ready.append(Output(*columns, self._typed(data)))
        self.nbytes += data.nbytes + _ROW_BYTES * count

    def take(self) -> list[Output]:
        """Take out all writes."""
        self._close_rows()
        ready, self._ready, self.nbytes = self._ready, [], 0
        return ready

    def drop(self) -> None:
        """Discard all writes."""
        self.take()

    def _close_rows(self) -> None:
        if not self._data:
            return
        data = pa.array(self._data, pa.binary()).cast(pa.binary() if self.binary else pa.string())
        lsns, xids = pa.array(self._lsns, pa.uint64()), pa.array(self._xids, pa.uint32())
        self._ready.append(Output(lsns, xids, data))
        self._lsns, self._xids, self._data = [], [], []

    def _typed(self, data: pa.Array) -> pa.Array:
        if self.binary:
            return data.cast(pa.binary())
        text = data
        if not pa.types.is_string(data.type):
            try:
                text = pc.cast(data, pa.string())
            except pa.ArrowInvalid:
                raise _no_text() from None
        if (bytes_of(text) == 0).any():
            raise _no_text("0x00")
        return text


def _check_text(raw: bytes) -> None:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        shown = " ".join(f"0x{byte:02x}" for byte in raw[error.start : error.start + 1])
        raise _no_text(shown) from None
    if 0 in raw:
        raise _no_text("0x00")


def _no_text(shown: str = "") -> CharacterNotInRepertoire:
    what = f": {shown}" if shown else ""
    return CharacterNotInRepertoire(
        f'invalid byte sequence for encoding "UTF8"{what}', hint=_BINARY
    )
