"""Columns of numpy, Arrow and DuckDB: small work that tasks and driver share.

In and out: arrays, expressions. Imports nothing of ours, so that an executor starts fast.
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


def signs(columns: Iterable[tuple[str, pa.DataType]]) -> list[str]:
    """Expressions over the columns, given as SQL and type, to be compared besides them."""
    found = []
    for column, kind in columns:
        if pa.types.is_floating(kind):
            found.append(f"({column} = 0 and signbit({column}))")
        elif pa.types.is_list(kind) and pa.types.is_floating(kind.value_type):
            found.append(f"list_transform({column}, lambda e: e = 0 and signbit(e))")
    return found
