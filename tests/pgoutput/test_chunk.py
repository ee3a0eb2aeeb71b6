"""Messages are the same from whatever memory they come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.cells import Cells
from penstock.errors import ProtocolViolation
from penstock.pgoutput.columnar import MessageChunk

MESSAGES = st.lists(st.binary(min_size=1, max_size=20), max_size=8)


def cells_of(messages: list[bytes], between: bytes) -> Cells:
    """Messages with something around each."""
    buffer, start = bytearray(between), []
    for message in messages:
        start.append(len(buffer))
        buffer += message + between
    lengths = np.array([len(message) for message in messages], np.int32)
    return Cells(np.frombuffer(bytes(buffer), np.uint8), np.array(start, np.int32), lengths)


@given(MESSAGES, st.binary(max_size=5))
def test_of_cells(messages: list[bytes], between: bytes) -> None:
    chunk = MessageChunk.of_cells(cells_of(messages, between))
    assert list(chunk.messages()) == messages == list(MessageChunk.of_messages(messages).messages())
    assert len(chunk.buffer) == (int(chunk.ends[-1]) if messages else 0)


@given(MESSAGES, MESSAGES, st.binary(max_size=5))
def test_joined(one: list[bytes], other: list[bytes], between: bytes) -> None:
    parts = [MessageChunk.of_cells(cells_of(one, between)), MessageChunk.of_messages(other)]
    assert list(MessageChunk.joined(parts).messages()) == [*one, *other]


def test_none_is_empty_or_null() -> None:
    with pytest.raises(ProtocolViolation):
        MessageChunk.of_cells(cells_of([b"a", b""], b"-"))
    lie = cells_of([b"a", b"b"], b"-")
    with pytest.raises(ProtocolViolation):
        MessageChunk.of_cells(Cells(lie.buffer, lie.start, lie.length, np.array([False, True])))
