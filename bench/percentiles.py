"""Percentiles of delays, and whether they grew in the course of a run.

In: delays with the time of their commit. Out: numbers and text. Nothing else is known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SHARES: Final = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Delay:
    """``at``: when COMMIT was sent; ``seconds``: until a reader saw it."""

    at: float
    seconds: float


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of the values do not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def in_ms(delays: Sequence[Delay]) -> str:
    """``p50 / p95 / p99 ms``; ``-`` without any."""
    if not delays:
        return "-"
    seconds = [delay.seconds for delay in delays]
    return " / ".join(f"{percentile(seconds, share) * 1000:.0f}" for share in SHARES) + " ms"


def ends(delays: Sequence[Delay], seconds: float) -> tuple[list[Delay], list[Delay]]:
    """The delays of the first and of the last ``seconds`` of a run; of its halves when it was
    shorter than both."""
    if not delays:
        return [], []
    first = min(delay.at for delay in delays)
    last = max(delay.at for delay in delays)
    part = min(seconds, (last - first) / 2)
    return (
        [delay for delay in delays if delay.at <= first + part],
        [delay for delay in delays if delay.at > last - part],
    )
