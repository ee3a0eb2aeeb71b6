"""Where the stream starts and what may be cut, decided without a server."""

from dataclasses import replace

import pytest

from penstock.catalog.pg_subscription import Subscription
from penstock.errors import ConfigurationLimitExceeded
from penstock.lsn import INVALID, Lsn
from penstock.subscription.origin import (
    TableProgress,
    check_state,
    flush_lsn,
    joins,
    may_cut,
    start_lsn,
)


def ready(marker: int | None) -> TableProgress:
    return TableProgress(True, None if marker is None else Lsn(marker))


def copied(marker: int) -> TableProgress:
    return TableProgress(False, Lsn(marker))


def test_the_stream_starts_at_the_last_cut() -> None:
    assert start_lsn(Lsn(100), [ready(90), ready(None)]) == 100


def test_without_a_cut_it_starts_at_the_earliest_copy() -> None:
    assert start_lsn(None, [copied(80), copied(70)]) == 70
    assert start_lsn(None, [ready(None)]) == INVALID


def test_a_table_copied_before_the_cut_takes_the_stream_back() -> None:
    assert start_lsn(Lsn(100), [ready(90), copied(80)]) == 80
    assert start_lsn(Lsn(100), [ready(90), copied(120)]) == 100


def test_no_cut_while_a_table_is_ahead_of_it() -> None:
    assert not may_cut(Lsn(100), Lsn(90), [ready(110), ready(80)])
    assert may_cut(Lsn(110), Lsn(90), [ready(110), ready(80)])
    assert not may_cut(Lsn(80), Lsn(90), [ready(70)])


def test_a_copied_table_does_not_hold_back_cuts_and_joins_once_reached() -> None:
    assert may_cut(Lsn(100), Lsn(90), [ready(95), copied(120)])
    assert not joins(Lsn(100), copied(120))
    assert joins(Lsn(120), copied(120))
    assert not joins(Lsn(120), ready(100))


def test_the_acknowledged_lsn_never_passes_the_cut_nor_a_joining_table() -> None:
    assert flush_lsn(None, [], None) == INVALID
    assert flush_lsn(Lsn(100), [ready(100)], None) == 100
    assert flush_lsn(Lsn(100), [ready(100), copied(80)], None) == 80
    assert flush_lsn(Lsn(100), [ready(100), copied(80)], Lsn(60)) == 60
    assert flush_lsn(Lsn(50), [ready(50)], Lsn(60)) == 50


def test_states_are_for_those_with_progress_and_then_for_the_oldest() -> None:
    one = Subscription(
        oid=1,
        name="s",
        enabled=True,
        binary=False,
        conninfo="",
        slot_name="s",
        synchronous_commit="off",
        publications=("p",),
        app_id="penstock-1",
    )
    two, three, gone = replace(one, oid=2), replace(one, oid=3), replace(one, oid=0, enabled=False)
    known = [gone, one, two, three]

    def have_one(followed: set[int], most: int) -> list[int]:
        found = []
        for each in (one, two, three):
            try:
                check_state(each, known, followed, most)
            except ConfigurationLimitExceeded as error:
                assert error.sqlstate == "53400"
            else:
                found.append(each.oid)
        return found

    assert have_one(set(), 3) == [1, 2, 3], "what never ran and does not run needs none"
    assert have_one(set(), 2) == [1, 2]
    assert have_one({3}, 2) == [1, 3]
    assert have_one({0, 3}, 2) == [3], "one that is disabled keeps its own"
    assert have_one(set(), 0) == []
    with pytest.raises(ConfigurationLimitExceeded) as caught:
        check_state(replace(one, oid=65536 + 7), known, set(), 1)
    assert caught.value.message == (
        "could not find free replication state slot for replication origin with ID 7"
    )
    assert caught.value.hint == 'Increase "max_active_replication_origins" and try again.'
