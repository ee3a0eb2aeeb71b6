"""Work beside the applying thread: taken once, or undone."""

from __future__ import annotations

import threading

import pytest

from penstock.subscription.upkeep import BackgroundTask


def test_a_result_is_taken_once() -> None:
    undone: list[int] = []
    task = BackgroundTask[int]("test", undone.append)
    assert task.free
    assert task.take() is None
    task.begin(lambda: 7)
    task.wait()
    assert not task.free
    assert (task.take(), task.take(), task.free) == (7, None, True)
    task.close()
    assert not undone


def test_an_error_is_raised_where_the_result_would_be_taken() -> None:
    task = BackgroundTask[int]("test", print)
    task.begin(lambda: 1 // 0)
    task.wait()
    with pytest.raises(ZeroDivisionError):
        task.take()
    assert task.free


def test_what_nobody_takes_is_undone() -> None:
    undone: list[int] = []
    task = BackgroundTask[int]("test", undone.append)
    task.begin(lambda: 7)
    task.wait()
    task.close()
    assert undone == [7]


def test_work_that_ends_after_its_session_is_undone() -> None:
    undone: list[int] = []
    go_on = threading.Event()

    def work() -> int:
        go_on.wait()
        return 7

    task = BackgroundTask[int]("test", undone.append)
    task.begin(work)
    assert task.take() is None
    task.close()
    assert not undone
    go_on.set()
    task.wait()
    assert undone == [7]
    assert task.take() is None
