"""Changes at the publisher between a table's copy and the stream.

In: what changes. Out: whether it has: the first round of copies of the worker has ended by then,
and the stream that goes on from its point has not begun.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from penstock.subscription.tablesync import run_round


def after_first_copy(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]
) -> Callable[[], None]:
    """Returns what waits for the change."""
    changed = threading.Event()

    def then_change(*args: Any) -> None:
        run_round(*args)
        if not changed.is_set():
            change()
            changed.set()

    def wait() -> None:
        assert changed.wait(60), "nothing was copied"

    monkeypatch.setattr("penstock.subscription.tablesync.run_round", then_change)
    return wait
