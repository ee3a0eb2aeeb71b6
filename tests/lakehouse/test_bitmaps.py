"""Bitmaps and arrays of the same numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from penstock.lakehouse.deletion_vectors import bitmap_of, numbers_of

_NUMBERS = st.lists(st.integers(0, 2**32 - 1) | st.integers(0, 100))


@given(_NUMBERS)
def test_they_hold_the_same_numbers(numbers: list[int]) -> None:
    bitmap = bitmap_of(np.array(numbers, np.int64))
    assert bitmap == BitMap(numbers)
    assert numbers_of(bitmap).tolist() == sorted(set(numbers))
    assert numbers_of(bitmap).dtype == np.int64
