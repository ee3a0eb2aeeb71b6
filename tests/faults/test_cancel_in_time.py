"""A cancel takes a second at most in each phase: parser, analysis, DuckDB, between rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, Final

import psycopg
import pytest

from faults.crowd import STATEMENTS as OF_THE_CROWD
from faults.heavy import part_of_make_faults
from faults.node_process import NodeProcess
from penstock.embedded import free_port, wait_until

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.slow]

_MOMENTS_S: Final = (0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0, 1.5, 2.0)
_AT_MOST_S: Final = 1.0
_STATEMENTS: Final = {
    **OF_THE_CROWD,
    "literals": "SELECT count(*) FROM (VALUES "
    + ", ".join(f"({n}, 'x{n}')" for n in range(200_000))
    + ") AS v",
    "expressions": "SELECT count(*) FROM (VALUES "
    + ", ".join(f"({n}, {n} + 1)" for n in range(40_000))
    + ") AS v",
    "list": f"SELECT count(*) FROM pg_type WHERE oid IN ({', '.join(map(str, range(200_000)))})",
    "conditions": "SELECT count(*) FROM pg_type WHERE "
    + " AND ".join(f"oid <> {n}" for n in range(20_000)),
    "rows": "SELECT a.oid, b.oid FROM pg_type a, pg_type b, pg_type c ORDER BY 1 DESC, 2",
}


@pytest.fixture(scope="module")
def conninfo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("cancel")
    node, port = NodeProcess(folder / "node", warehouse=folder / "warehouse"), free_port()
    node.init({"port": port})
    node.sql("CREATE ROLE ann LOGIN PASSWORD 'x'")
    node.start()
    conninfo = f"host=127.0.0.1 port={port} dbname=lake user=ann password=x"
    wait_until(lambda: _listens(conninfo), "the port", 120)
    yield conninfo
    node.close()


def _listens(conninfo: str) -> bool:
    try:
        psycopg.connect(conninfo).close()
    except psycopg.OperationalError:
        return False
    return True


def _cancelled(connection: psycopg.Connection[Any], statement: str, after: float) -> float | None:
    """The seconds from a cancel to the answer; None if the statement ended before."""
    asked: list[float] = []

    def cancel() -> None:
        asked.append(time.monotonic())
        connection.cancel_safe()

    timer = threading.Timer(after, cancel)
    timer.start()
    try:
        connection.execute(statement)
    except psycopg.errors.QueryCanceled:
        return time.monotonic() - asked[0]
    except psycopg.Error:
        pass
    finally:
        timer.cancel()
        timer.join()
    return None


@part_of_make_faults
@pytest.mark.parametrize("name", _STATEMENTS)
def test_a_cancel_takes_a_second_at_most(conninfo: str, name: str) -> None:
    found: dict[float, float] = {}
    for after in _MOMENTS_S:
        with psycopg.connect(
            conninfo, autocommit=True, cursor_factory=psycopg.ClientCursor
        ) as connection:
            took = _cancelled(connection, _STATEMENTS[name], after)
        if took is not None:
            found[after] = took
    assert all(took <= _AT_MOST_S for took in found.values()), found
