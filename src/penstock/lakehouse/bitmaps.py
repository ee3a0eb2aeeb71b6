"""Positions of rows as bitmaps and as arrays.

In: either. Out: the other. ``BitMap(numbers)`` and ``np.array(bitmap)`` go through a Python integer
for each row, which takes longer than all else that a batch does with them.
"""

from __future__ import annotations

from array import array
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

_UNSIGNED_32: Final = "I"


def bitmap_of(numbers: NDArray[np.integer]) -> BitMap:
    """Of numbers from 0 to 2**32 - 1, in any order."""
    held = array(_UNSIGNED_32)
    held.frombytes(numbers.astype(np.uint32).tobytes())
    return BitMap(held)


def numbers_of(bitmap: BitMap) -> NDArray[np.int64]:
    """Ascending."""
    return np.frombuffer(bitmap.to_array(), np.uint32).astype(np.int64)
