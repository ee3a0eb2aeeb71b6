"""Codes and indexes of keys, compared with looking at every row."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults.heavy import HEAVY
from penstock.pgtypes import pg_type
from penstock.pipeline.key_codes import KeyCodes, encode, kinds
from penstock.pipeline.key_index import DamagedIndex, FileIndex, IndexItem, build, build_bytes

_TEXT = st.text(st.sampled_from("ab\0é'"), max_size=4)
_UUID = pa.large_string()
"""Stands for a column that the publisher has as uuid."""
_FEW = [str(UUID(int=number)) for number in (0, 1, 1 << 64, (1 << 128) - 1)]
_VALUES = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(0, 3),
    pa.int16(): st.integers(-2, 2),
    pa.string(): _TEXT,
    _UUID: st.uuids().map(str) | st.sampled_from(_FEW),
    pa.date32(): st.dates(date(1, 1, 1), date(9999, 12, 31)),
    pa.timestamp("us"): st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)),
    pa.timestamp("us", "UTC"): st.datetimes(
        datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)
    ),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    """Keys of a file, and keys that are looked for, some of them the same; with NULLs."""
    types = draw(st.lists(st.sampled_from(list(_VALUES)), min_size=1, max_size=3))
    row = st.tuples(*(st.none() | _VALUES[type] for type in types))
    held = draw(st.lists(row, max_size=12))
    wanted = draw(st.lists(row | st.sampled_from(held) if held else row, max_size=8))
    return _table(held, types), _table(wanted, types)


def _table(rows: list[tuple[object, ...]], types: list[pa.DataType]) -> pa.Table:
    columns = [pa.array([row[i] for row in rows], type) for i, type in enumerate(types)]
    return pa.table({f"k{i}": column for i, column in enumerate(columns)})


def _codes(keys: pa.Table) -> KeyCodes:
    types = [(type, pg_type.UUID if type == _UUID else 0) for type in keys.schema.types]
    compared = kinds(types)
    assert compared is not None
    codes = encode(keys.columns, compared)
    assert codes is not None
    return codes


@given(tables())
def test_finds_what_a_look_at_each_row_finds(given: tuple[pa.Table, pa.Table]) -> None:
    held, wanted = (list(zip(*t.to_pydict().values(), strict=True)) for t in given)
    hits = FileIndex.of(_codes(given[0])).find(_codes(given[1]).in_order())
    found = sorted(zip(hits.position.tolist(), hits.probe.tolist(), strict=True))
    assert found == [
        (position, probe)
        for position, key in enumerate(held)
        for probe, other in enumerate(wanted)
        if None not in key and key == other
    ]
    assert (np.diff(hits.position) >= 0).all()


def test_integers_of_all_widths_have_the_same_codes() -> None:
    """A column that was made wider is looked for with wider keys than its old files hold."""
    narrow, wide = (pa.chunked_array([pa.array([1, -2], type)]) for type in (pa.int8(), pa.int64()))
    text = pa.chunked_array([["a", "b"]])
    for columns in ([], [text]):
        one, other = (
            _codes(pa.table([c, *columns], ["a", "b"][: 1 + len(columns)])) for c in (narrow, wide)
        )
        assert one.first.tolist() == other.first.tolist()


@pytest.mark.parametrize(
    "type",
    [pa.float64(), pa.decimal128(10, 2), pa.bool_(), pa.timestamp("ns"), pa.list_(pa.int8())],
)
def test_types_without_codes(type: pa.DataType) -> None:
    assert kinds([(pa.int32(), 0), (type, 0)]) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00000000-0000-0000-0000-00000000000",
        "00000000-0000-0000-0000-0000000000000",
        "00000000000000000000000000000000",
        "0000000-00000-0000-0000-000000000000",
        "00000000-0000-0000-0000-00000000000g",
        "A0000000-0000-0000-0000-000000000000",
    ],
)
def test_what_is_no_uuid_as_a_server_writes_it(text: str) -> None:
    for column in ([text], [_FEW[0], text], [None, text, _FEW[1]]):
        assert encode([pa.chunked_array([pa.array(column, pa.string())])], ["uuid"]) is None


def test_uuids_in_pieces() -> None:
    whole = pa.chunked_array([pa.array(["x", *_FEW]).slice(1, 2), pa.array(_FEW).slice(2)])
    codes = encode([whole], ["uuid"])
    assert codes is not None and codes.second is not None
    both = np.stack([codes.first, codes.second], axis=1)
    assert [UUID(bytes=row.tobytes()) for row in both] == list(map(UUID, _FEW))


@pytest.fixture
def item(tmp_path: Path) -> IndexItem:
    keys = pa.table({"b": ["x", "y", "z"], "v": [1.0, 2.0, 3.0], "a": pa.array([3, 1, 2])})
    pq.write_table(keys, tmp_path / "f.parquet")
    return IndexItem(f"file://{tmp_path}", "f.parquet", 3, ("a", "b"), ("integer", "text"))


def test_as_bytes(item: IndexItem) -> None:
    (content,) = build_bytes(item)
    index = FileIndex.from_buffer(np.frombuffer(content, np.uint8), item)
    assert index is not None
    wanted = pa.table({"a": [2, 2, 3], "b": ["z", "x", "x"]})
    hits = index.find(_codes(wanted).in_order())
    assert (hits.position.tolist(), hits.probe.tolist()) == ([0, 2], [2, 0])


def test_damaged_bytes_are_no_index(item: IndexItem) -> None:
    (content,) = build_bytes(item)
    for at in range(len(content)):
        cut = np.frombuffer(content[:at], np.uint8)
        other = np.frombuffer(content, np.uint8).copy()
        other[at] ^= 1
        assert FileIndex.from_buffer(cut, item) is None, at
        assert FileIndex.from_buffer(other, item) is None, at


def test_an_index_of_something_else(item: IndexItem) -> None:
    (content,) = build_bytes(item)
    for other in (
        replace(item, path="g.parquet"),
        replace(item, rows=4),
        replace(item, key=("b", "a")),
        replace(item, kinds=("integer", "integer")),
    ):
        assert FileIndex.from_buffer(np.frombuffer(content, np.uint8), other) is None


def test_files_that_hold_something_else_than_was_thought(item: IndexItem) -> None:
    for other in (
        replace(item, rows=4),
        replace(item, key=("a", "c")),
        replace(item, key=("a", "v")),
        replace(item, kinds=("integer", "integer")),
    ):
        assert build(other) is None


def _uuids(first: int, seconds: range) -> list[str]:
    return [str(UUID(int=(first << 64) | second)) for second in seconds]


@pytest.mark.parametrize(
    ("kind", "held", "missing"),
    [
        ("integer", sorted({n * n % 397 for n in range(150)}), [1 << 40, -1]),
        ("text", [f"key {n * 7 % 151:03}" for n in range(120)], ["key zzz", "key 00x"]),
        # more than a block of equal first codes, which damage of one bit makes one more of
        (
            "uuid",
            _uuids(1, range(127)) + _uuids(0x101, range(200, 260)),
            _uuids(1, range(200, 202)),
        ),
    ],
)
def test_damage_after_the_mapping_never_gives_other_rows(
    kind: str, held: list[object], missing: list[object]
) -> None:
    """Whichever byte it is: a search says so, or finds the right rows, for one key as for many."""

    def codes(keys: list[object]) -> KeyCodes:
        found = encode([pa.chunked_array([keys])], [kind])
        assert found is not None
        return found.in_order()

    item = IndexItem("file:///t", "f", len(held), ("k",), (kind,))
    content = np.frombuffer(bytearray(FileIndex.of(codes(held)).to_bytes(item)), np.uint8)
    index = FileIndex.from_buffer(content, item)
    assert index is not None
    some = [*held[::7], held[0], held[-1]]
    wanted = [codes(keys) for keys in (some, missing, [held[3]], [held[-1]], missing[:1])]
    right = [index.find(keys) for keys in wanted]
    assert [len(each.position) for each in right] == [len(some), 0, 1, 1, 0]
    noticed, step = 0, 1 if HEAVY else 5
    for at in range(len(item.header()), len(content) - 4, step):
        content[at] ^= 1 << at % 8
        for keys, expected in zip(wanted, right, strict=True):
            try:
                found = index.find(keys)
            except DamagedIndex:
                noticed += 1
                continue
            assert found.position.tolist() == expected.position.tolist(), at
            assert found.probe.tolist() == expected.probe.tolist(), at
        content[at] ^= 1 << at % 8
    assert noticed * step > len(content) / 4
