"""``penstock start`` and ``penstock run``: a node in the foreground, until a signal or its goal.

In: a node's folder; SIGINT, SIGTERM and SIGHUP. Out: a node that works, with its progress on the
terminal, and the exit status. The first signal asks for an end after the current cut; the second
ends the process at once, as a crash would. SIGHUP makes it read its parameters again.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer

from penstock.cli import NodeDir
from penstock.cli.progress import ProgressDisplay
from penstock.node import Node
from penstock.node.catching_up import CaughtUp
from penstock.node.reloading import reload_told

_STDERR: Final = 2

SIGNALLED: Final = 128
"""The exit status of a process that a signal has ended is this and the signal's number."""


_STOP: Final = b"s"
_RELOAD: Final = b"r"


class StopSignals:
    """``stop`` is set by the first signal; ``number`` is that signal then, None before.
    ``reload``: what SIGHUP calls.

    A handler runs in the main thread between two of its steps, whatever lock that holds. So it
    takes none, and another thread sets the event and says so, or reloads.
    """

    def __init__(self) -> None:
        self.stop: Final = threading.Event()
        self.number: int | None = None
        self.reload: Callable[[], None] = lambda: None
        self._read, self._write = os.pipe()

    def listen(self) -> None:
        """From now on, in this process. The main thread's to call."""
        threading.Thread(target=self._wait, name="signals", daemon=True).start()
        signal.signal(signal.SIGINT, self._handle)
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGHUP, self._hang_up)

    def _hang_up(self, _number: int, _frame: FrameType | None) -> None:
        os.write(self._write, _RELOAD)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.number is not None:
            os.write(_STDERR, b"stopping at once\n")
            os._exit(SIGNALLED + number)
        self.number = number
        os.write(self._write, _STOP)

    def _wait(self) -> None:
        while os.read(self._read, 1) == _RELOAD:
            self.reload()
        self.stop.set()
        print("stopping after the current cut; again: stop at once", file=sys.stderr, flush=True)


def start(directory: NodeDir = Path()) -> None:
    """Run the node: workers for every enabled subscription, until SIGINT or SIGTERM.

    The first signal stops after the current cut, with exit status 0; the second stops at once, with
    128 and the signal's number (130, 143).
    """
    signals = StopSignals()
    signals.listen()
    with Node(directory) as node:
        node.start()
        # What is imported by now stays. Looking through it for garbage again and again would stop
        # all threads for a tenth of a second each time.
        gc.collect()
        gc.freeze()
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
    after an error, which a subscription that has stopped and the end of the time are; 130 or 143
    when SIGINT or SIGTERM came before all were caught up.
    """
    signals = StopSignals()
    signals.listen()
    reached: Sequence[CaughtUp] = ()
    with Node(directory) as node:
        node.start()
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
