"""Small functions on columns of numpy, Arrow and DuckDB, shared by tasks and driver.

They take and return arrays and expressions. This module imports no other module of Penstock, so
that an executor starts fast.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def take_either(mask: Mask, first: pa.ChunkedArray, second: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return ``first`` where ``mask`` is true, else ``second``; for any type, nested ones too."""
    count = len(mask)
    index = np.arange(count) + np.where(mask, 0, count)
    both = pa.chunked_array([*_chunks(first), *_chunks(second)], first.type)
    return both.take(pa.array(index))


def rank(ordered: Integers) -> Integers:
    """Return 0, 1, 2 ... within each run of equal numbers."""
    result: Integers = np.arange(len(ordered)) - np.searchsorted(ordered, ordered)
    return result


def _chunks(array: pa.Array | pa.ChunkedArray) -> Iterable[pa.Array]:
    return array.chunks if isinstance(array, pa.ChunkedArray) else (array,)


def signs(columns: Iterable[tuple[str, pa.DataType]]) -> list[str]:
    """Return expressions to compare besides ``columns`` (SQL, type). For DuckDB -0 equals 0; these
    expressions tell them apart, at any depth of a nested value."""
    return [sign for column, kind in columns for sign in _signs(column, kind, 0)]


def _signs(value: str, kind: pa.DataType, depth: int) -> list[str]:
    if pa.types.is_floating(kind):
        return [f"({value} = 0 and signbit({value}))"]
    if pa.types.is_struct(kind):
        fields = [
            (f"struct_extract_at({value}, {i + 1})", kind.field(i).type) for i in range(len(kind))
        ]
        return [sign for field, of in fields for sign in _signs(field, of, depth)]
    if pa.types.is_map(kind):
        parts = [(f"map_keys({value})", kind.key_type), (f"map_values({value})", kind.item_type)]
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        parts = [(value, kind.value_type)]
    else:
        return []
    name = f"e{depth}"
    return [
        f"list_transform({part}, lambda {name}: {sign})"
        for part, of in parts
        for sign in _signs(name, of, depth + 1)
    ]
