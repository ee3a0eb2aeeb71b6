"""Hits of a file, for rows that need them; files that are damaged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StorageError
from penstock.pipeline.hits import Hits
from penstock.pipeline.locate import LocateItem, locate
from penstock.pipeline.payload import Payload

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


_ROWS = 20_000
_KEY = 1_013_904_223


def _file(folder: Path) -> Path:
    """A file whose keys do not compress, so that their bytes stand in it."""
    keys = (np.arange(_ROWS) * 1_664_525 + _KEY) % (2**31 - 1)
    rows = pa.table({"id": pa.array(keys, pa.int32()), "v": [f"row {i}" for i in range(_ROWS)]})
    path = folder / "part-0.parquet"
    pq.write_table(rows, path, use_dictionary=False, write_page_checksum=True)
    return path


def _found(path: Path, *, checked: bool) -> list[int]:
    probe, sink = pa.table({"k0": pa.array([_KEY], pa.int32())}), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, probe.schema) as writer:
        writer.write_table(probe)
    item = LocateItem(
        work=0,
        table_uri=f"file://{path.parent}",
        path=path.name,
        rows=_ROWS,
        deletion_vector=None,
        key=("id",),
        probe=Payload(stream=sink.getvalue().to_pybytes()),
        multiset=False,
        checked=checked,
    )
    return [int(position) for position in locate(item).position]


def _a_page(content: bytearray) -> None:
    content[20:220] = bytes(255 - byte for byte in content[20:220])


def _the_head(content: bytearray) -> None:
    content[:16] = bytes(255 - byte for byte in content[:16])


def _the_footer(content: bytearray) -> None:
    content[-300:-100] = bytes(255 - byte for byte in content[-300:-100])


def _the_end(content: bytearray) -> None:
    del content[len(content) // 2 :]


@pytest.mark.parametrize("checked", [False, True])
@pytest.mark.parametrize("damage", [_a_page, _the_head, _the_footer, _the_end])
def test_a_damaged_file_is_named(
    tmp_path: Path, damage: Callable[[bytearray], None], checked: bool
) -> None:
    path = _file(tmp_path)
    assert _found(path, checked=checked) == [0]
    content = bytearray(path.read_bytes())
    damage(content)
    path.write_bytes(content)
    with pytest.raises(StorageError) as told:
        _found(path, checked=checked)
    assert told.value.sqlstate == "XX001"
    assert str(path) in told.value.message
    assert told.value.hint == "The file is damaged: put it back from a copy."


def test_one_bit_of_a_key_is_damage_once_its_row_is_not_found(tmp_path: Path) -> None:
    path = _file(tmp_path)
    content = bytearray(path.read_bytes())
    content[bytes(content).index(_KEY.to_bytes(4, "little"))] ^= 1
    path.write_bytes(content)
    assert _found(path, checked=False) == []
    with pytest.raises(StorageError, match="CRC checksum verification failed"):
        _found(path, checked=True)


def test_whatever_is_wrong_with_the_head_of_a_page_is_damage(tmp_path: Path) -> None:
    """Arrow has many words for it. An error that passes by itself would be tried again for ever."""
    path = _file(tmp_path)
    sound = path.read_bytes()
    told = Counter[str]()
    for at in range(4, 40):
        for bit in (1, 2, 4, 16, 64, 128):
            content = bytearray(sound)
            content[at] ^= bit
            path.write_bytes(content)
            try:
                _found(path, checked=True)
            except StorageError as error:
                told[error.sqlstate] += 1
    assert told.keys() == {"XX001"}, told
