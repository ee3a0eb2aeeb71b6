"""What a benchmark says while it runs, each line with the seconds since it began."""

from __future__ import annotations

import time
from typing import Final

_BEGAN: Final = time.monotonic()


def say(text: str) -> None:
    """Nothing for no text."""
    if text:
        print(f"[{time.monotonic() - _BEGAN:6.1f} s] {text}", flush=True)
