"""One transaction is taken out of a batch, whatever its pieces; SKIP is durable, and once."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.errors import ProtocolViolation, ReplicationConflict
from penstock.lsn import INVALID, Lsn
from penstock.subscription.apply_error import Passing, SkipLsns, Skipping, with_context
from penstock.subscription.inbox import Batch, Inbox
from penstock.subscription.origin import TableProgress

HEADER = b"w" + bytes(24)


def transaction(number: int, messages: str) -> list[bytes]:
    """Begin, a message of each kind, Commit; it finishes at 100 * number, and ends 10 later."""
    begin = HEADER + b"B" + struct.pack("!QqI", 100 * number, 0, number)
    body = [HEADER + kind.encode() + struct.pack("!IB", number, 7) for kind in messages]
    end = struct.pack("!BQQq", 0, 100 * number, 100 * number + 10, 7)
    return [begin, *body, HEADER + b"C" + end]


def whole_batch(tmp_path: Path, frames: Sequence[bytes], piece_frames: int) -> Batch:
    """As pieces of at most so many frames; what is still arriving is spilled."""
    inbox = Inbox(tmp_path, piece_bytes=1 << 20, piece_frames=piece_frames, memory_bytes=200)
    inbox.add(frames, 0.0)
    batch = inbox.take_upto(Lsn(1 << 40), 0.0)
    assert batch is not None
    return batch


def frames_of(batch: Batch) -> list[bytes]:
    chunks = [chunk for piece in batch.pieces for chunk in piece.chunks()]
    return [HEADER + message for chunk in chunks for message in chunk.messages()]


BODIES = st.lists(st.text("IUDTRYM", max_size=9), min_size=1, max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(bodies=BODIES, skipped=st.integers(0, 6), piece_frames=st.integers(1, 8))
def test_its_changes_go_and_nothing_else(
    tmp_path: Path, bodies: list[str], skipped: int, piece_frames: int
) -> None:
    transactions = [transaction(n + 1, body) for n, body in enumerate(bodies)]
    batch = whole_batch(tmp_path, [f for t in transactions for f in t], piece_frames)
    passing, found = Passing(Lsn(100 * skipped)), []
    for piece in batch.pieces:
        for chunk in map(passing.rest, piece.chunks()):
            found += [chunk.buffer[a:b] for a, b in zip(chunk.starts, chunk.ends, strict=True)]
    batch.forget()
    wanted = [
        frame[len(HEADER) :]
        for number, frames in enumerate(transactions, 1)
        for frame in frames
        if number != skipped or frame[len(HEADER)] not in b"IUDT"
    ]
    assert found == wanted


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(bodies=BODIES.filter(lambda b: len(b) > 1), piece_frames=st.integers(1, 8))
def test_halves_are_the_whole(tmp_path: Path, bodies: list[str], piece_frames: int) -> None:
    frames = [f for n, body in enumerate(bodies) for f in transaction(n + 1, body)]
    batch = whole_batch(tmp_path, frames, piece_frames)
    first, second = batch.halves()
    assert frames_of(first) + frames_of(second) == frames
    assert first.transactions == len(bodies) // 2
    assert first.transactions + second.transactions == len(bodies)
    assert first.end_lsn == 100 * first.transactions + 10
    assert second.end_lsn == batch.end_lsn
    assert (first.frames, second.frames) == (len(frames_of(first)), len(frames_of(second)))
    batch.forget()
    second.forget()
    assert not list(tmp_path.glob("*.frames"))


def test_an_error_names_the_only_transaction(tmp_path: Path) -> None:
    rel = SubscriptionRel(5, "public", "a b", SubscriptionRelState.READY, None, "id", relid=7)
    of = "processing remote data for replication origin"
    for messages, during in {"RII": ' during message type "INSERT"', "IU": "", "U": None}.items():
        batch = whole_batch(tmp_path, transaction(7, messages), 100)
        where = None if during is None else rel
        error = with_context(ReplicationConflict("x", hint="Y."), batch, "My s", 5, where)
        assert isinstance(error, ReplicationConflict)
        table = "" if during is None else f'{during} for replication target relation "public.a b"'
        assert error.context == f'{of} "pg_5"{table} in transaction 7, finished at 0/2BC'
        begun = 'ALTER SUBSCRIPTION "My s"'
        skip = f"{begun} SKIP (lsn = '0/2BC'), and then {begun} ENABLE."
        assert error.hint == f"Y. To skip the transaction: {skip}"
        unknown = with_context(KeyError("k"), batch, "s", 5, where)
        assert unknown.__notes__ == [f"CONTEXT:  {error.context}"]


def test_an_error_of_a_broken_message_stays_as_it_is(tmp_path: Path) -> None:
    rel = SubscriptionRel(5, "public", "a", SubscriptionRelState.READY, None, "id", relid=7)
    begin, *rest = transaction(7, "I")
    for broken in ([begin[:-1], *rest], [begin, HEADER + b"I\0", rest[-1]], rest):
        error = ProtocolViolation("insufficient data left in message")
        assert with_context(error, whole_batch(tmp_path, broken, 100), "s", 5, rel) is error


@dataclass
class State:
    """The catalog's."""

    skip: Lsn = INVALID
    skipping: Lsn = INVALID
    changes: int = field(default=0)

    def lsns(self) -> SkipLsns:
        return SkipLsns(
            lambda: self.changes, lambda: (self.skip, self.skipping), self.begin, self.clear
        )

    def alter(self, lsn: int) -> None:
        self.skip, self.changes = Lsn(lsn), self.changes + 1

    def begin(self, lsn: Lsn) -> bool:
        if self.skip != lsn:
            return False
        self.skipping, self.changes = lsn, self.changes + 1
        return True

    def clear(self, lsn: Lsn) -> None:
        self.skip = INVALID if self.skip == lsn else self.skip
        self.skipping = INVALID if self.skipping == lsn else self.skipping
        self.changes += 1


def some(tmp_path: Path, *numbers: int) -> Batch:
    return whole_batch(tmp_path, [f for n in numbers for f in transaction(n, "I")], 100)


def test_what_is_begun_is_skipped_until_a_cut_has_passed_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    state, batch, others = State(), some(tmp_path, 4, 5, 6), some(tmp_path, 4)
    skipping = Skipping("s", state.lsns(), Lsn(200))
    assert skipping.begin(batch, [], Lsn(200)) == INVALID
    state.alter(500)
    assert skipping.begin(others, [], Lsn(200)) == INVALID
    assert skipping.begin(batch, [], Lsn(200)) == 500
    assert state.skipping == 500
    # A crash after one of two tables' commits; SKIP is another by then. It is skipped again.
    state.alter(0)
    ahead = TableProgress(ready=True, marker=Lsn(610))
    again = Skipping("s", state.lsns(), Lsn(200))
    assert again.begin(batch, [ahead], Lsn(200)) == 500
    again.after_cut(Lsn(500), others, changes=True)
    assert state.skipping == 500
    again.after_cut(Lsn(610), batch, changes=True)
    assert (state.skip, state.skipping) == (0, 0)
    # A crash between the cut and this.
    state.alter(500)
    state.begin(Lsn(500))
    Skipping("s", state.lsns(), Lsn(610))
    assert (state.skip, state.skipping) == (0, 0)
    said = "\n".join(caplog.messages)
    assert said.count("logical replication starts skipping transaction at LSN 0/1F4") == 1
    assert said.count("logical replication completed skipping transaction at LSN 0/1F4") == 2
    assert "cleared" not in said


@pytest.mark.parametrize(
    "ahead", [TableProgress(True, Lsn(510)), TableProgress(True, None, half_applied=Lsn(610))]
)
def test_what_some_tables_have_is_not_skipped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ahead: TableProgress
) -> None:
    """They have committed before SKIP came."""
    state = State(skip=Lsn(500))
    skipping = Skipping("s", state.lsns(), Lsn(200))
    assert skipping.begin(some(tmp_path, 4, 5), [ahead], Lsn(200)) == INVALID
    assert (state.skip, state.skipping) == (0, 0)
    assert 'WARNING:  skip-LSN of subscription "s" cleared' in caplog.text


@pytest.mark.parametrize(
    "table",
    [TableProgress(False, Lsn(700)), TableProgress(True, Lsn(150)), TableProgress(True, None)],
)
def test_others_are_no_hindrance(tmp_path: Path, table: TableProgress) -> None:
    state = State(skip=Lsn(500))
    skipping = Skipping("s", state.lsns(), Lsn(200))
    assert skipping.begin(some(tmp_path, 4, 5), [table], Lsn(200)) == 500


def test_skip_is_for_what_comes_next(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state, batch = State(skip=Lsn(999)), some(tmp_path, 4, 5)
    skipping = Skipping("s", state.lsns(), Lsn(200))
    assert skipping.begin(batch, [], Lsn(200)) == INVALID
    skipping.after_cut(Lsn(510), batch, changes=False)
    assert state.skip == 999, "an empty transaction"
    skipping.after_cut(Lsn(510), batch, changes=True)
    assert state.skip == 0
    assert "(LSN) 0/1F4 did not match skip-LSN 0/3E7." in caplog.text
    Skipping("s", State(skip=Lsn(300)).lsns(), Lsn(400))
    assert "The last cut, at LSN 0/190, is after it." in caplog.text
