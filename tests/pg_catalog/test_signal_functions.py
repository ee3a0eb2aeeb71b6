"""Waiting for a session that does not end: no client can make one, so it is none of a server."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from penstock.catalog import Catalog
from penstock.errors import PenstockError
from penstock.pg_catalog.node_catalogs import SignalFunctions
from penstock.pg_catalog.snapshot import SessionFacts
from penstock.stats.backend_status import Activity, BackendType, Session, Sessions

PID = 4711
LONG_MS = 3_600_000


def terminate(catalog: Catalog, timeout_ms: int, cancelled: Callable[[], bool]) -> object:
    sessions = Sessions()
    activity = Activity(PID, 10, "lake", "", "", 0, backend_type=BackendType.CLIENT, started=0.0)
    sessions.open(Session(activity, cancel=lambda: None, terminate=lambda: None))
    facts = SessionFacts(
        pid=1,
        user="boss",
        role_oid=10,
        superuser=True,
        replication=False,
        database="lake",
        version=18,
        settings={},
        set_config=lambda *_: "",
        cancelled=cancelled,
    )
    functions = SignalFunctions(sessions, catalog, facts, lambda: None).functions()
    return functions["pg_terminate_backend"].call(PID, timeout_ms)


def test_the_wait_ends_when_the_query_is_cancelled(catalog: Catalog) -> None:
    outcome: list[str] = []
    request = threading.Event()

    def wait() -> None:
        with pytest.raises(PenstockError, match="canceling statement") as error:
            terminate(catalog, LONG_MS, request.is_set)
        outcome.append(error.value.sqlstate)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    request.set()
    thread.join(30)
    assert outcome == ["57014"]


def test_the_wait_ends_in_time(catalog: Catalog) -> None:
    assert terminate(catalog, 1, lambda: False) is False
