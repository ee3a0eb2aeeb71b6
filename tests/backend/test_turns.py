"""Statements of a role take turns; superusers and other roles do not wait for them."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fix_lake import LakeServer
from penstock.backend import turns as turns_module
from penstock.backend.turns import Turn, Turns
from penstock.embedded import wait_until

_LONG = (
    "SELECT count(*) FROM pg_type a, pg_type b, pg_type c, pg_type d, pg_type e WHERE a.oid < e.oid"
)
_STATES = (
    "SELECT wait_event, count(*)::int FROM pg_stat_activity WHERE usename = 'ann' "
    "AND state = 'active' GROUP BY 1 ORDER BY 1"
)
_SESSIONS = 6


def run(turns: Turns, role: int, began: list[int], number: int, go_on: threading.Event) -> None:
    with Turn(turns).of(role, lambda: None):
        began.append(number)
        go_on.wait()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody begins out of turn."""
    monkeypatch.setattr(turns_module, "_LONGEST_S", 600.0)


def test_nobody_waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statements that take minutes do not keep short ones of their role waiting."""
    monkeypatch.setattr(turns_module, "_LONGEST_S", 0.2)
    turns, began, go_on = Turns(1), list[int](), threading.Event()
    thread = threading.Thread(target=run, args=(turns, 7, began, 0, go_on))
    thread.start()
    wait_until(lambda: _in_line(turns, 1), "the first one")
    with Turn(turns).of(7, lambda: None):
        assert turns._lines[7].running == 2
    assert turns._lines[7].running == 1
    go_on.set()
    thread.join()
    assert turns._lines == {}


def _in_line(turns: Turns, count: int) -> bool:
    line = turns._lines[7]
    return line.running + len(line.waiting) == count


def test_more_turns_are_for_those_who_wait() -> None:
    turns, began, go_on = Turns(1), list[int](), threading.Event()
    threads = [
        threading.Thread(target=run, args=(turns, 7, began, number, go_on)) for number in range(3)
    ]
    for thread in threads:
        thread.start()
    wait_until(lambda: _in_line(turns, 3), "the line")
    turns.allow(2)
    wait_until(lambda: len(began) == 2, "the second one")
    turns.allow(0)
    wait_until(lambda: len(began) == 3, "the third one")
    go_on.set()
    for thread in threads:
        thread.join()
    assert turns._lines == {}


def test_who_waits_longest_is_next() -> None:
    turns, began = Turns(1), list[int]()
    ends = [threading.Event() for _ in range(4)]
    threads = []
    for number, end in enumerate(ends):
        thread = threading.Thread(target=run, args=(turns, 7, began, number, end))
        thread.start()
        threads.append(thread)
        wait_until(partial(_in_line, turns, number + 1), "the line")
    with Turn(turns).of(8, lambda: None):
        pass  # another role waits for nobody
    for number, end in enumerate(ends, 1):
        wait_until(partial(operator.eq, began, [*range(number)]), "the next one")
        end.set()
    for thread in threads:
        thread.join()
    assert turns._lines == {}


def test_who_gives_up_leaves_the_line() -> None:
    def give_up() -> None:
        raise ZeroDivisionError

    turns = Turns(1)
    first, second = Turn(turns), Turn(turns)
    with first.of(7, lambda: None):
        with pytest.raises(ZeroDivisionError), second.of(7, give_up):
            raise AssertionError
        assert not turns.wanted(7)
        first.leave()
        with second.of(7, give_up):  # it waits for nobody
            pass
        first.share()
        assert turns._lines[7].running == 1
    assert turns._lines == {}


def test_a_long_one_goes_to_the_end_of_the_line() -> None:
    turns, began, end = Turns(1), list[int](), threading.Event()
    mine = Turn(turns)
    with mine.of(7, lambda: None):
        other = threading.Thread(target=run, args=(turns, 7, began, 1, end))
        other.start()
        end.set()
        while not began:
            mine.share()
    other.join()
    assert turns._lines == {}


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[LakeServer]:
    lake = LakeServer(tmp_path)
    lake.services = replace(lake.services, turns=Turns(2))
    with lake.catalog.write() as t:
        for name in ("ann", "bob"):
            t.roles.create(name, login=True)
    yield lake
    lake.close()


def ask(connection: psycopg.Connection[Any], errors: list[str]) -> None:
    try:
        connection.execute(_LONG)
    except psycopg.errors.QueryCanceled as error:
        errors.append(error.sqlstate or "")


def test_many_statements_of_a_role_wait_for_their_turn(lake: LakeServer) -> None:
    errors: list[str] = []
    with ExitStack() as stack:
        root = stack.enter_context(lake.connect(replication="false"))
        bob = stack.enter_context(lake.connect(replication="false", user="bob"))
        anns = [
            stack.enter_context(lake.connect(replication="false", user="ann"))
            for _ in range(_SESSIONS)
        ]
        threads = [threading.Thread(target=ask, args=(ann, errors)) for ann in anns]
        for thread in threads:
            thread.start()
        expected = [("PenstockTurn", _SESSIONS - 2), (None, 2)]
        wait_until(lambda: root.execute(_STATES).fetchall() == expected, "the line")
        assert bob.execute("SELECT 1").fetchone() == (1,)
        for ann in reversed(anns):  # those that wait, and those that run
            ann.cancel_safe()
        for thread in threads:
            thread.join()
        assert errors == ["57014"] * _SESSIONS
        assert [ann.execute("SELECT 1").fetchone() for ann in anns] == [(1,)] * _SESSIONS


def test_a_statement_of_superusers_is_not_counted(lake: LakeServer) -> None:
    with ExitStack() as stack:
        roots = [stack.enter_context(lake.connect(replication="false")) for _ in range(4)]
        threads = [threading.Thread(target=ask, args=(root, [])) for root in roots]
        for thread in threads:
            thread.start()
        own = stack.enter_context(lake.connect(replication="false"))
        states = _STATES.replace("usename = 'ann'", "pid != pg_backend_pid()")
        wait_until(lambda: own.execute(states).fetchall() == [(None, 4)], "the statements")
        for root in roots:
            root.cancel_safe()
        for thread in threads:
            thread.join()


def test_a_client_that_does_not_read_gives_its_turn_to_others(lake: LakeServer) -> None:
    with ExitStack() as stack:
        silent = [
            stack.enter_context(lake.connect(replication="false", user="ann")) for _ in range(2)
        ]
        for each in silent:
            each.pgconn.send_query(b"SELECT repeat('x', 1000) FROM generate_series(1, 100000)")
        other = stack.enter_context(lake.connect(replication="false", user="ann"))
        assert other.execute("SELECT 1").fetchone() == (1,)
        for each in silent:
            each.pgconn.finish()


def test_a_client_that_has_left_waits_no_longer(lake: LakeServer) -> None:
    with ExitStack() as stack:
        root = stack.enter_context(lake.connect(replication="false"))
        running = [
            stack.enter_context(lake.connect(replication="false", user="ann")) for _ in range(2)
        ]
        threads = [threading.Thread(target=ask, args=(ann, [])) for ann in running]
        for thread in threads:
            thread.start()
        wait_until(lambda: root.execute(_STATES).fetchall() == [(None, 2)], "the statements")
        left = lake.connect(replication="false", user="ann")
        left.pgconn.send_query(b"SELECT 1")
        expected = [("PenstockTurn", 1), (None, 2)]
        wait_until(lambda: root.execute(_STATES).fetchall() == expected, "the line")
        left.pgconn.finish()
        wait_until(lambda: root.execute(_STATES).fetchall() == [(None, 2)], "the end", timeout=10)
        for ann in running:
            ann.cancel_safe()
        for thread in threads:
            thread.join()
