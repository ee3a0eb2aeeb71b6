"""What should run and what runs, compared without any thread."""

import logging
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from penstock.catalog.pg_subscription import Subscription
from penstock.subscription.launcher import Launcher, Plan, Wanted, plan

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
WANTED = Wanted(SUBSCRIPTION, frozenset({"1"}))


def test_nothing_changes_when_what_runs_is_what_is_wanted() -> None:
    assert plan({16384: WANTED}, {16384: WANTED}) == Plan((), (), ())


def test_a_new_subscription_is_started_and_a_gone_one_stopped() -> None:
    assert plan({}, {16384: WANTED}) == Plan((), (16384,), ())
    assert plan({16384: WANTED}, {}) == Plan((16384,), (), ())


def test_a_changed_definition_stops_the_worker_first() -> None:
    changed = Wanted(replace(SUBSCRIPTION, conninfo="host=b"), WANTED.tables)
    assert plan({16384: WANTED}, {16384: changed}) == Plan((16384,), (), ())


def test_other_tables_are_told_to_the_worker() -> None:
    changed = Wanted(SUBSCRIPTION, frozenset({"1", "2"}))
    assert plan({16384: WANTED}, {16384: changed}) == Plan((), (), (16384,))


class Worker:
    """Runs until it is told to stop."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self.alive = True

    def start(self) -> None: ...

    def stop(self) -> None:
        self.alive = False


def test_no_more_workers_than_allowed(caplog: pytest.LogCaptureFixture) -> None:
    wanted = [Wanted(replace(SUBSCRIPTION, oid=oid), frozenset()) for oid in (1, 2, 3)]
    most = 2
    made: list[int] = []

    def look() -> Iterable[Wanted]:
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
    wanted.append(Wanted(replace(SUBSCRIPTION, oid=4), frozenset()))
    launcher.step()
    assert len(caplog.messages) == 2, "it is another one that waits"
    most = 3
    launcher.step()
    assert made == [1, 2, 3, 4]
