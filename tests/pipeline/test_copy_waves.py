"""COPY's shares and waves: every row once, the first wave small, sizes bounded."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.copy_to import waves
from penstock.pipeline.scan import ScanFile

_MIB = 1 << 20


@given(
    files=st.lists(
        st.tuples(st.integers(0, 3), st.integers(-1, 3_000_000), st.integers(0, 200 * _MIB)),
        max_size=8,
    ),
    columns=st.integers(0, 12),
)
def test_every_row_is_in_one_share(files: list[tuple[int, int, int]], columns: int) -> None:
    given_files = [
        (table, ScanFile(f"{number}", size, rows), columns)
        for number, (table, rows, size) in enumerate(files)
    ]
    found = [share for wave in waves(given_files) for share in wave]
    for table, file, _ in given_files:
        shares = [share for share in found if share.file.path == file.path]
        assert all(share.table == table and share.file.rows == file.rows for share in shares)
        if file.rows == 0:
            assert not shares
            continue
        assert shares[0].file.start == 0
        assert shares[-1].file.stop is None
        assert all(a.file.stop == b.file.start for a, b in pairwise(shares))
        assert all(share.file.stop > share.file.start for share in shares[:-1])  # type: ignore[operator]
        if file.rows > 0:
            assert shares[-1].file.start < file.rows


def test_waves_grow_from_a_small_one() -> None:
    files = [(0, ScanFile(str(n), 2_500_000, 450_000), 4) for n in range(100)]
    sizes = [sum(share.size for share in wave) / _MIB for wave in waves(files)]
    assert 7 < sizes[0] < 13
    assert all(a < b for a, b in pairwise(sizes[:5]))
    assert max(sizes) < 300
    first = next(waves(files))
    assert len(first) == 2  # more than one core has work


def test_a_file_whose_rows_nobody_counted_is_one_share() -> None:
    (wave,) = waves([(0, ScanFile("a", 100 * _MIB), 4)])
    assert [(share.file.start, share.file.stop) for share in wave] == [(0, None)]
