"""What should run and what runs, compared without any thread."""

from dataclasses import replace

from penstock.catalog.pg_subscription import Subscription
from penstock.subscription.launcher import Plan, Wanted, plan

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
