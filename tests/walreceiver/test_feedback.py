from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ConnectionFailure
from penstock.lsn import Lsn
from penstock.walreceiver.stream import Feedback, Status


def feedback(**settings: float) -> Feedback:
    return Feedback(0.0, start=Lsn(100), **settings)


def test_pending_frames_hold_the_flush_position_at_the_last_cut() -> None:
    f = feedback()
    f.arrived(1.0, Lsn(150), frames=3)
    f.arrived(1.0, Lsn(900))  # keepalive
    assert f.flush_lsn == 100
    f.confirm(Lsn(140), 2)
    assert f.flush_lsn == 140
    f.confirm(Lsn(150), 3)
    assert f.flush_lsn == 900, "nothing pending: what was received last"


def test_hold_stops_an_idle_stream_too() -> None:
    f = feedback()
    f.hold(Lsn(120))
    f.arrived(1.0, Lsn(900))
    assert f.flush_lsn == 120
    f.hold(None)
    assert f.flush_lsn == 900


def test_told_flush_position_never_goes_back() -> None:
    f = feedback()
    f.arrived(1.0, Lsn(900))
    status = f.due(1.0)
    assert status == Status(Lsn(900), Lsn(900), Lsn(900))
    f.sent(1.0, status)
    f.arrived(2.0, Lsn(950), frames=1)
    status = f.due(2.0)
    assert status == Status(Lsn(950), Lsn(900), Lsn(900))


def test_status_when_moved_asked_or_after_the_interval() -> None:
    f = feedback(status_interval_s=10)
    f.sent(0.0, Status(Lsn(100), Lsn(100), Lsn(100)))
    assert f.due(9.9) is None
    assert f.due(10.0) is not None
    assert f.wake_in(4.0) == 6.0
    f.asked()
    assert f.due(1.0) is not None
    f.sent(1.0, Status(Lsn(100), Lsn(100), Lsn(100)))
    assert f.due(1.0) is None
    f.arrived(1.0, Lsn(101))
    assert f.due(1.0) is not None


def test_interval_zero_sends_only_when_asked() -> None:
    f = feedback(status_interval_s=0, timeout_s=0)
    f.arrived(1.0, Lsn(500))
    assert f.due(1000.0) is None
    assert f.wake_in(1000.0) == float("inf")
    f.asked()
    assert f.due(1000.0) is not None


def test_heartbeat_outruns_the_interval() -> None:
    f = feedback(status_interval_s=10, heartbeat_s=2)
    f.sent(0.0, Status(Lsn(100), Lsn(100), Lsn(100)))
    assert f.due(1.9) is None
    assert f.due(2.0) is not None


def test_half_of_the_timeout_asks_and_the_whole_ends() -> None:
    f = feedback(timeout_s=60, status_interval_s=1000)
    f.sent(0.0, Status(Lsn(100), Lsn(100), Lsn(100)))
    f.listens(0.0)
    f.waited(29.0)
    assert f.due(29.0) is None
    f.waited(30.0)
    status = f.due(30.0)
    assert status is not None
    assert status.reply_requested
    f.sent(30.0, status)
    assert f.due(31.0) is None, "asked once only"
    f.waited(59.9)
    with pytest.raises(ConnectionFailure, match="terminating logical replication worker due to"):
        f.waited(60.0)


def test_any_message_ends_the_silence() -> None:
    f = feedback(timeout_s=60)
    f.listens(0.0)
    f.waited(59.0)
    f.arrived(59.0, Lsn(100))
    f.waited(118.0)


def test_a_receiver_that_paused_is_not_a_silent_publisher() -> None:
    f = feedback(timeout_s=60)
    f.listens(0.0)
    f.waited(1.0)
    f.listens(500.0)
    f.waited(501.0)


def test_status_bytes() -> None:
    encoded = Status(Lsn(3), Lsn(2), Lsn(1), True).encode(946_684_800_000_007)
    assert encoded == struct.pack("!cQQQqB", b"r", 3, 2, 1, 7, 1)
    assert len(encoded) == 34


events = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.integers(1, 50), st.integers(1, 5)),
        st.tuples(st.just("keepalive"), st.integers(1, 50), st.just(0)),
        st.tuples(st.just("cut"), st.integers(0, 3), st.just(0)),
    )
)


@given(events)
def test_flush_never_passes_the_last_cut_while_anything_is_pending(
    steps: list[tuple[str, int, int]],
) -> None:
    f = feedback()
    position, ends, covered, told = 100, [100], 0, 0
    frame_ends: list[int] = []
    for kind, number, frames in steps:
        if kind == "cut":
            covered = min(covered + number, len(frame_ends))
            if covered:
                f.confirm(Lsn(frame_ends[covered - 1]), covered)
            continue
        position += number
        f.arrived(0.0, Lsn(position), frames)
        frame_ends += [position] * frames
        ends.append(position)
        pending = covered < len(frame_ends)
        durable = frame_ends[covered - 1] if covered else 100
        assert f.flush_lsn <= (durable if pending else position)
        status = f.due(0.0)
        if status is not None:
            assert status.flush >= told
            if pending:
                assert status.flush <= max(durable, told)
            told = status.flush
            f.sent(0.0, status)
