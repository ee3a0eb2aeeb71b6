"""Where a worker ends its batches because somebody wants a cut there, and for how long."""

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.catalog.pg_subscription import CutRequest
from penstock.lsn import INVALID, Lsn
from penstock.subscription.cut_requests import LONGEST_HOLD_S, RequestedCuts
from penstock.subscription.inbox import Inbox
from subscription.test_inbox import frames_of, transactions


class Catalog:
    """Requests and a change counter; counts how often the rows are read."""

    def __init__(self) -> None:
        self.rows: list[CutRequest] = []
        self.counter = self.reads = 0

    def put(self, *rows: CutRequest) -> None:
        self.rows, self.counter = list(rows), self.counter + 1

    def read(self) -> list[CutRequest]:
        self.reads += 1
        return self.rows

    def forget(self, request_id: str) -> None:
        self.put(*(row for row in self.rows if row.id != request_id))


def requested(catalog: Catalog) -> RequestedCuts:
    return RequestedCuts(lambda: catalog.counter, catalog.read, catalog.forget)


def request(name: str, lsn: int) -> CutRequest:
    return CutRequest(name, 1, Lsn(lsn))


def test_the_first_wanted_position_is_the_limit_until_it_goes() -> None:
    catalog = Catalog()
    cuts = requested(catalog)
    assert cuts.limit(0.0) is None
    assert cuts.limit(1.0) is None
    assert catalog.reads == 1, "nothing has changed since"
    catalog.put(request("a", 300), request("b", 200))
    assert cuts.limit(2.0) == 200
    catalog.put(request("a", 300), request("b", 400))
    assert cuts.limit(3.0) == 300
    catalog.put()
    assert cuts.limit(4.0) is None


def test_it_is_looked_for_now_and_then_and_often_while_there_is_one() -> None:
    catalog = Catalog()
    cuts = requested(catalog)
    assert cuts.due(0.0)
    cuts.limit(0.0)
    assert not cuts.due(0.1)
    assert cuts.due(0.3)
    catalog.put(request("a", 300))
    cuts.limit(0.4)
    assert cuts.due(0.4)


def test_a_request_whose_asker_is_gone_holds_the_worker_for_a_minute() -> None:
    catalog = Catalog()
    cuts = requested(catalog)
    catalog.put(request("dead", 200))
    assert cuts.limit(0.0) == 200
    assert cuts.limit(10 * LONGEST_HOLD_S) == 200, "it has held nothing up so far"
    start = 10 * LONGEST_HOLD_S
    cuts.reached(Lsn(200), start)
    catalog.put(*catalog.rows)  # any other change of the catalog
    assert cuts.limit(start + LONGEST_HOLD_S) == 200
    assert cuts.limit(start + LONGEST_HOLD_S + 1) is None
    assert catalog.rows == []


def test_a_request_that_moves_on_is_waited_for_again() -> None:
    catalog = Catalog()
    cuts = requested(catalog)
    catalog.put(request("a", 200))
    cuts.limit(0.0)
    cuts.reached(Lsn(200), 0.0)
    catalog.put(request("a", 300))
    assert cuts.limit(LONGEST_HOLD_S + 1) == 300


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    sizes=st.lists(st.lists(st.integers(0, 60), max_size=12), min_size=1, max_size=12),
    limit=st.integers(0, 13).map(lambda number: 100 * number + 50),
    piece_bytes=st.integers(30, 400),
    memory_bytes=st.integers(30, 900),
)
def test_no_batch_reaches_beyond_a_limit_and_none_before_it_is_left(
    tmp_path: Path, sizes: list[list[int]], limit: int, piece_bytes: int, memory_bytes: int
) -> None:
    inbox = Inbox(tmp_path, piece_bytes=piece_bytes, piece_frames=5, memory_bytes=memory_bytes)
    frames = transactions(sizes)
    inbox.add(frames, 0.0)
    assert inbox.newest_end_lsn() == 100 * len(sizes)
    out = []
    while (batch := inbox.take(0.0, Lsn(limit))) is not None:
        assert batch.end_lsn <= limit
        out += frames_of(batch)
        batch.forget()
    assert not inbox.has_upto(Lsn(limit))
    assert out == transactions(sizes[: limit // 100])
    while (batch := inbox.take(0.0)) is not None:
        out += frames_of(batch)
        batch.forget()
    assert out == frames
    assert inbox.newest_end_lsn() == INVALID
