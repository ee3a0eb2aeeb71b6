"""Work beside the applying thread: taken once, or undone."""

from __future__ import annotations

import threading

import pytest

from penstock.subscription.upkeep import Beside


def test_a_result_is_taken_once() -> None:
    undone: list[int] = []
    beside = Beside[int]("test", undone.append)
    assert beside.free
    assert beside.take() is None
    beside.begin(lambda: 7)
    beside.wait()
    assert not beside.free
    assert (beside.take(), beside.take(), beside.free) == (7, None, True)
    beside.close()
    assert not undone


def test_an_error_is_raised_where_the_result_would_be_taken() -> None:
    beside = Beside[int]("test", print)
    beside.begin(lambda: 1 // 0)
    beside.wait()
    with pytest.raises(ZeroDivisionError):
        beside.take()
    assert beside.free


def test_what_nobody_takes_is_undone() -> None:
    undone: list[int] = []
    beside = Beside[int]("test", undone.append)
    beside.begin(lambda: 7)
    beside.wait()
    beside.close()
    assert undone == [7]


def test_work_that_ends_after_its_session_is_undone() -> None:
    undone: list[int] = []
    go_on = threading.Event()

    def work() -> int:
        go_on.wait()
        return 7

    beside = Beside[int]("test", undone.append)
    beside.begin(work)
    assert beside.take() is None
    beside.close()
    assert not undone
    go_on.set()
    beside.wait()
    assert undone == [7]
    assert beside.take() is None
