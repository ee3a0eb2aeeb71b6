"""Who has used much gives way to others, but not for ever; heavy work has a low priority."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import pytest

from penstock import precedence
from penstock.embedded import wait_until
from penstock.precedence import LOGIN, NODE, Precedence, WorkLock

_HEAVY = 7
_LIGHT = 8
_NAME: ContextVar[str] = ContextVar("name", default="nobody")


def use(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@pytest.fixture
def work() -> Precedence:
    """One owner has used much."""
    made = Precedence()
    with made.work(_HEAVY):
        use(0.2)
    return made


@contextmanager
def other(work: Precedence, owner: int) -> Iterator[None]:
    """Another thread works for an owner."""
    begun, end = threading.Event(), threading.Event()

    def run() -> None:
        with work.work(owner):
            begun.set()
            end.wait()

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    yield
    end.set()
    thread.join()


def waited(work: Precedence, owner: int) -> float:
    began = time.monotonic()
    with work.work(owner):
        return time.monotonic() - began


@pytest.mark.parametrize("owner", [_LIGHT, NODE])
def test_who_has_used_much_gives_way(work: Precedence, owner: int) -> None:
    with other(work, owner):
        assert waited(work, _HEAVY) > 0.05
        assert waited(work, owner) < 0.05


@pytest.mark.parametrize(("mine", "others"), [(_HEAVY, _HEAVY), (_HEAVY, LOGIN), (NODE, _LIGHT)])
def test_nobody_gives_way_to(work: Precedence, mine: int, others: int) -> None:
    with work.work(NODE):
        use(0.2)
    with other(work, others):
        assert waited(work, mine) < 0.05


def test_who_gives_way_goes_on_when_the_other_ends(work: Precedence) -> None:
    went_on = threading.Event()

    def give_way() -> None:
        with work.work(_HEAVY):
            went_on.set()

    thread = threading.Thread(target=give_way)
    with other(work, _LIGHT):
        thread.start()
        wait_until(lambda: len(work._active) == 2, "the one that gives way")
    assert went_on.wait(5)
    thread.join()


def test_work_goes_on_beside_others_without_end(
    work: Precedence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precedence, "_FIRST_S", 600.0)
    with other(work, _LIGHT), work.work(_HEAVY):
        began, steps = time.monotonic(), 0
        while time.monotonic() - began < 0.3:
            work.give_way()
            steps += 1
    assert steps > 50  # in the moments in which it goes on


def test_others_have_precedence_at_first_only(
    work: Precedence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precedence, "_FIRST_S", 0.0)
    with other(work, _LIGHT):
        assert waited(work, _HEAVY) < 0.05
        assert work.idle
    monkeypatch.setattr(precedence, "_FIRST_S", 600.0)
    with work.work(_LIGHT):
        assert not work.idle


def test_what_was_used_long_ago_does_not_count(
    work: Precedence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precedence, "_HALF_LIFE_S", 0.001)
    use(0.05)
    with other(work, _LIGHT):
        assert waited(work, _HEAVY) < 0.05


def test_who_holds_a_lock_does_not_give_way(
    work: Precedence, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = WorkLock()
    with lock, work.work(_HEAVY):
        pass  # it was taken before
    with work.work(_HEAVY):
        with lock, other(work, _LIGHT):
            began = time.monotonic()
            work.give_way()
            assert time.monotonic() - began < 0.05
        with other(work, _LIGHT):
            work.give_way()
        assert time.monotonic() - began > 0.05


def test_work_within_work(work: Precedence) -> None:
    with work.work(_LIGHT), other(work, NODE):
        assert waited(work, _HEAVY) < 0.05
    assert not work._active


def test_superusers_give_way_to_the_node_only(work: Precedence) -> None:
    for others, gives_way in ((_LIGHT, False), (NODE, True)):
        began = time.monotonic()
        with other(work, others), work.work(_HEAVY, superuser=True):
            assert (time.monotonic() - began > 0.05) == gives_way


def test_who_holds_something_does_not_give_way(work: Precedence) -> None:
    with work.holding():
        pass  # nobody works
    with work.work(_HEAVY), work.holding(), other(work, _LIGHT):
        began = time.monotonic()
        work.give_way()
        assert time.monotonic() - began < 0.05


def test_who_only_waits_does_not_hold_others_up_for_long(
    work: Precedence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that uses nothing, again and again: the time for which the other stops counts for it."""
    monkeypatch.setattr(precedence, "_HALF_LIFE_S", 600.0)
    over = threading.Event()

    def wait() -> None:
        while not over.is_set():
            with work.work(_LIGHT):
                time.sleep(0.08)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    with work.work(_HEAVY):
        began, steps = time.monotonic(), 0
        while (steps := steps + 1) < 1000 and time.monotonic() - began < 5:
            work.give_way()
            time.sleep(0.0002)
        took = time.monotonic() - began
    over.set()
    for thread in threads:
        thread.join()
    assert took < 1.5  # 0.2 s were used before


def priority() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no priorities")
def test_heavy_work_has_a_low_priority(work: Precedence, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = priority()
    assert work.politely(priority) == mine
    with work.work(_LIGHT):
        assert work.politely(priority) == mine
    monkeypatch.setattr(precedence, "_MUCH_S", 0.1)
    with work.work(_HEAVY):
        assert work.politely(priority) > mine
        assert priority() == mine


@pytest.fixture
def politely(work: Precedence, monkeypatch: pytest.MonkeyPatch) -> Iterator[Precedence]:
    monkeypatch.setattr(precedence, "_MUCH_S", 0.0)
    with work.work(_HEAVY):
        yield work


def test_the_nodes_own_work_has_the_usual_priority(
    work: Precedence, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precedence, "_MUCH_S", 0.0)
    with work.work(NODE):
        assert work.politely(priority) == priority()


def test_another_thread_does_the_work_as_this_one(politely: Precedence) -> None:
    _NAME.set("ann")
    found = politely.politely(lambda: (_NAME.get(), threading.get_ident()))
    assert found[0] == "ann"
    assert found[1] != threading.get_ident()
    assert politely.politely(threading.get_ident) == found[1]  # it is kept


def test_errors_of_another_thread(politely: Precedence) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        politely.politely(fail)
    assert politely.politely(lambda: 1) == 1


def test_what_another_thread_uses_is_counted(politely: Precedence) -> None:
    before = politely._use[_HEAVY].now(time.monotonic())
    politely.politely(lambda: use(0.2))
    assert politely._use[_HEAVY].now(time.monotonic()) > before


def test_another_thread_gives_way_as_this_one(politely: Precedence) -> None:
    def wait() -> float:
        began = time.monotonic()
        politely.give_way()
        return time.monotonic() - began

    call: Callable[[], float] = wait
    with other(politely, _LIGHT):
        assert politely.politely(call) > 0.05
