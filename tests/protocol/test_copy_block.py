"""Rows of a binary copy that are looked at together are those that lie there one by one."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.cells import Cells
from penstock.errors import ProtocolViolation
from penstock.protocol.copy_block import CopyBlock, block_of, file_header, whole_rows
from penstock.protocol.copy_columns import BINARY_HEADER

Row = list[bytes | None]

LOOKS_LIKE_A_ROW = b"d\0\0\0\x0b\0\1\0\0\0\1x"
"""The message of a row of one field; the same with two fields follows."""
LOOKS_LIKE_TWO_FIELDS = b"d\0\0\0\x0e\0\2\xff\xff\xff\xff\xff\xff\xff\xff"
VALUES = st.one_of(
    st.none(),
    st.binary(max_size=8),
    st.sampled_from([LOOKS_LIKE_A_ROW, LOOKS_LIKE_A_ROW * 3, LOOKS_LIKE_TWO_FIELDS, b"d", b"dd"]),
    st.builds(lambda a, b: a + LOOKS_LIKE_A_ROW[:b], st.binary(max_size=3), st.integers(0, 12)),
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[int, list[Row]]:
    fields = draw(st.integers(1, 3))
    row = st.lists(VALUES, min_size=fields, max_size=fields)
    return fields, draw(st.lists(row, max_size=8))


def contents(row: Row) -> bytes:
    parts = [struct.pack("!h", len(row))]
    for value in row:
        parts.append(struct.pack("!i", -1 if value is None else len(value)) + (value or b""))
    return b"".join(parts)


def message(body: bytes, kind: bytes = b"d") -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def read(block: CopyBlock, fields: int) -> list[Row]:
    columns = block.cells(fields)
    return [[column.raw(index) for column in columns] for index in range(len(block))]


def joined(rows: list[bytes]) -> CopyBlock:
    return block_of(b"".join(rows), [len(row) for row in rows])


def as_bytes(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


@given(tables(), st.integers(0, 5))
@example((1, [[LOOKS_LIKE_A_ROW * 2], [LOOKS_LIKE_A_ROW]]), 0)
def test_rows_up_to_each_length(table: tuple[int, list[Row]], before: int) -> None:
    fields, rows = table
    stream, ends = b"x" * before, [before]
    for row in rows:
        stream += message(contents(row))
        ends.append(len(stream))
    for end in range(before, len(stream) + 1):
        block = whole_rows(as_bytes(stream), before, end, fields)
        whole = sum(e <= end for e in ends) - 1
        assert read(block, fields) == rows[:whole]
        assert before + (block.end[-1] if len(block) else 0) == ends[whole]


@given(tables())
def test_rows_of_messages(table: tuple[int, list[Row]]) -> None:
    fields, rows = table
    assert read(joined([contents(row) for row in rows]), fields) == rows


@given(tables(), st.sampled_from([b"c", b"N", b"E", b"d", b"Z"]), st.binary(max_size=9))
def test_they_end_before_what_is_no_row(
    table: tuple[int, list[Row]], kind: bytes, body: bytes
) -> None:
    fields, rows = table
    other = message(b"\xff" + body, kind)
    stream = b"".join(map(message, map(contents, rows))) + other
    stream += b"".join(map(message, map(contents, rows)))
    block = whole_rows(as_bytes(stream), 0, len(stream), fields)
    assert read(block, fields) == rows


@given(tables(), st.data())
def test_what_is_torn_is_refused(table: tuple[int, list[Row]], data: st.DataObject) -> None:
    fields, rows = table
    if not rows:
        return
    torn = bytearray(contents(rows[0]))
    at = data.draw(st.integers(0, len(torn) - 1))
    cut = data.draw(
        st.sampled_from([torn[:at], torn + b"\0", torn[:at] + b"\x7f" + torn[at + 1 :]])
    )
    block = joined([bytes(cut), *map(contents, rows[1:])])
    try:
        found = read(block, fields)
    except ProtocolViolation:
        return
    assert len(cut) == len(torn), "only a value may have changed"
    assert contents(found[0]) == bytes(cut)


@pytest.mark.parametrize("length", [-2, -(2**31), 2**31 - 1])
def test_lengths_that_cannot_be(length: int) -> None:
    with pytest.raises(ProtocolViolation, match="do not fill"):
        joined([b"\0\1" + struct.pack("!i", length) + b"abcd"]).cells(1)


def test_no_rows_have_no_cells() -> None:
    (cells,) = joined([]).cells(1)
    assert isinstance(cells, Cells) and len(cells) == 0
    assert len(whole_rows(np.zeros(0, np.uint8), 0, 0, 1)) == 0


def test_the_header() -> None:
    for size in range(len(BINARY_HEADER)):
        assert file_header(BINARY_HEADER[:size]) is None
    assert file_header(BINARY_HEADER) == len(BINARY_HEADER)
    longer = BINARY_HEADER[:-1] + b"\2"
    assert file_header(longer) is None and file_header(longer + b"ab\0\1") == len(longer) + 2
    assert file_header(BINARY_HEADER[:11] + b"\0\0\xff\xff\0\0\0\0") == len(BINARY_HEADER)
    for wrong in (b"X" + BINARY_HEADER[1:], BINARY_HEADER[:11] + b"\0\1\0\0\0\0\0\0"):
        with pytest.raises(ProtocolViolation, match="COPY file"):
            file_header(wrong)
