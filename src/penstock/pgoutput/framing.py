"""Messages that carry no rows, many at once: Begin, Commit, Origin (proto.c).

In: a buffer and where the messages begin and end. Out: commits as columns; errors for all messages
that ``decoder`` would refuse. Rows are left to ``columnar.change_batch``.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.cells import window
from penstock.civil import EPOCH_MICROSECONDS
from penstock.errors import ProtocolViolation
from penstock.lsn import Lsn
from penstock.pgoutput.chunk import DecodedChunk
from penstock.pgoutput.reader import Reader
from penstock.pgoutput.transaction_reader import read_origin

_BEGIN_SIZE: Final = 1 + 8 + 8 + 4
_COMMIT_SIZE: Final = 1 + 1 + 8 + 8 + 8


def read_begins(
    buffer: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return final_lsn and xid of each Begin. Raises ProtocolViolation."""
    _sized(starts, ends, _BEGIN_SIZE)
    final_lsn = window(buffer, ">i8")[starts + 1].astype(np.int64, copy=False)
    if (final_lsn == 0).any():
        raise ProtocolViolation("final_lsn not set in begin message")
    return final_lsn, window(buffer, ">u4")[starts + 17].astype(np.int64)


def check_commits(chunk: DecodedChunk) -> None:
    """Check that each Commit is where its Begin said. A Begin of an earlier chunk is unknown here.

    Raises ProtocolViolation (apply_handle_commit).
    """
    before = np.searchsorted(chunk.begin_sequence, chunk.commit_sequence) - 1
    known = before >= 0
    expected, found = chunk.final_lsn[before[known]], chunk.commit_lsn[known]
    wrong = np.flatnonzero(expected != found)
    if len(wrong):
        raise ProtocolViolation(
            f"incorrect commit LSN {Lsn(int(found[wrong[0]]))} in commit message "
            f"(expected {Lsn(int(expected[wrong[0]]))})"
        )


def read_commits(
    buffer: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return commit_lsn, end_lsn and time (microseconds since the Unix epoch) of each Commit."""
    _sized(starts, ends, _COMMIT_SIZE)
    flags = buffer[starts + 1]
    if flags.any():
        raise ProtocolViolation(f"unrecognized flags {flags.max()} in commit message")
    fields = window(buffer, ">i8")
    commit_lsn, end_lsn, time = (
        fields[starts + at].astype(np.int64, copy=False) for at in (2, 10, 18)
    )
    return commit_lsn, end_lsn, time + EPOCH_MICROSECONDS


def check_origins(
    buffer: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> None:
    """Check that Origin messages are well formed; behind a cascade there is one per transaction.

    Nearly all name the same origin, so those that equal the first one need not be read.
    """
    name_at = 1 + 8
    size = int(ends[0] - starts[0])
    alike = ends - starts == max(size, name_at + 1)
    alike[0] = False
    if alike.any():
        names = window(buffer, f"V{max(size - name_at, 1)}")
        alike[alike] = names[starts[alike] + name_at] == names[starts[:1] + name_at]
    for index in np.flatnonzero(~alike):
        reader = Reader(buffer[starts[index] + 1 : ends[index]].tobytes())
        read_origin(reader)
        reader.finish()


def _sized(starts: NDArray[np.int64], ends: NDArray[np.int64], size: int) -> None:
    if (ends - starts < size).any():
        raise ProtocolViolation("insufficient data left in message")
    if (ends - starts > size).any():
        raise ProtocolViolation("invalid message format")
