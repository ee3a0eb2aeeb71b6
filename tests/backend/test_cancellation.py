"""What a cancel says of a statement whose outcome is unknown."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.backend.cancellation import Cancellation
from penstock.embedded import wait_until
from penstock.errors import PenstockError
from penstock.sqlstate import StatementCompletionUnknown


class _Jobs:
    @contextmanager
    def group(self, name: str) -> Iterator[None]:
        yield

    def interrupt(self, name: str) -> None:
        pass


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (StatementCompletionUnknown("the rows may be changed"), "40003"),
        (PenstockError("the job was stopped"), "57014"),
    ],
    ids=["unknown outcome", "stopped"],
)
def test_a_cancel_hides_no_unknown_outcome(raised: PenstockError, told: str) -> None:
    cancellation = Cancellation(_Jobs())
    with pytest.raises(PenstockError) as error, cancellation.running():
        cancellation.request()
        raise raised
    assert error.value.sqlstate == told


def test_a_timer_that_is_over_hits_no_later_statement() -> None:
    cancellation = Cancellation(_Jobs())
    cancellation.start_timer(0.01)
    wait_until(cancellation.requested, "the end of the time")
    with pytest.raises(PenstockError, match="due to statement timeout"):
        cancellation.check()
    cancellation.stop_timer()
    cancellation.check()


def test_a_timer_that_cannot_start_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(timer: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    cancellation = Cancellation(_Jobs())
    monkeypatch.setattr(threading.Timer, "start", fail)
    with pytest.raises(RuntimeError):
        cancellation.start_timer(1)
    cancellation.stop_timer()
    cancellation.check()
