"""How COPY divides a table: files into shares for tasks, shares into waves for jobs.

In: files in order. Out: waves of shares, each a file and a run of its rows. The first wave is
small, so that the client has work soon, each further one twice as large as the one before. Sizes
are of the rows as COPY sends them, estimated: a file says how well its columns compressed, not how
long they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from penstock.pipeline.scan import ScanFile

_FIRST_WAVE_BYTES: Final = 8 << 20
_WAVE_BYTES: Final = 256 << 20
_SHARE_BYTES: Final = 32 << 20
"""At most: a share reads its row group from the beginning, so that small ones read much in vain."""
_SHARES: Final = 2
"""Of a wave, at least."""
_VALUE_BYTES: Final = 16
"""Of a value in a row, about, with its separator."""


@dataclass(frozen=True)
class CopyShare:
    """Rows of a file of the table with number ``table``; ``size``: bytes, estimated."""

    table: int
    file: ScanFile
    size: int


def waves(files: Iterable[tuple[int, ScanFile, int]]) -> Iterator[list[CopyShare]]:
    """``files``: number of the table, file, columns that are sent."""
    limit = room = _FIRST_WAVE_BYTES
    wave: list[CopyShare] = []
    for table, file, columns in files:
        row_size = max(file.size // max(1, file.rows), _VALUE_BYTES * columns, 1)
        start = None if file.rows == 0 else 0
        while start is not None:
            rows = max(1, min(room, _share_bytes(limit)) // row_size)
            share = _share(file, start, rows)
            wave.append(CopyShare(table, share, _size(share, row_size)))
            start = share.stop
            room -= wave[-1].size
            if room < row_size:
                yield wave
                limit = min(2 * limit, _WAVE_BYTES)
                room, wave = limit, []
    if wave:
        yield wave


def _share_bytes(wave: int) -> int:
    return min(wave // _SHARES, _SHARE_BYTES)


def _share(file: ScanFile, start: int, rows: int) -> ScanFile:
    """To the file's end where less than half a share would be left, or its rows are not known."""
    stop = start + rows
    return replace(file, start=start, stop=None if stop + rows // 2 >= file.rows else stop)


def _size(share: ScanFile, row_size: int) -> int:
    if share.rows < 0:
        return share.size
    stop = share.rows if share.stop is None else share.stop
    return (stop - share.start) * row_size
