"""A piece holds its messages in order, however they come and wherever it is divided."""

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.civil import EPOCH_MICROSECONDS
from penstock.errors import ProtocolViolation
from penstock.lsn import INVALID
from penstock.pgoutput.columnar import MessageChunk
from penstock.subscription.inbox import Piece

HEADER = b"w" + bytes(24)
HIGH = 1 << 63
"""LSNs use all 64 bits."""


def commit(number: int) -> bytes:
    lsn = HIGH + 100 * number
    return b"C" + struct.pack("!BQQq", 0, lsn - 1, lsn, number)


@st.composite
def messages(draw: st.DrawFn) -> list[bytes]:
    sizes = draw(st.lists(st.integers(0, 40) | st.just(-1) | st.just(70_000), max_size=40))
    return [commit(n) if size < 0 else b"I" + bytes([n]) * size for n, size in enumerate(sizes)]


def chunk_of(given_messages: list[bytes], *, framed: bool) -> MessageChunk:
    if framed:
        return MessageChunk.from_copy_data([HEADER + message for message in given_messages])
    return MessageChunk.of_messages(given_messages)


def piece_of(given_messages: list[bytes], cuts: list[int]) -> Piece:
    """Some of its parts have headers in their buffers, some not."""
    piece, begin = Piece(), 0
    for number, end in enumerate([*sorted(cut % 41 for cut in cuts), len(given_messages)]):
        piece.add(chunk_of(given_messages[begin:end], framed=number % 2 == 0))
        begin = max(begin, end)
    return piece


def held(piece: Piece) -> list[bytes]:
    for chunk in piece.chunks():
        assert int(chunk.ends.max(initial=0)) <= len(chunk.buffer)
    return [message for chunk in piece.chunks() for message in chunk.messages()]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(given_messages=messages(), cuts=st.lists(st.integers(0, 40), max_size=12), data=st.data())
def test_what_is_divided_is_whole_together(
    tmp_path: Path, given_messages: list[bytes], cuts: list[int], data: st.DataObject
) -> None:
    commits = [at for at, message in enumerate(given_messages) if message[:1] == b"C"]
    ends = [HIGH + 100 * at for at in commits]
    piece = piece_of(given_messages, cuts)
    assert held(piece) == given_messages
    assert piece.count == len(given_messages)
    assert piece.transactions == len(commits)
    assert piece.end_lsns.tolist() == ends
    assert piece.finish_lsns.tolist() == [end - 1 for end in ends]
    if not commits:
        assert piece.first_end_lsn == piece.last_end_lsn == INVALID
        piece.spill(tmp_path)
        assert held(piece) == given_messages
        piece.forget()
        assert not list(tmp_path.iterdir())
        return
    assert (piece.first_end_lsn, piece.last_end_lsn) == (ends[0], ends[-1])
    assert piece.last_commit_time == commits[-1] + EPOCH_MICROSECONDS
    limit = data.draw(st.integers(HIGH, HIGH + 4100))
    assert piece.ending_upto(type(INVALID)(limit)) == sum(end <= limit for end in ends)
    number = data.draw(st.integers(1, len(commits)))
    rest = piece.cut_after(number)
    assert held(piece) == given_messages[: commits[number - 1] + 1]
    assert held(rest) == given_messages[commits[number - 1] + 1 :]
    assert (piece.transactions, rest.transactions) == (number, len(commits) - number)
    assert piece.count + rest.count == len(given_messages)
    assert rest.size <= sum(map(len, held(rest))) + 64 * (rest.count + 1)
    piece.absorb(rest)
    assert held(piece) == given_messages
    assert piece.end_lsns.tolist() == ends


def test_messages_that_come_one_by_one_are_few_parts() -> None:
    piece = Piece()
    for number in range(5000):
        piece.add(MessageChunk.of_messages([b"I" + bytes(number % 90)]))
    assert len(piece.parts) < 20
    assert piece.count == 5000


@pytest.mark.parametrize("framed", [False, True])
@pytest.mark.parametrize("length", range(1, 26))
def test_a_commit_that_is_cut_off_is_refused(length: int, framed: bool) -> None:
    with pytest.raises(ProtocolViolation, match="insufficient data left in message"):
        Piece().add(chunk_of([b"I", commit(1)[:length]], framed=framed))


def test_an_empty_message_is_refused() -> None:
    for framed in (False, True):
        with pytest.raises(ProtocolViolation, match="insufficient data left in message"):
            chunk_of([b"I", b""], framed=framed)
