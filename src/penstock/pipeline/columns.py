"""Small work on numpy and Arrow columns that tasks and driver share.

In and out: arrays. Imports nothing of ours, so that an executor starts fast.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def take_either(mask: Mask, first: pa.ChunkedArray, second: pa.ChunkedArray) -> pa.ChunkedArray:
    """``first`` where ``mask``, else ``second``; for any type, nested ones too."""
    count = len(mask)
    index = np.arange(count) + np.where(mask, 0, count)
    both = pa.chunked_array([*_chunks(first), *_chunks(second)], first.type)
    return both.take(pa.array(index))


def rank(ordered: Integers) -> Integers:
    """0, 1, 2 ... within each run of equal numbers."""
    result: Integers = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    return result


def _chunks(array: pa.Array | pa.ChunkedArray) -> Iterable[pa.Array]:
    return array.chunks if isinstance(array, pa.ChunkedArray) else (array,)
