"""What is read is bounded in bytes, whatever the rows are like."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.lakehouse.batches import read_batches, slices

_MIB = 1 << 20


@given(
    widths=st.lists(st.one_of(st.none(), st.integers(0, 4000)), max_size=60),
    most=st.integers(1, 5000),
    start=st.integers(0, 5),
)
@example(widths=[None] * 7 + [0, 0, 0, 2105], most=4280, start=0)
@example(widths=[None] * 60, most=60, start=0)
def test_slices_are_all_rows_in_runs_of_few_bytes(
    widths: list[int | None], most: int, start: int
) -> None:
    values = [None if width is None else "x" * width for width in widths]
    batch = pa.record_batch(
        {
            "id": pa.array(range(len(values)), pa.int32()),
            "v": pa.array(values, pa.string()),
            "l": pa.array([None if v is None else [v, "y"] for v in values], pa.list_(pa.string())),
        }
    ).slice(start)
    parts = list(slices(batch, most))
    assert all(part.num_rows for part in parts)
    assert pa.Table.from_batches(parts, batch.schema).equals(pa.Table.from_batches([batch]))
    assert all(part.num_rows == 1 or part.nbytes <= most + 100 for part in parts)


def test_columns_that_a_file_lacks(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": list(range(700))}), tmp_path / "f", row_group_size=300)
    with pq.ParquetFile(tmp_path / "f") as parquet:
        starts = [(at, batch.num_rows) for at, batch in read_batches(parquet, [])]
    assert starts == [(0, 300), (300, 300), (600, 100)]


@pytest.mark.parametrize("most", [1, 3000, 40_000, _MIB])
def test_every_row_once_in_order(tmp_path: Path, most: int) -> None:
    rows = pa.table({"a": list(range(2000)), "b": ["x" * (i % 900) for i in range(2000)]})
    pq.write_table(rows, tmp_path / "f", row_group_size=700)
    with pq.ParquetFile(tmp_path / "f") as parquet:
        found = list(read_batches(parquet, ["a", "b"], max_bytes=most))
    assert pa.Table.from_batches([batch for _, batch in found]).equals(rows)
    ends = [at + batch.num_rows for at, batch in found]
    assert [at for at, _ in found] == [0, *ends[:-1]]


_REWRITE = """
import sys, pyarrow as pa
from penstock.lakehouse.storage import Storage
from penstock.pipeline.rewrite import RewriteItem, RewrittenFile, rewrite
schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
uri = sys.argv[1]
done = rewrite(RewriteItem(Storage(uri, False), uri, schema, (RewrittenFile("f"),), 1 << 27))
print(sum(file.rows for file in done.files), pa.default_memory_pool().max_memory())
"""


@pytest.mark.parametrize("width", [100, 100_000])
def test_compaction_holds_bytes_and_not_rows(tmp_path: Path, width: int) -> None:
    """Equal wide values: the file is small, its rows are not; all of them are 0.4 GB."""
    count = 4000
    index = pa.array([0] * count, pa.int32())
    values = pa.DictionaryArray.from_arrays(index, pa.array(["w" * width]))
    pq.write_table(
        pa.table({"id": pa.array(range(count)), "v": values}), tmp_path / "f", store_schema=False
    )
    done = subprocess.run(
        [sys.executable, "-c", _REWRITE, str(tmp_path)], capture_output=True, text=True, check=True
    )
    rows, peak = map(int, done.stdout.split())
    assert rows == count
    print(f"rows of {width} bytes: {peak / _MIB:.0f} MiB")
    assert peak < 200 * _MIB
