"""Progress of copies and the stream while a node runs in the foreground.

In: a function that gives the node's status. Out: on a terminal bars that are drawn in place,
otherwise a plain line now and then. It only reads; a failing read is left out, never an error.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from penstock.errors import PenstockError
from penstock.node.status import SubscriptionStatus

_TERMINAL_INTERVAL: Final = 0.5
_PLAIN_INTERVAL: Final = 10.0


class ProgressDisplay:
    """A context manager that shows progress on standard error until it ends."""

    def __init__(self, status: Callable[[], Sequence[SubscriptionStatus]]) -> None:
        self._status = status
        self._console = Console(stderr=True)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> ProgressDisplay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        if not self._console.is_terminal:
            while not self._ended.wait(_PLAIN_INTERVAL):
                for line in plain_lines(self._read()):
                    print(line, file=sys.stderr)
            return
        bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        with bars:
            while not self._ended.wait(_TERMINAL_INTERVAL):
                self._draw(bars, self._read())

    def _read(self) -> Sequence[SubscriptionStatus]:
        try:
            return self._status()
        except PenstockError:
            return ()

    def _draw(self, bars: Progress, subscriptions: Sequence[SubscriptionStatus]) -> None:
        for subscription in subscriptions:
            self._task(bars, subscription.name, streaming_text(subscription), None, None)
            for table in subscription.tables:
                name = f"{subscription.name} copy {table.name}"
                if table.units_total:
                    text = f"{table.rows_copied:,} rows"
                    self._task(bars, name, text, table.units_copied, table.units_total)

    def _task(
        self, bars: Progress, name: str, text: str, completed: int | None, total: int | None
    ) -> None:
        if name not in self._tasks:
            self._tasks[name] = bars.add_task(name, total=total, text=text)
        bars.update(self._tasks[name], completed=completed, total=total, text=text)


def streaming_text(subscription: SubscriptionStatus) -> str:
    """State, position and lag in a few words."""
    lag = "" if subscription.lag_bytes is None else f", {subscription.lag_bytes:,} bytes behind"
    return (
        f"{subscription.state}, cut at {subscription.cut_lsn or 'none'}{lag}, "
        f"{subscription.rows_applied:,} rows applied"
    )


def plain_lines(subscriptions: Sequence[SubscriptionStatus]) -> list[str]:
    """One line for each subscription, and one for each table that is being copied."""
    lines = []
    for subscription in subscriptions:
        lines.append(f"{subscription.name}: {streaming_text(subscription)}")
        lines += [
            f"{subscription.name}: copying {t.name}: {t.rows_copied:,} rows, "
            f"{t.units_copied} of {t.units_total} parts"
            for t in subscription.tables
            if t.state == "d" and t.units_total
        ]
    return lines
