"""The inbox hands out whole transactions, in order, each frame once, within its memory."""

import struct
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.lsn import Lsn
from penstock.pgoutput.columnar import XLOGDATA_HEADER, MessageChunk
from penstock.subscription.inbox import BACKLOG_BYTES, Inbox

HEADER = b"w" + bytes(24)


def row(size: int) -> bytes:
    return HEADER + b"I" + bytes(size)


def commit(end_lsn: int) -> bytes:
    return HEADER + b"C" + struct.pack("!BQQq", 0, end_lsn - 1, end_lsn, 7)


def transactions(sizes: list[list[int]]) -> list[bytes]:
    frames = []
    for number, rows in enumerate(sizes):
        frames += [row(size) for size in rows]
        frames.append(commit(100 * (number + 1)))
    return frames


def frames_of(batch: object) -> list[bytes]:
    frames: list[bytes] = []
    for piece in batch.pieces:  # type: ignore[attr-defined]
        for chunk in piece.chunks():
            frames += [HEADER + message for message in chunk.messages()]
    return frames


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 60), max_size=12), min_size=1, max_size=12),
    steps=st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=40),
    piece_bytes=st.integers(30, 400),
    memory_bytes=st.integers(30, 900),
)
def test_every_frame_comes_out_once_in_whole_transactions(
    tmp_path: Path,
    sizes: list[list[int]],
    steps: list[tuple[int, bool]],
    piece_bytes: int,
    memory_bytes: int,
) -> None:
    inbox = Inbox(tmp_path, piece_bytes=piece_bytes, piece_frames=5, memory_bytes=memory_bytes)
    frames = transactions(sizes)
    waiting, out = list(frames), []
    for count, take in steps:
        inbox.add(waiting[:count], 0.0)
        del waiting[:count]
        batch = inbox.take(0.0) if take else None
        if batch is not None:
            taken = frames_of(batch)
            assert taken[-1][XLOGDATA_HEADER] == ord("C")
            assert batch.end_lsn == struct.unpack_from("!Q", taken[-1], XLOGDATA_HEADER + 10)[0]
            assert batch.frames == len(taken)
            out += taken
            batch.forget()
    inbox.add(waiting, 0.0)
    while (batch := inbox.take(0.0)) is not None:
        out += frames_of(batch)
        batch.forget()
    assert out == frames
    assert inbox.empty()
    assert not list(tmp_path.iterdir())


def test_a_transaction_larger_than_memory_is_spilled_and_comes_back_in_pieces(
    tmp_path: Path,
) -> None:
    inbox = Inbox(tmp_path, piece_bytes=1000, piece_frames=10_000, memory_bytes=3000)
    frames = transactions([[100] * 200])
    for frame in frames:
        inbox.add([frame], 0.0)
        assert not inbox.full() or frame is frames[-1]
    assert list(tmp_path.glob("spill-*"))
    batch = inbox.take(0.0)
    assert batch is not None
    assert len(batch.pieces) > 10
    assert frames_of(batch) == frames
    assert batch.open_end_lsn(0) == batch.end_lsn == 100
    batch.forget()
    assert not list(tmp_path.iterdir())


def test_finished_transactions_beyond_the_memory_pause_the_receiver(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, piece_bytes=10_000, piece_frames=10_000, memory_bytes=500)
    inbox.add(transactions([[300]]), 0.0)
    assert not inbox.full()
    inbox.add(transactions([[300]]), 0.0)
    assert inbox.full()
    assert inbox.take(0.0) is not None
    assert not inbox.full()


def test_a_batch_closes_when_the_stream_is_quiet(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, piece_bytes=10_000, piece_frames=10_000, memory_bytes=5000)
    inbox.add(transactions([[3]]), 0.0)
    assert not inbox.ready(0.1, delay=0.2, backlog_delay=2.0)
    inbox.quiet()
    assert inbox.ready(0.1, delay=0.2, backlog_delay=2.0)
    inbox.add(transactions([[3]]), 0.1)
    assert not inbox.ready(0.1, delay=0.2, backlog_delay=2.0)


def test_a_batch_closes_after_the_delay_on_a_stream_that_is_never_idle(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, piece_bytes=10_000, piece_frames=10_000, memory_bytes=5000)
    for tick in range(10):
        inbox.add(transactions([[3]]), tick * 0.03)
        assert inbox.ready(tick * 0.03, delay=0.2, backlog_delay=2.0) is (tick * 0.03 >= 0.2)


def test_a_batch_closes_when_nothing_more_may_come(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, piece_bytes=10_000, piece_frames=10_000, memory_bytes=500)
    inbox.add(transactions([[300]]), 0.0)
    assert not inbox.ready(0.1, delay=5.0, backlog_delay=5.0)
    inbox.add(transactions([[300]]), 0.0)
    assert inbox.full()
    assert inbox.ready(0.1, delay=5.0, backlog_delay=5.0)


def test_clear_forgets_spilled_pieces_too(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, piece_bytes=100, piece_frames=100, memory_bytes=300)
    for _ in range(50):
        inbox.add([row(50)], 0.0)
    assert list(tmp_path.glob("spill-*"))
    inbox.clear()
    assert inbox.empty()
    assert not list(tmp_path.iterdir())


def test_a_fast_stream_fills_a_batch_for_longer(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path, piece_bytes=64 << 20, piece_frames=10_000, memory_bytes=1 << 30)
    inbox.add(transactions([[BACKLOG_BYTES]]), 0.0)
    inbox.add(transactions([[3]]), 1.99)
    assert not inbox.ready(1.99, delay=0.2, backlog_delay=2.0)
    assert inbox.ready(2.0, delay=0.2, backlog_delay=2.0)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 60), max_size=12), min_size=1, max_size=12),
    upto=st.integers(0, 1400),
    piece_bytes=st.integers(30, 400),
    memory_bytes=st.integers(30, 900),
)
def test_a_batch_that_is_made_again_ends_where_it_did(
    tmp_path: Path, sizes: list[list[int]], upto: int, piece_bytes: int, memory_bytes: int
) -> None:
    inbox = Inbox(tmp_path, piece_bytes=piece_bytes, piece_frames=5, memory_bytes=memory_bytes)
    inbox.gather(True)
    frames = transactions(sizes)
    for frame in frames:
        assert not inbox.full()
        inbox.add([frame], 0.0)
    inbox.gather(False)
    out = []
    batch = inbox.take_upto(Lsn(upto), 0.0)
    assert (batch is None) == (upto < 100)
    if batch is not None:
        out += frames_of(batch)
        assert batch.end_lsn == upto
        assert batch.transactions == min(len(sizes), upto // 100)
        ends = [end for piece in batch.pieces for end in piece.end_lsns.tolist()]
        for number in range(len(batch.pieces)):
            done = sum(p.transactions for p in batch.pieces[: number + 1])
            assert batch.open_end_lsn(number) == (ends[done] if done < len(ends) else upto)
        batch.forget()
    while (batch := inbox.take(0.0)) is not None:
        out += frames_of(batch)
        batch.forget()
    assert out == frames
    assert inbox.empty()
    assert not list(tmp_path.iterdir())


def test_limits_that_change_while_messages_are_taken(tmp_path: Path) -> None:
    """A reload of the parameters, in another thread."""
    for other in (3, 30):
        frames = transactions([[number] * 9 for number in range(10)])

        class Reloaded(Inbox):
            def _append(self, chunk: MessageChunk, other: int = other) -> None:
                super()._append(chunk)
                self.limit(1 << 20, other, 1 << 20)

        inbox = Reloaded(tmp_path, piece_bytes=1 << 20, piece_frames=7, memory_bytes=1 << 20)
        inbox.add(frames, 0.0)
        out = []
        while (batch := inbox.take(0.0)) is not None:
            out += frames_of(batch)
        assert out == frames
