"""A figure: one workload on both sides, as one line of a table and one row of the history.

In: measured seconds. Out: text. Nothing is measured here.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from percentiles import Delay, in_ms, percentile


@dataclass(frozen=True, slots=True)
class Figure:
    """``ratio``: how many times faster than PostgreSQL. ``notes``: printed below the table."""

    workload: str
    native: str
    penstock: str
    ratio: float
    notes: tuple[str, ...] = ()

    def line(self) -> str:
        return f"{self.workload:<82} {self.native:>22} {self.penstock:>22} {self.ratio:8.3g}x"


def of_runs(what: str, count: int, native: Sequence[float], penstock: Sequence[float]) -> Figure:
    """Medians of runs; ``count``: rows or changes in each."""
    theirs, ours = statistics.median(native), statistics.median(penstock)
    runs = f"median of {len(native)}" if len(native) > 1 else "1 run"
    notes: tuple[str, ...] = ()
    if len(native) > 1:
        notes = (
            f"runs of {what}, PostgreSQL: {_list(native)}",
            f"runs of {what}, Penstock: {_list(penstock)}",
        )
    return Figure(
        f"{what} ({runs})", _rate(theirs, count), _rate(ours, count), theirs / ours, notes
    )


def of_delays(
    what: str, native: Sequence[Delay], penstock: Sequence[Delay], *, notes: Sequence[str] = ()
) -> Figure:
    """p50 / p95 / p99; the ratio is that of p50."""
    medians = [percentile([delay.seconds for delay in side], 0.5) for side in (native, penstock)]
    return Figure(
        f"{what}, p50 / p95 / p99 (1 run, {len(penstock)} commits)",
        in_ms(native),
        in_ms(penstock),
        medians[0] / medians[1],
        tuple(notes),
    )


def table(figures: Sequence[Figure], *, native: str = "PostgreSQL 18") -> str:
    head = f"{'':<82} {native:>22} {'Penstock':>22} {'ratio':>9}"
    notes = [f"  {note}" for figure in figures for note in figure.notes]
    return "\n".join([head, *(figure.line() for figure in figures), *notes])


def _rate(seconds: float, count: int) -> str:
    size = f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
    rate = count / seconds / 1000
    return f"{size} ({rate:.0f} k/s)" if rate >= 10 else f"{size} ({rate:.1f} k/s)"


def _list(values: Sequence[float]) -> str:
    return "  ".join(f"{value:.2f} s" for value in values)
