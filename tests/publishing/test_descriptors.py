"""Whatever a client does, the node has as many descriptors and threads afterwards as before."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from backend.test_replication import Receiver
from faults.heavy import part_of_make_faults
from penstock.embedded import wait_until
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_TIMES = 6
_ROUNDS = 3
"""A leak grows in each; a pool that grows with what happens at once does not."""
_START = "START_REPLICATION SLOT {} LOGICAL 0/0 (proto_version '1', publication_names '{}')"


def held() -> tuple[int, int]:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()


def settled(before: tuple[int, int]) -> tuple[int, int]:
    """What is held when it is no more than before, or what is left after some time."""
    deadline = time.monotonic() + 20
    while (now := held()) > before and time.monotonic() < deadline:
        time.sleep(0.1)
    return now


@pytest.fixture(scope="module")
def prepared(lake: LakeNode) -> LakeNode:
    lake.execute(
        "CREATE TABLE held (id integer PRIMARY KEY, v text)",
        "CREATE PUBLICATION held FOR TABLE held",
    )
    with replication(lake) as connection:
        connection.execute("CREATE_REPLICATION_SLOT held LOGICAL pgoutput")
    lake.execute("INSERT INTO held SELECT i, repeat('x', 1000) FROM generate_series(1, 20000) i")
    return lake


class Replicated:
    """What ``Receiver`` connects to."""

    def __init__(self, lake: LakeNode) -> None:
        self._lake = lake

    def connect(self) -> psycopg.Connection:
        return replication(self._lake)


def replication(lake: LakeNode) -> psycopg.Connection:
    return lake.connect(replication="database")


def refused(lake: LakeNode) -> None:
    start = _START.format("held", "held")
    with replication(lake) as connection:
        for command in (
            _START.format("missing", "held"),
            start.replace("'1'", "'9'"),
            start.replace("0/0", "F/0"),
        ):
            with pytest.raises(psycopg.Error):
                connection.execute(command)


def left_in_the_stream(lake: LakeNode) -> None:
    receiver = Receiver(Replicated(lake), _START.format("held", "held"))
    assert receiver.frame() is not None
    receiver.close()
    inactive = "SELECT active FROM pg_replication_slots WHERE slot_name = 'held'"
    wait_until(lambda: lake.rows(inactive) == [(False,)], "the end of the stream")


def failed_copy(lake: LakeNode) -> None:
    with lake.connect() as connection, pytest.raises(psycopg.Error):
        connection.execute("COPY held (nothing) TO STDOUT")


def left_in_the_copy(lake: LakeNode) -> None:
    connection = lake.connect()
    with (
        contextlib.suppress(psycopg.Error),
        connection.cursor().copy("COPY held TO STDOUT") as rows,
    ):
        assert rows.read()
        connection.close()
    assert connection.closed


@pytest.mark.parametrize("act", [refused, left_in_the_stream, failed_copy, left_in_the_copy])
@part_of_make_faults
def test_nothing_stays_behind(prepared: LakeNode, act: Callable[[LakeNode], None]) -> None:
    for _ in range(3):
        act(prepared)
    time.sleep(1)
    seen = []
    for _ in range(_ROUNDS):
        before = held()
        for _ in range(_TIMES):
            act(prepared)
        descriptors, threads = settled(before)
        seen.append((descriptors - before[0], threads - before[1]))
        if descriptors - before[0] <= 3 and threads - before[1] <= 1:
            return
    pytest.fail(f"descriptors and threads, more after each {_TIMES} times: {seen}")
