"""SIGINT and SIGTERM for commands that run until they are stopped.

In: signals. Out: an event for whoever waits, and which signal it was. The first one asks for an end
after the current cut; the second ends the process at once, as a crash would.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Final

_STDERR: Final = 2

SIGNALLED: Final = 128
"""The exit status of a process that a signal has ended is this and the signal's number."""


class StopSignals:
    """``stop`` is set by the first signal; ``number`` is that signal then, None before.

    A handler runs in the main thread between two of its steps, whatever lock that holds. So it
    takes none, and another thread sets the event and says so.
    """

    def __init__(self) -> None:
        self.stop: Final = threading.Event()
        self.number: int | None = None
        self._read, self._write = os.pipe()

    def listen(self) -> None:
        """From now on, in this process. The main thread's to call."""
        threading.Thread(target=self._wait, name="signals", daemon=True).start()
        signal.signal(signal.SIGINT, self._handle)
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.number is not None:
            os.write(_STDERR, b"stopping at once\n")
            os._exit(SIGNALLED + number)
        self.number = number
        os.write(self._write, b"\0")

    def _wait(self) -> None:
        os.read(self._read, 1)
        self.stop.set()
        print("stopping after the current cut; again: stop at once", file=sys.stderr, flush=True)
