"""Lines for standard error while something is drawn in place at the end of the terminal.

In: whatever is written to ``sys.stderr``: log lines, notices. Out: whole lines above the drawing,
as they are: not wrapped, coloured or cut, so that they can be read and copied.
"""

from __future__ import annotations

import io
import sys
import threading
from types import TracebackType

from rich.console import Console
from rich.text import Text


class AboveBars(io.TextIOBase):
    """Stands for ``sys.stderr`` from ``__enter__`` to ``__exit__``.

    ``drawing``: to be held by the one that draws. rich places a line above what it drew last, and
    writes it a moment later: what is drawn in between would stay on the screen.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._before = sys.stderr
        self.drawing = threading.RLock()
        self._begun = ""

    def writable(self) -> bool:
        """As of a file."""
        return True

    def isatty(self) -> bool:
        """As of a file."""
        return self._console.is_terminal

    def write(self, text: str) -> int:
        """Print the lines that are whole; keep what is begun."""
        with self.drawing:
            *lines, self._begun = (self._begun + text).split("\n")
            for line in lines:
                self._console.print(Text(line), soft_wrap=True)
        return len(text)

    def __enter__(self) -> AboveBars:
        self._before, sys.stderr = sys.stderr, self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        sys.stderr = self._before
        if self._begun:
            self.write("\n")
