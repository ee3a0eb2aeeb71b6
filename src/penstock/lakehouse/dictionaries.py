"""Which columns of a data file are written with a dictionary.

In: the first row group of a file. Out: what Arrow's writer takes for ``use_dictionary``. It tries
a dictionary for each column by itself, and gives it up once the dictionary has a megabyte: for
values that are all different, as those of a key, that is half of the time of writing them, and a
third more bytes. So a sample of the rows is looked at first.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_MANY_ROWS: Final = 1 << 16
"""Of fewer ones no dictionary takes long."""
_LOOKED_AT: Final = 1 << 12
_LEAST: Final = 1 << 10
"""So many of the rows looked at must have a value."""
_ALL: Final = 0.99
"""Of so many rows that many are different where there are some 200,000 values: at that point a
dictionary is given up, or saves nothing."""


def dictionary_columns(rows: pa.Table) -> list[str] | bool:
    """Columns that get one; True: all, False: none."""
    if rows.num_rows < _MANY_ROWS or any(map(pa.types.is_nested, rows.schema.types)):
        return True
    sample = _sample(rows)
    repeating = [name for name in rows.schema.names if not _all_differ(sample.column(name))]
    return repeating or False


def _sample(rows: pa.Table) -> pa.Table:
    """At random: values may come again in long steps."""
    random = np.random.default_rng(0)
    positions = np.unique(random.integers(0, rows.num_rows, _LOOKED_AT))
    found, start = [], 0
    for batch in rows.to_batches():
        end = start + batch.num_rows
        low, high = np.searchsorted(positions, (start, end))
        found.append(batch.take(pa.array(positions[low:high] - start)))
        start = end
    return pa.Table.from_batches(found, rows.schema)


def _all_differ(values: pa.ChunkedArray) -> bool:
    there = len(values) - values.null_count
    if there < _LEAST:
        return False
    try:
        return bool(pc.count_distinct(values).as_py() >= there * _ALL)
    except pa.ArrowNotImplementedError:
        return False
