"""Statements of a role take turns; superusers and other roles do not wait for them."""

from __future__ import annotations

import contextlib
import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
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
    """Nobody is a guest."""
    monkeypatch.setattr(turns_module, "_WAIT_S", 600.0)


@pytest.fixture
def guests(monkeypatch: pytest.MonkeyPatch, patience: None) -> None:
    """Whoever waits is soon a guest, but not for long."""
    monkeypatch.setattr(turns_module, "_WAIT_S", 0.05)
    monkeypatch.setattr(turns_module, "_VISIT_S", 0.2)


@contextmanager
def someone(turns: Turns) -> Iterator[None]:
    """Another session of the role has a turn."""
    began, go_on = list[int](), threading.Event()
    thread = threading.Thread(target=run, args=(turns, 7, began, 0, go_on))
    thread.start()
    wait_until(lambda: bool(began), "the turn")
    yield
    go_on.set()
    thread.join()


@pytest.mark.usefixtures("guests")
def test_a_guest_runs_beside_long_statements() -> None:
    turns = Turns(1)
    with someone(turns):
        for _ in range(2):
            with Turn(turns).of(7, lambda: None):
                line = turns._lines[7]
                assert (line.running, len(line.guests)) == (1, 1)
    assert turns._lines == {}


@pytest.mark.usefixtures("guests")
def test_a_guest_leaves_when_others_wait() -> None:
    turns, told = Turns(1), threading.Event()
    guest = Turn(turns)
    with ExitStack() as stack:
        stack.enter_context(someone(turns))
        stack.enter_context(guest.of(7, lambda: None))
        with guest.repeatable(told.set):
            assert not told.wait(0.4)  # nobody waits
            stack.enter_context(someone_waiting(turns))
            assert told.wait(5)
        assert guest.leaves is None
        turns.allow(2)
        guest.wait_again()
        line = turns._lines[7]
        assert (line.running, line.guests) == (2, set())
        turns.allow(0)
    assert turns._lines == {}


@contextmanager
def someone_waiting(turns: Turns) -> Iterator[None]:
    """Another session of the role waits."""
    turn = Turn(turns)

    def wait() -> None:
        with turn.of(7, lambda: None):
            pass

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: turn.waits, "the one that waits")
    yield
    thread.join()


@pytest.mark.usefixtures("guests")
def test_a_guest_has_a_turn_when_one_is_free() -> None:
    turns = Turns(1)
    with ExitStack() as stack:
        with someone(turns):
            stack.enter_context(Turn(turns).of(7, lambda: None))
        line = turns._lines[7]
        assert (line.running, line.guests) == (1, set())
    assert turns._lines == {}


@pytest.mark.usefixtures("guests")
def test_a_guest_that_does_not_hear_is_not_waited_for() -> None:
    turns, told = Turns(1), threading.Event()
    with someone(turns), Turn(turns).of(7, lambda: None) as _:
        guest = next(iter(turns._lines[7].guests))
        with guest.repeatable(told.set), Turn(turns).of(7, lambda: None):
            assert told.is_set()
            assert len(turns._lines[7].guests) == 2
    assert turns._lines == {}


@pytest.mark.usefixtures("guests")
def test_nobody_waits_for_a_guest_that_cannot_leave() -> None:
    turns = Turns(1)
    with someone(turns), Turn(turns).of(7, lambda: None), Turn(turns).of(7, lambda: None):
        assert len(turns._lines[7].guests) == 2
    assert turns._lines == {}


@pytest.mark.usefixtures("guests")
def test_who_was_a_guest_for_too_long_waits_for_a_turn() -> None:
    turns = Turns(1)
    first, guest = Turn(turns), Turn(turns)
    given_up: list[bool] = []

    def give_up() -> None:
        if guest.waits and not guest.may_visit:
            given_up.append(True)
            if len(given_up) > 10:
                raise ZeroDivisionError

    with first.of(7, lambda: None):
        with pytest.raises(ZeroDivisionError), guest.of(7, give_up):
            guest.wait_again()
        assert turns._lines[7].guests == set()
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


def _states(root: psycopg.Connection[Any], expected: list[Any]) -> bool:
    return root.execute(_STATES).fetchall() == expected


_SHORT = "SELECT count(*) FROM pg_type"
_TEXTS = (
    "SELECT max(a.oid || b.typname || c.typname) FROM pg_type a, pg_type b, pg_type c "
    "WHERE a.oid < 100"
)
"""It takes a second."""


@pytest.mark.usefixtures("guests")
def test_a_long_query_begins_again_with_a_turn(lake: LakeServer) -> None:
    with ExitStack() as stack:
        root = stack.enter_context(lake.connect(replication="false"))
        long, guest, short = (
            stack.enter_context(lake.connect(replication="false", user="ann")) for _ in range(3)
        )
        lake.services.turns.allow(1)
        (expected,) = root.execute(_TEXTS).fetchall()
        errors, found = list[str](), list[Any]()
        threads = [
            threading.Thread(target=ask, args=(long, errors)),
            threading.Thread(target=lambda: found.extend(guest.execute(_TEXTS).fetchall())),
        ]
        for number, thread in enumerate(threads, 1):
            thread.start()
            run = partial(_states, root, [(None, number)])
            wait_until(run, "the statements")
        for _ in range(5):
            assert short.execute(_SHORT).fetchone() is not None
        waits = [("PenstockTurn", 1), (None, 1)]
        assert _states(root, waits)
        long.cancel_safe()
        for thread in threads:
            thread.join()
        assert found == [expected]
        assert errors == ["57014"]


@pytest.mark.parametrize(
    ("query", "begins_again"),
    [
        (_SHORT, True),
        ("SELECT current_setting('a.n', true), pg_size_pretty(1::bigint)", True),
        ("SELECT set_config('a.n', '1', false)", False),
        ("SELECT nextval('pg_type')", False),
        ("SELECT * FROM pg_drop_replication_slot('none')", False),
    ],
)
def test_what_has_an_effect_never_begins_again(
    lake: LakeServer, monkeypatch: pytest.MonkeyPatch, query: str, begins_again: bool
) -> None:
    begun: list[bool] = []
    repeatable = Turn.repeatable

    def noted(turn: Turn, leave: Callable[[], None]) -> AbstractContextManager[None]:
        begun.append(True)
        return repeatable(turn, leave)

    monkeypatch.setattr(Turn, "repeatable", noted)
    with (
        lake.connect(replication="false") as connection,
        contextlib.suppress(psycopg.errors.UndefinedTable, psycopg.errors.UndefinedObject),
    ):
        connection.execute(query)
    assert bool(begun) == begins_again
