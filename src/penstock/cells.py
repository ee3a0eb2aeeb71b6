"""Cells of a column: the places of its values in a buffer, before their type is known.

A decoder finds the framing and hands the cells to the type families. Bytes are never copied here;
``penstock.pgtypes`` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.kernel import part


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """One column of ``n`` cells; cell i is ``buffer[start[i]:start[i] + length[i]]``.

    ``start`` and ``length`` have shape (n,); the buffer has less than 2 GiB. ``null`` has shape
    (n,), or is None if no cell is NULL. Where it is true, ``start`` and ``length`` may hold
    anything.
    """

    buffer: NDArray[np.uint8]
    start: NDArray[np.int32]
    length: NDArray[np.int32]
    null: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.start)

    def raw(self, index: int) -> bytes | None:
        """Return the bytes of one cell, None for NULL. Meant for messages and slow paths."""
        if self.null is not None and self.null[index]:
            return None
        begin = int(self.start[index])
        return self.buffer[begin : begin + int(self.length[index])].tobytes()


def window(buffer: NDArray[np.uint8], dtype: Any) -> NDArray[Any]:
    """Return a view in which element i is the ``dtype`` that starts at byte i, aligned or not.

    Index it with an array only: ``take`` and arithmetic on the whole would copy it many times over.
    """
    kind = np.dtype(dtype)
    return np.ndarray((max(0, len(buffer) - kind.itemsize + 1),), kind, buffer, 0, (1,))


# Numbers in network byte order, for kernels. The caller has checked that they lie in the buffer.
# Numba makes a float of an unsigned number and a signed one: so all are signed here.


@part
def uint16_at(buffer: NDArray[np.uint8], at: int) -> int:
    return int(np.int64(buffer[at]) << 8 | buffer[at + 1])


@part
def int16_at(buffer: NDArray[np.uint8], at: int) -> int:
    value = uint16_at(buffer, at)
    return value - ((value & 0x8000) << 1)


@part
def int32_at(buffer: NDArray[np.uint8], at: int) -> int:
    value = uint16_at(buffer, at) << 16 | uint16_at(buffer, at + 2)
    return value - ((value & 0x80000000) << 1)


@part
def int64_at(buffer: NDArray[np.uint8], at: int) -> int:
    return int32_at(buffer, at) << 32 | int32_at(buffer, at + 4) & 0xFFFFFFFF


@part
def copy_bytes(
    source: NDArray[np.uint8], at: int, size: int, out: NDArray[np.uint8], to: int
) -> None:
    """Copy ``source[at:at + size]`` to ``out[to:]``."""
    # An unsigned index cannot count from the end: the loop becomes one of whole vectors.
    begin, target = np.uint64(at), np.uint64(to)
    for byte in range(np.uint64(size)):
        out[target + byte] = source[begin + byte]


@part
def write_bytes(text: NDArray[np.uint8], out: NDArray[np.uint8], to: int) -> int:
    """Write a short text, and return the position behind it."""
    for byte in text:
        out[to] = byte
        to += 1
    return to
