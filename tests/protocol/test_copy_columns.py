"""Rows of COPY, all at once or one by one: the same messages, which PostgreSQL reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.protocol import copy_columns
from penstock.protocol.copy_columns import (
    BINARY_END,
    binary_copy,
    binary_rows,
    text_rows,
    with_binary_header,
)
from penstock.wire_rows import Column, array_of, fixed, rows_of
from protocol.client_messages import binary_messages, text_messages

CELLS = st.none() | st.binary(max_size=6) | st.text("\\\b\t\n\v\f\rNé.", max_size=6).map(str.encode)
Rows = list[list[bytes | None]]


@st.composite
def tables(draw: st.DrawFn) -> tuple[Rows, list[pa.Array]]:
    width = draw(st.integers(0, 4))
    rows = draw(st.lists(st.lists(CELLS, min_size=width, max_size=width), max_size=6))
    columns = []
    for number in range(width):
        cells = [row[number] for row in rows]
        whole = pa.array([None, b"\t", *cells, b"x"], pa.binary())
        columns.append(
            draw(st.sampled_from([pa.array(cells, pa.binary()), whole.slice(2, len(rows))]))
        )
    return rows, columns


@settings(max_examples=300, deadline=None)
@given(tables())
def test_both_ways_give_the_same(table: tuple[Rows, list[pa.Array]]) -> None:
    rows, columns = table
    assert text_rows(columns, len(rows)) == text_messages(rows)
    assert binary_rows(columns, len(rows)) == binary_messages(rows)


@settings(max_examples=300, deadline=None)
@given(tables(), st.integers(1, 50), st.booleans())
def test_packed_rows_are_the_same_stream(
    table: tuple[Rows, list[pa.Array]], size: int, binary: bool
) -> None:
    rows, columns = table
    encoded = binary_rows if binary else text_rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copy_columns, "_PACKED", size)
        packed = encoded(columns, len(rows), packed=True)
    contents = _contents(packed)
    assert b"".join(contents) == b"".join(_contents(encoded(columns, len(rows))))
    assert all(len(content) == size for content in contents[:-1])


def _contents(messages: bytes) -> list[bytes]:
    """Of CopyData messages."""
    found = []
    while messages:
        assert messages[:1] == b"d"
        end = 1 + int.from_bytes(messages[1:5], "big")
        found.append(messages[5:end])
        messages = messages[end:]
    return found


def test_every_byte_of_a_text() -> None:
    cells: Sequence[bytes | None] = [bytes([byte]) * 2 for byte in range(256)] + [b"", None]
    assert text_rows([pa.array(cells, pa.binary())], len(cells)) == text_messages(
        [[cell] for cell in cells]
    )


@pytest.mark.parametrize("portions", [[], [0], [2], [0, 1, 2]])
def test_a_binary_copy_has_one_header_and_one_trailer(portions: list[int]) -> None:
    """In front of the first message, wherever it is."""
    rows = [[[b"x"]] * count for count in portions]
    made = binary_copy((len(portion), binary_messages(portion)) for portion in rows)
    whole = b"".join(messages for _, messages in made)
    expected = b"".join(map(binary_messages, rows))
    assert whole == with_binary_header(expected + BINARY_END)


@pytest.mark.parametrize("rows", [0, 3])
def test_tables_without_columns(rows: int) -> None:
    assert text_rows([], rows) == text_messages([[]] * rows)
    assert binary_rows([], rows) == binary_messages([[]] * rows)


def test_pieces_of_rows() -> None:
    cells = pa.array([b"ab", None, b"", b"c"], pa.binary())
    column = Column(cells, null=b"n", kind=b"t", counted=True)
    rows = [b"<t\0\0\0\2ab>", b"<n>", b"<t\0\0\0\0>", b"<t\0\0\0\1c>"]
    assert array_of([b"<", column, b">"], 4).to_pylist() == rows
    data, ends = rows_of([b"<", column, b">"], 4)
    assert data.tobytes() == b"".join(rows)
    assert ends.tolist() == [9, 12, 19, 27]
    some = replace(column, cells=cells.slice(1, 2))
    assert rows_of([some], 2)[0].tobytes() == b"nt\0\0\0\0"
    assert rows_of([], 0)[0].tobytes() == b""
    assert len(fixed(np.arange(4, dtype=np.uint8).reshape(2, 2))) == 2
