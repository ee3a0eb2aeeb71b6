"""Rows of a data file by their positions: runs of rows, across row groups and batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.lakehouse.storage import Storage
from penstock.pipeline.scan import ScanColumn, ScanFile, scan
from penstock.subscription.parking import is_own

_ROWS = 150_000  # more than one batch in a row group
_FILE = "rows.parquet"
_GROUP = 70_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scan")
    table = pa.table({"number": pa.array(range(_ROWS), pa.int64())})
    pq.write_table(table, folder / _FILE, row_group_size=_GROUP)
    return folder


@given(
    cuts=st.lists(
        st.integers(1, _ROWS - 1) | st.sampled_from([_GROUP, _GROUP + 1, 1 << 16, 2 * _GROUP]),
        max_size=4,
    )
)
def test_runs_of_rows_are_the_file(folder: Path, cuts: list[int]) -> None:
    storage = Storage(str(folder))
    columns = (ScanColumn("number", "number", pa.int64()),)
    starts = sorted({0, *cuts})
    for start, stop in zip(starts, [*starts[1:], None], strict=True):
        file = ScanFile(_FILE, 0, _ROWS, start=start, stop=stop)
        found = [b.column("number").to_numpy() for b in scan(storage, str(folder), file, columns)]
        wanted = np.arange(start, _ROWS if stop is None else stop)
        assert np.array_equal(np.concatenate(found) if found else np.arange(0), wanted)


def test_rows_of_another_type_are_their_tables_error(folder: Path) -> None:
    """One table stops because of them, and a copy of it mends them."""
    columns = (ScanColumn("number", "number", pa.bool_()),)
    with pytest.raises(PenstockError, match='column "number" had another type') as raised:
        list(scan(Storage(str(folder)), str(folder), ScanFile(_FILE, 0), columns))
    assert is_own(raised.value)
    assert raised.value.hint is None
