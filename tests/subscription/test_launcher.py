"""What should run and what runs, compared without any thread."""

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from penstock.catalog.pg_subscription import Subscription
from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.subscription.launcher import Launcher, Plan, WorkerSpec, plan
from penstock.subscription.worker_status import WorkerStatus

SUBSCRIPTION = Subscription(
    oid=16384,
    name="s",
    enabled=True,
    binary=False,
    conninfo="host=a",
    slot_name="s",
    synchronous_commit="off",
    publications=("p",),
    app_id="penstock-1",
)
WANTED = WorkerSpec(SUBSCRIPTION, frozenset({"1"}))


def test_nothing_changes_when_what_runs_is_what_is_wanted() -> None:
    assert plan({16384: WANTED}, {16384: WANTED}) == Plan((), (), ())


def test_a_new_subscription_is_started_and_a_gone_one_stopped() -> None:
    assert plan({}, {16384: WANTED}) == Plan((), (16384,), ())
    assert plan({16384: WANTED}, {}) == Plan((16384,), (), ())


def test_a_changed_definition_stops_the_worker_first() -> None:
    changed = WorkerSpec(replace(SUBSCRIPTION, conninfo="host=b"), WANTED.tables)
    assert plan({16384: WANTED}, {16384: changed}) == Plan((16384,), (), ())


def test_other_tables_are_told_to_the_worker() -> None:
    changed = WorkerSpec(SUBSCRIPTION, frozenset({"1", "2"}))
    assert plan({16384: WANTED}, {16384: changed}) == Plan((), (), (16384,))


class Worker:
    """Runs until it is told to stop."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.alive = True
        self.failures = 0
        self.gave_way_until: float | None = None
        self.others_wait = False

    def start(self) -> None: ...

    def go_on_for(self, earlier: Any) -> None:
        self.failures = earlier.failures

    def stop(self) -> None:
        self.alive = False

    def fails(self, pause: float) -> None:
        """As a worker does, if others wait."""
        self.failures += 1
        if self.others_wait:
            self.gave_way_until = time.monotonic() + pause
            self.alive = False


def test_no_more_workers_than_allowed(caplog: pytest.LogCaptureFixture) -> None:
    wanted = [WorkerSpec(replace(SUBSCRIPTION, oid=oid), frozenset()) for oid in (1, 2, 3)]
    most = 2
    made: list[int] = []

    def look() -> Iterable[WorkerSpec]:
        return wanted

    def make(subscription: Subscription) -> Any:
        made.append(subscription.oid)
        return Worker(subscription)

    launcher = Launcher(look, make, lambda: most)
    with caplog.at_level(logging.WARNING):
        launcher.step()
        launcher.step()
    assert made == [1, 2]
    assert caplog.messages == [
        "WARNING:  out of logical replication worker slots\n"
        'HINT:  You might need to increase "max_logical_replication_workers".'
    ], "once"
    del wanted[0]
    launcher.step()
    launcher.step()
    assert made == [1, 2, 3], "the place of one that has ended"
    wanted.append(WorkerSpec(replace(SUBSCRIPTION, oid=4), frozenset()))
    launcher.step()
    assert len(caplog.messages) == 2, "it is another one that waits"
    most = 3
    launcher.step()
    assert made == [1, 2, 3, 4]


def test_who_takes_turns_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """Also where the next try is due at once."""
    wanted = [WorkerSpec(replace(SUBSCRIPTION, oid=oid), frozenset()) for oid in (1, 2, 3)]
    made: list[Worker] = []

    def make(subscription: Subscription) -> Any:
        made.append(Worker(subscription))
        return made[-1]

    launcher = Launcher(lambda: wanted, make, lambda: 2)
    with caplog.at_level(logging.WARNING):
        for turn in range(20):
            launcher.step()
            made[-1 - turn % 2].fails(0)
    assert len(made) > 10
    assert len(caplog.messages) == 1
    del wanted[2]
    launcher.step()
    launcher.step()
    wanted.append(WorkerSpec(replace(SUBSCRIPTION, oid=3), frozenset()))
    launcher.step()
    assert len(caplog.messages) == 2, "nobody waited in between"


def test_a_worker_that_fails_gives_way_to_those_that_wait() -> None:
    wanted = [WorkerSpec(replace(SUBSCRIPTION, oid=oid), frozenset()) for oid in (1, 2, 3)]
    made: list[tuple[int, Worker]] = []

    def make(subscription: Subscription) -> Any:
        made.append((subscription.oid, Worker(subscription)))
        return made[-1][1]

    def step() -> list[int]:
        launcher.step()
        return [oid for oid, _ in made]

    most = 1
    launcher = Launcher(lambda: wanted, make, lambda: most)
    assert step() == [1]
    made[-1][1].fails(0)
    assert launcher.has_work
    assert step() == [1, 2]
    assert sorted(launcher.told_of) == [1, 2], "its last error is still to be told of"
    made[-1][1].fails(1000)
    assert step() == [1, 2, 3], "who has waited longest"
    made[-1][1].fails(1000)
    assert step() == [1, 2, 3, 1]
    assert made[-1][1].failures == 1, "they are counted on"
    assert not made[-1][1].others_wait, "nobody is due"
    made[-1][1].fails(0)
    assert made[-1][1].alive, "it has its place while nobody wants it"
    most = 2
    assert not launcher.has_work and step() == [1, 2, 3, 1], "a retry has its time"
    wanted[1] = WorkerSpec(replace(SUBSCRIPTION, oid=2, conninfo="host=b"), frozenset())
    assert step() == [1, 2, 3, 1, 2], "what is altered is tried at once"
    assert made[-1][1].failures == 0


def test_the_numbers_of_a_worker_that_gave_way_go_on() -> None:
    earlier, status = WorkerStatus(1), WorkerStatus(1)
    earlier.copy_failed("public.t", PenstockError("no right"))
    earlier.failed(PenstockError("no route"))
    earlier.state = "stopped"
    status.go_on_from(earlier)
    assert (status.snapshot().error, status.snapshot().error_count) == ("no route", 2)
    assert status.state == "starting"
    assert not status.progressed_since_failure()
    status.cut(Lsn(7), [])
    assert status.snapshot().error == "no right"


def test_a_worker_that_cannot_start_again_is_left_to_a_later_step() -> None:
    wanted = [WorkerSpec(replace(SUBSCRIPTION, oid=oid), frozenset()) for oid in (1, 2)]
    made: list[Worker] = []

    def make(subscription: Subscription) -> Any:
        if len(made) == 2:
            raise RuntimeError("can't start new thread")
        made.append(Worker(subscription))
        return made[-1]

    launcher = Launcher(lambda: wanted, make, lambda: 1)
    launcher.step()
    made[0].fails(0)
    launcher.step()
    del wanted[1]
    launcher.step()
    launcher.step()
    assert not launcher.workers
    assert not launcher.has_work, "not at once, again and again"
