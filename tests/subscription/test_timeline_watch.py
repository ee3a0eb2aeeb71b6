"""The watch of a standby's timeline, as far as one server can show it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial

import pytest

from fix_postgres import Database
from penstock.catalog.publisher_identity import PublisherIdentity
from penstock.lsn import Lsn
from penstock.subscription.consistency import TimelineWatch
from penstock.subscription.consistency_rules import PublisherState
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.conninfo import ConnInfo


def _state(timeline: int, *, in_recovery: bool = True) -> PublisherState:
    identity = PublisherIdentity("1", timeline, 5)
    return PublisherState(identity, Lsn(1), in_recovery, {}, None)


@pytest.mark.parametrize(
    ("timeline", "in_recovery", "holds"), [(1, True, True), (2, True, False), (2, False, True)]
)
def test_the_timeline_is_the_sessions(
    database: Database, timeline: int, in_recovery: bool, holds: bool
) -> None:
    """A session that ends while it is idle is begun again."""
    conninfo, unseen = ConnInfo.parse(database.conninfo), list[str]()
    with (
        closing(Connection.connect(conninfo, "main")) as main,
        closing(
            TimelineWatch(
                lambda: Connection.connect(conninfo, "timeline watch"), lambda: unseen.append("")
            )
        ) as watch,
    ):
        watch.begin(main, _state(timeline, in_recovery=in_recovery))
        assert watch.holds() is holds
        ended = database.rows(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE application_name = 'timeline watch'"
        )
        assert len(ended) == in_recovery
        assert watch.holds() is holds
        assert not unseen


def test_another_server_tells_nothing(
    database: Database, database_on: Callable[..., Database]
) -> None:
    """Neither does one that cannot be reached; and both are asked again."""
    unseen = list[str]()
    other, nowhere = database_on(16).conninfo, "host=127.0.0.1 port=1 dbname=x"
    for conninfo in (other, nowhere):
        with (
            closing(Connection.connect(ConnInfo.parse(database.conninfo), "main")) as main,
            closing(
                TimelineWatch(
                    partial(Connection.connect, ConnInfo.parse(conninfo), "w"),
                    lambda: unseen.append(""),
                )
            ) as watch,
        ):
            watch.begin(main, _state(2))
            assert watch.holds() and watch.holds()
    assert len(unseen) == 4
