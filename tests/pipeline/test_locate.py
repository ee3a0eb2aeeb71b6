"""Hits of a file, for rows that need them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.hits import Hits

_PROBES = st.lists(st.integers(0, 9), max_size=12)


@given(probe=_PROBES, old=_PROBES)
def test_every_row_gets_each_hit_of_its_own(probe: list[int], old: list[int]) -> None:
    """Several versions of a row of a history need the same old row."""
    hits = Hits(np.arange(len(probe)) * 3, np.array(probe, np.int64))
    position, index = hits.of(np.array(old, np.int64))
    assert list(zip(position.tolist(), index.tolist(), strict=True)) == [
        (at * 3, number)
        for at, wanted in enumerate(probe)
        for number, given in enumerate(old)
        if given == wanted
    ]
