"""A program on a terminal: a pty, and what a person sees there.

In: a command. Out: its screen as it is now, and everything that has scrolled out of it, by a
terminal emulator.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyte

_PIECE = 64
"""Bytes taken in at once: so few that no state of the screen is overlooked."""


def _inherited() -> dict[str, str]:
    """Without the size of the terminal that the tests run on, which would count for more."""
    return {name: v for name, v in os.environ.items() if name not in ("COLUMNS", "LINES")}


class Terminal:
    """A context manager that ends the program."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        columns: int = 120,
        lines: int = 30,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._screen = pyte.HistoryScreen(columns, lines, history=10_000, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._master = master
        self._process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**_inherited(), "TERM": "xterm-256color", **(environment or {})},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
        )
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._master)

    def read(self, seconds: float = 0.1) -> bool:
        """Take in what the program prints within that time; False: it has ended."""
        if not select.select([self._master], [], [], seconds)[0]:
            return True
        try:
            data = os.read(self._master, _PIECE)
        except OSError:  # EIO: nobody has the other end any more
            return False
        self.raw += data
        self._stream.feed(data)
        return bool(data)

    def terminate(self) -> None:
        """As by ``kill``."""
        self._process.terminate()

    def press(self, keys: bytes) -> None:
        """As typed: b"\\x03" is Ctrl-C."""
        os.write(self._master, keys)

    def wait_for(self, what: str, state: Callable[[list[str]], bool], timeout: float = 60) -> None:
        """Wait until what is visible satisfies ``state``."""
        deadline = time.monotonic() + timeout
        while not state(self.visible()):
            assert self.read(), f"it ended ({self._process.wait(5)}) before {what}:\n{self.text()}"
            assert time.monotonic() < deadline, f"no {what}:\n{self.text()}"

    def end(self, timeout: float = 60) -> int:
        """Wait until the program ends; its exit status."""
        deadline = time.monotonic() + timeout
        while self.read():
            assert time.monotonic() < deadline, self.text()
        return self._process.wait(timeout)

    def visible(self) -> list[str]:
        """The lines of the screen, without trailing blanks."""
        return [line.rstrip() for line in self._screen.display if line.strip()]

    def lines(self) -> list[str]:
        """Everything that can be read by scrolling back, too."""
        above = [
            "".join(row[x].data for x in range(self._screen.columns)).rstrip()
            for row in self._screen.history.top
        ]
        return [line for line in above if line] + self.visible()

    def text(self) -> str:
        return "\n".join(self.lines())
