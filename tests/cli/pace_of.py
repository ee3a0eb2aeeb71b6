"""The last speed of a copy of 100 bytes."""

from __future__ import annotations

from penstock.cli.status import Pace, Speed


def pace_of(*seen: tuple[float, int]) -> Speed:
    """``seen``: (time, bytes)."""
    pace = Pace()
    return [pace.see(at, done, 100, done) for at, done in seen][-1]
