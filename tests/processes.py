"""The processes below another one, from Linux's /proc."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


def below(root: int) -> Iterator[int]:
    yield root
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{root}/task").iterdir():
            with contextlib.suppress(OSError):  # a thread may end at any moment
                children += map(int, (thread / "children").read_text().split())
    for child in children:
        yield from below(child)


def command_line(process: int) -> bytes:
    """The words of its command line, with NULs between; none if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes()
    return b""
