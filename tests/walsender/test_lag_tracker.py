"""The lags that pg_stat_replication shows, by PostgreSQL's rules."""

from __future__ import annotations

from penstock.lsn import Lsn
from penstock.walsender.stream import Lags, LagTracker


def test_a_lag_is_the_time_from_sending_to_the_reply() -> None:
    tracker = LagTracker()
    tracker.sent(Lsn(10), 1.0)
    tracker.sent(Lsn(20), 3.0)
    assert tracker.lags == Lags()
    tracker.reply(Lsn(10), Lsn(5), Lsn(5), Lsn(20), 4.0)
    assert tracker.lags == Lags(write=3.0)
    tracker.reply(Lsn(20), Lsn(20), Lsn(10), Lsn(20), 5.0)
    assert tracker.lags == Lags(2.0, 2.0, 4.0)


def test_a_lag_stays_until_two_replies_say_that_everything_is_applied() -> None:
    tracker = LagTracker()
    tracker.sent(Lsn(10), 1.0)
    tracker.reply(Lsn(10), Lsn(10), Lsn(10), Lsn(20), 2.0)
    tracker.reply(Lsn(10), Lsn(10), Lsn(10), Lsn(20), 3.0)
    assert tracker.lags == Lags(1.0, 1.0, 1.0)
    tracker.reply(Lsn(20), Lsn(20), Lsn(20), Lsn(20), 4.0)
    assert tracker.lags == Lags(1.0, 1.0, 1.0)
    tracker.reply(Lsn(20), Lsn(20), Lsn(20), Lsn(20), 5.0)
    assert tracker.lags == Lags()


def test_samples_are_few() -> None:
    """At most one a second, and only of new positions; the client's lag is that of the first."""
    tracker = LagTracker()
    for number in range(10):
        tracker.sent(Lsn(10 + number), 1.0 + number / 10)
    tracker.reply(Lsn(19), Lsn(0), Lsn(0), Lsn(19), 2.0)
    assert tracker.lags == Lags(write=1.0)
    tracker.sent(Lsn(19), 9.0)
    tracker.sent(Lsn(19), 20.0)
    tracker.reply(Lsn(19), Lsn(19), Lsn(18), Lsn(19), 21.0)
    assert tracker.lags == Lags(12.0, 12.0, 20.0)
