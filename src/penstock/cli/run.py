"""``penstock start`` and ``run``: a node in the foreground, until a signal or until caught up.

The terminal shows the node's progress, and the process returns the exit status. The first SIGINT or
SIGTERM asks for an end after the current cut; the second ends the process at once, as a crash
would. SIGHUP makes the node read its parameters again.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from penstock.cli import NodeDir
from penstock.cli.status import Pace, Speed, amount
from penstock.errors import PenstockError
from penstock.node import Node
from penstock.node.guc import reload_told
from penstock.node.status import CatchupState, SubscriptionStatus, TableStatus
from penstock.precedence import PRECEDENCE
from penstock.wait_event import leave_behind, silent_wait

_STDERR: Final = 2

SIGNALLED: Final = 128
"""The exit status of a process that a signal has ended is this plus the signal's number."""


_LOOK_S: Final = 0.1
_LONGEST_S: Final = 4.0
"""Seconds after a signal in which the node stops in order, beside what does not answer."""
_MANY: Final = 64
"""The signals that are read at once."""


class StopSignals:
    """The handler of signals. The first SIGINT or SIGTERM sets ``number`` to its number, which is
    None until then, and ``stop``. SIGHUP calls ``reload``.

    A thread hears of signals by a pipe. A handler in Python would not run while the main thread is
    in a call, which may wait for a storage that does not answer, and could take no lock.
    """

    def __init__(self, told: bool = False) -> None:
        """``told``: the exit status tells of the signal."""
        self.stop: Final = threading.Event()
        self.number: int | None = None
        self._told = told
        self.reload: Callable[[], None] = lambda: None
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)

    def listen(self) -> None:
        """Handle the signals of this process from now on. Only the main thread may call it."""
        threading.Thread(target=self._wait, name="signals", daemon=True).start()
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, _go_on)

    def _wait(self) -> None:
        began: float | None = None
        while True:
            if select.select([self._read], [], [], None if began is None else _LOOK_S)[0]:
                for number in os.read(self._read, _MANY):
                    self._take(number)
            if self.number is None:
                continue
            began = began or time.monotonic()
            if time.monotonic() - began > _LONGEST_S and (wait := silent_wait()) is not None:
                # What starts or stops in the main thread may wait for it, too.
                leave_behind("main thread", wait)
                end_process(SIGNALLED + self.number if self._told else 0)

    def _take(self, number: int) -> None:
        if number == signal.SIGHUP and self.number is None:
            self.reload()
        elif number in (signal.SIGINT, signal.SIGTERM) and self.number is None:
            self.number = number
            self.stop.set()
            print(
                "stopping after the current cut; again: stop at once", file=sys.stderr, flush=True
            )
        elif number in (signal.SIGINT, signal.SIGTERM):
            os.write(_STDERR, b"stopping at once\n")
            os._exit(SIGNALLED + number)


def _go_on(_number: int, _frame: FrameType | None) -> None:
    """Let the main thread go on: another thread hears of the signal."""


def end_process(status: int) -> None:
    """End this process without waiting for its threads."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def start(directory: NodeDir = Path()) -> None:
    """Run the node until SIGINT or SIGTERM.

    It has workers for every enabled subscription. The first signal stops after the current cut,
    with exit status 0; the second stops at once, with 128 and the signal's number (130, 143).
    """
    signals = StopSignals()
    signals.listen()
    with Node(directory) as node:
        node.start(signals.stop)
        collect_garbage()
        signals.reload = partial(reload_told, node.folder, node.reload)
        with ProgressDisplay(node.status):
            node.wait_until(signals.stop)


def run(
    directory: NodeDir = Path(),
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End when every subscription is caught up.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(help="Seconds after which to give up (exit status 1).")
    ] = 3600.0,
) -> None:
    """Run the node once, for cron or Airflow.

    Caught up: every table is part of a cut at or after the publisher's WAL position at the start.
    Exit status: 0 when all are caught up (without --until-caught-up: after SIGINT or SIGTERM); 1
    after an error, a stopped subscription or the end of the time; 130 or 143 when SIGINT or SIGTERM
    came before all were caught up.
    """
    signals = StopSignals(until_caught_up)
    signals.listen()
    reached: Sequence[CatchupState] = ()
    with Node(directory) as node:
        node.start(signals.stop)
        signals.reload = partial(reload_told, node.folder, node.reload)
        with ProgressDisplay(node.status):
            if until_caught_up:
                reached = node.wait_until_caught_up(timeout, signals.stop)
            else:
                node.wait_until(signals.stop)
    if not until_caught_up:
        typer.echo("stopped")
        return
    for subscription in reached:
        typer.echo(subscription.text())
    if not all(subscription.reached for subscription in reached):
        raise typer.Exit(SIGNALLED + (signals.number or 0))
    typer.echo("caught up" if reached else "no subscription is enabled")


# Python's full collections of garbage stop all threads for 0.1 to 0.3 s. Python makes one whenever
# the number of objects has grown by a quarter, so in the middle of somebody's statement; the node
# makes one when it has nothing else to do.

_COLLECTED_EVERY_S: Final = 60.0
_COLLECTED_AFTER_S: Final = 600.0
"""The longest time between two collections if the node is never idle."""
_GROWTH: Final = 256 << 20
"""Bytes by which the process may grow until there is a collection in any case."""
_NEVER: Final = (1 << 31) - 1
_STATM: Final = Path("/proc/self/statm")


def collect_garbage() -> None:
    """Collect garbage now, and from now on when the node is idle."""
    gc.collect()
    gc.freeze()  # what has been imported stays alive, and need not be searched
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    threading.Thread(target=_collect, args=(_memory(),), name="garbage", daemon=True).start()


def _collect(size: int) -> None:
    last = time.monotonic()
    while True:
        time.sleep(_LOOK_S)
        since, now = time.monotonic() - last, _memory()
        idle = since >= _COLLECTED_EVERY_S and PRECEDENCE.idle
        if idle or since >= _COLLECTED_AFTER_S or now - size >= _GROWTH:
            gc.collect()
            last, size = time.monotonic(), _memory()


def _memory() -> int:
    """Return the bytes of memory that this process has; 0 where it is not known."""
    with contextlib.suppress(OSError):
        return int(_STATM.read_text("ascii").split()[1]) * resource.getpagesize()
    return 0


# Progress of copies and of the stream while a node runs in the foreground.
#
# On a terminal bars stand below the log lines. Each disappears when its copy is done, and all at
# the end. Elsewhere a plain line is printed now and then while tables are copied, and when a state
# changes. The display only reads the node's status; a failing read is skipped.

_TERMINAL_INTERVAL: Final = 0.5
_PLAIN_INTERVAL: Final = 10.0
_BAR_WIDTH: Final = 20
_LAST_READ_S: Final = 1.0
"""Seconds to wait for a reading of the status, which may be one of a silent state store."""
_GAPS: Final = 2
"""Characters between a line's name, its bar and its text."""
_BARS: Final = 8
"""The most tables with a bar of their own; more bars would not fit below the log lines."""


class ProgressDisplay:
    """A context manager that shows progress on standard error until it ends."""

    def __init__(
        self,
        status: Callable[[], Sequence[SubscriptionStatus]],
        *,
        plain_interval: float = _PLAIN_INTERVAL,
    ) -> None:
        self._status = status
        self._plain_interval = plain_interval
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def __enter__(self) -> ProgressDisplay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(_LAST_READ_S)

    def _run(self) -> None:
        console = Console(file=sys.stderr)  # the real stderr, which ``AboveBars`` replaces later
        if console.is_terminal:
            self._draw(console)
            return
        lines = PlainLines()
        while not self._ended.wait(self._plain_interval):
            for line in lines.of(self._read(), time.monotonic()):
                print(line, file=sys.stderr, flush=True)

    def _draw(self, console: Console) -> None:
        progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=_BAR_WIDTH),
            TextColumn("{task.fields[text]}"),
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        bars = Bars(progress)
        with AboveBars(console) as above:
            with above.drawing:
                progress.start()
            try:
                while not self._ended.wait(_TERMINAL_INTERVAL):
                    status = self._read()
                    with above.drawing:
                        bars.show(status, time.monotonic())
                        progress.refresh()
            finally:
                with above.drawing:
                    progress.stop()

    def _read(self) -> Sequence[SubscriptionStatus]:
        try:
            return self._status()
        except PenstockError:
            return ()


class _Copies:
    """The running copies, with their speeds."""

    def __init__(self) -> None:
        self._paces: dict[str, Pace] = {}

    def speed(self, name: str, tables: Sequence[TableStatus], at: float) -> Speed:
        return self._paces.setdefault(name, Pace()).see(
            at,
            sum(t.bytes_copied for t in tables),
            sum(t.bytes_total for t in tables),
            sum(t.rows_copied for t in tables),
        )

    def keep_only(self, names: set[str]) -> None:
        self._paces = {name: pace for name, pace in self._paces.items() if name in names}


class Bars:
    """Bars: for each subscription one line, one for all its copies, and some for single copies."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}
        self._copies = _Copies()

    def show(self, subscriptions: Sequence[SubscriptionStatus], at: float) -> None:
        """Draw the present lines, and remove those of finished copies."""
        groups = {s.name: _bars_of(s) for s in subscriptions}
        shown = {*groups, *(name for bars in groups.values() for name in bars)}
        room = self._progress.console.width - _BAR_WIDTH - _GAPS - max(map(len, shown), default=0)
        for subscription in subscriptions:
            text = streaming_text(subscription, room)
            self._line(subscription.name, text, None, None)
            for name, tables in groups[subscription.name].items():
                self._copy(name, tables, at, room)
        for name in self._tasks.keys() - shown:
            self._progress.remove_task(self._tasks.pop(name))
        self._copies.keep_only(shown)

    def _copy(self, name: str, tables: Sequence[TableStatus], at: float, room: int) -> None:
        ended = sum(table.state != "d" for table in tables)
        before = f"{ended} of {len(tables)}, " if len(tables) > 1 else ""
        speed = self._copies.speed(name, tables, at)
        text = before + copy_text(tables, speed, room - len(before))
        done, total = (sum(getattr(t, f"bytes_{what}") for t in tables) for what in _DONE_TOTAL)
        self._line(name, text, done, total or None)

    def _line(self, name: str, text: str, completed: int | None, total: int | None) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total, text=text)
        self._progress.update(self._tasks[name], completed=completed, total=total, text=text)


_DONE_TOTAL: Final = ("copied", "total")


def _bars_of(subscription: SubscriptionStatus) -> dict[str, list[TableStatus]]:
    """Return the bars of copies by name: one for all together, if there are several, and one for
    each, up to ``_BARS``."""
    copied = copied_tables(subscription)
    together = {f"{subscription.name} copy": copied} if len(copied) > 1 else {}
    running = [table for table in copied if table.state == "d"]
    return together | {f"{subscription.name} copy {t.name}": [t] for t in running[:_BARS]}


class PlainLines:
    """The progress as lines of a log."""

    def __init__(self) -> None:
        self._copies = _Copies()
        self._states: dict[str, str] = {}

    def of(self, subscriptions: Sequence[SubscriptionStatus], at: float) -> list[str]:
        """Return a line for each table that is being copied, and for each subscription that copies
        or whose state has changed."""
        lines = []
        shown: set[str] = set()
        for s in subscriptions:
            running = [table for table in copied_tables(s) if table.state == "d"]
            if running or self._states.get(s.name) != s.state:
                lines.append(f"{s.name}: {streaming_text(s)}")
            self._states[s.name] = s.state
            for table in running:
                name = f"{s.name}: copying {table.name}"
                shown.add(name)
                speed = self._copies.speed(name, [table], at)
                lines.append(f"{name}: {copy_text([table], speed)}")
        self._copies.keep_only(shown)
        return lines


def copied_tables(subscription: SubscriptionStatus) -> list[TableStatus]:
    """Return the tables of the running copies, also finished tables; [] if no copy runs."""
    tables = [table for table in subscription.tables if table.units_total]
    return tables if any(table.state == "d" for table in tables) else []


def copy_text(tables: Sequence[TableStatus], speed: Speed, room: int | None = None) -> str:
    """Return the amount copied, the total, the speed, and the time left. ``room``: the most
    characters; amount and time left take precedence."""
    done, total = (sum(getattr(t, f"bytes_{what}") for t in tables) for what in _DONE_TOTAL)
    rows = sum(table.rows_copied for table in tables)
    parts = [f"{amount(done)} of {amount(total)}", f"{rows:,} rows"]
    by_use = [0, 1]
    if speed.left is not None:
        left = timedelta(seconds=round(speed.left))
        parts += [f"{amount(round(speed.bytes))}/s", f"{speed.rows:,.0f} rows/s", f"{left} left"]
        by_use = [0, 4, 2, 1, 3]
    return ", ".join(parts) if room is None else _fitting(parts, by_use, room)


def _fitting(parts: Sequence[str], by_use: Sequence[int], room: int) -> str:
    """Return as many parts as fit, in their order; ``by_use``: their indexes, most useful first."""
    shown: list[int] = []
    for index in by_use:
        wider = sorted([*shown, index])
        if shown and len(", ".join(parts[i] for i in wider)) > room:
            break
        shown = wider
    return ", ".join(parts[i] for i in shown)


def streaming_text(subscription: SubscriptionStatus, room: int | None = None) -> str:
    """Return state, position and lag in a few words. ``room``: the most characters."""
    parts = [
        subscription.state,
        f"cut at {subscription.cut_lsn or 'none'}",
        f"{subscription.rows_applied:,} rows applied",
    ]
    by_use = [0, 1, 2]
    if subscription.lag_bytes is not None:
        parts.insert(2, f"{amount(subscription.lag_bytes)} behind")
        by_use = [0, 2, 1, 3]
    return ", ".join(parts) if room is None else _fitting(parts, by_use, room)


# Standard error while bars are drawn at the end of the terminal. Log lines and notices go above the
# bars as whole lines: not wrapped, coloured or cut, so that they can be read and copied.


class AboveBars(io.TextIOBase):
    """A file that replaces ``sys.stderr`` from ``__enter__`` to ``__exit__``.

    Code that draws must hold ``drawing``. rich places a line above its last drawing, and writes it
    a moment later: anything drawn in between would stay on the screen.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._before = sys.stderr
        self.drawing = threading.RLock()
        self._begun = ""

    def writable(self) -> bool:
        """Return True: lines may be written."""
        return True

    def isatty(self) -> bool:
        """Tell whether the console is a terminal."""
        return self._console.is_terminal

    def write(self, text: str) -> int:
        """Print whole lines; keep an unfinished one until its end comes."""
        with self.drawing:
            *lines, self._begun = (self._begun + text).split("\n")
            for line in lines:
                self._console.print(Text(line), soft_wrap=True)
        return len(text)

    def __enter__(self) -> AboveBars:
        self._before, sys.stderr = sys.stderr, self
        return self

    def __exit__(self, *_: object) -> None:
        sys.stderr = self._before
        if self._begun:
            self.write("\n")
