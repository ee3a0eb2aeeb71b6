"""Figures to text: a table of ratios, the phases of a backlog, and what limits it.

In: measured seconds, and the log of a node that has PENSTOCK_LOG=DEBUG. Out: lines. Nothing is
measured here.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from latency import percentile

_FIGURES: Final = r" ((?:[a-z]+=[0-9.]+ ?)+)"
PHASES: Final = ("decode", "fold", "job", "commit", "cut")
_MEANING: Final = {
    "wait": "waiting for the walsender (receive)",
    "decode": "decoding of pgoutput",
    "fold": "the fold",
    "job": "the Spark job (locate and write)",
    "commit": "the commits of the tables",
    "cut": "the cut",
    "other": "the rest of the driver's work",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs of one workload on both sides, in seconds; ``count``: rows or changes in each."""

    what: str
    count: int
    native: Sequence[float]
    penstock: Sequence[float]

    def line(self) -> str:
        native, ours = statistics.median(self.native), statistics.median(self.penstock)
        return (
            f"{self.what:<44} {native:8.1f} s {self.count / native / 1000:8.0f} k/s"
            f" {ours:8.1f} s {self.count / ours / 1000:8.0f} k/s {native / ours:7.2f}x"
        )


def comparison_table(comparisons: Sequence[Comparison], *, native: str = "PostgreSQL 18") -> str:
    head = f"{'':<44} {native:>22} {'Penstock':>22} {'ratio':>8}"
    lines = [head, *(comparison.line() for comparison in comparisons)]
    for comparison in comparisons:
        if len(comparison.native) > 1:
            lines.append(f"  runs of {comparison.what}, s:")
            lines.append(f"    PostgreSQL {_list(comparison.native)}")
            lines.append(f"    Penstock   {_list(comparison.penstock)}")
    return "\n".join(lines)


def _list(values: Sequence[float]) -> str:
    return "  ".join(f"{value:.1f}" for value in values)


def latency_table(rows: Sequence[tuple[str, list[float]]], rate: float) -> str:
    title = f"commit to visible, {rate:g} transactions/s"
    lines = [f"{title:<44} {'p50':>9} {'p95':>9} {'p99':>9}"]
    for name, delays in rows:
        cells = " ".join(f"{percentile(delays, p) * 1000:6.0f} ms" for p in (0.5, 0.95, 0.99))
        lines.append(f"  {f'{name}, {len(delays)} transactions':<42} {cells}")
    return "\n".join(lines)


def logged(log: Path, what: str, since: int) -> list[dict[str, float]]:
    """The figures after ``what`` ("batch", "copied") in a node's log from byte ``since`` on."""
    with log.open("rb") as file:
        file.seek(since)
        text = file.read().decode("utf-8", "replace")
    return [
        {key: float(value) for key, value in (pair.split("=") for pair in match[1].split())}
        for match in re.finditer(rf"\b{what}{_FIGURES}", text)
    ]


def phase_report(batches: Sequence[dict[str, float]], seconds: float, what: str) -> str:
    """Where the time of ``seconds`` went, and the greatest part of it: the next bottleneck."""
    if not batches:
        return f"{what}: the node has logged no phases"
    spent = {name: sum(batch.get(name, 0.0) for batch in batches) for name in PHASES}
    busy = sum(batch.get("total", sum(batch.get(n, 0.0) for n in PHASES)) for batch in batches)
    spent["other"] = max(0.0, busy - sum(spent.values()))
    spent["wait"] = max(0.0, seconds - busy)
    rows = int(sum(batch.get("rows", 0.0) for batch in batches))
    lines = [f"{what}: {len(batches)} batches, {rows} changes, {seconds:.1f} s"]
    lines += [
        f"  {name:<7} {value:7.2f} s {value / seconds:6.0%}"
        for name, value in sorted(spent.items(), key=lambda item: -item[1])
    ]
    worst = max(spent, key=lambda name: spent[name])
    lines.append(f"  next bottleneck: {_MEANING[worst]}")
    return "\n".join(lines)
