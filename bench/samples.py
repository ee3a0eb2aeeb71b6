"""What a node's tables and processes have grown to, at one moment, and how that is shown.

In: the warehouse, delays, memory. Out: rows of a CSV file, the panels of a plot, and the first
quarter of a run beside the last.
"""

from __future__ import annotations

import contextlib
import csv
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from deltalake import DeltaTable

from percentiles import percentile
from svg import Panel

_MIB: Final = 1 << 20
_KIND_OF: Final = {"driver": "driver", "jvm": "JVM", "worker": "workers"}


@dataclass(frozen=True, slots=True)
class TableSize:
    """``live``: data files of the newest version; ``kept``: of all that are there."""

    live: int
    kept: int
    entries: int
    log_bytes: int


@dataclass(frozen=True, slots=True)
class Sample:
    """``at``: seconds since the load began; ``commits`` so far; ``lags``: seconds, of those that
    became visible since the last sample; ``mib`` by kind of process."""

    at: float
    commits: int
    lags: tuple[float, ...]
    mib: Mapping[str, int]
    tables: Mapping[str, TableSize]

    def values(self) -> dict[str, float]:
        """By the names of columns."""
        found: dict[str, float] = {"seconds": round(self.at, 1), "commits": self.commits}
        for name, value in self.lag().items():
            found[f"lag_{name}_ms"] = round(value * 1000)
        for kind, mib in self.mib.items():
            found[f"{kind}_mib"] = mib
        for name, size in self.tables.items():
            found |= {
                f"{name}_files": size.live,
                f"{name}_files_kept": size.kept,
                f"{name}_log_entries": size.entries,
                f"{name}_log_bytes": size.log_bytes,
            }
        return found

    def lag(self) -> dict[str, float]:
        """p50, p99 and max; 0 where nothing was committed."""
        lags = self.lags or (0.0,)
        return {"p50": percentile(lags, 0.5), "p99": percentile(lags, 0.99), "max": max(lags)}


def size_of(folder: Path) -> TableSize:
    """Of a Delta table. Entries: all files of its log, checkpoints too."""
    log = _files(folder / "_delta_log")
    # By name alone: to look at each takes a core from the node once there are many.
    kept = sum(1 for _ in folder.glob("*.parquet"))
    return TableSize(len(DeltaTable(folder).file_uris()), kept, len(log), sum(log.values()))


def _files(folder: Path) -> dict[str, int]:
    """Their bytes. Temporary ones are renamed or removed at any moment."""
    found: dict[str, int] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_file() and not entry.name.endswith(".tmp"):
                    found[entry.name] = entry.stat().st_size
    return found


def write_csv(path: Path, samples: Sequence[Sample]) -> None:
    rows = [sample.values() for sample in samples]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def panels(samples: Sequence[Sample]) -> list[Panel]:
    """Lag, memory, and what the tables have."""
    minutes = [sample.at / 60 for sample in samples]

    def series(values: Sequence[float]) -> list[tuple[float, float]]:
        return list(zip(minutes, values, strict=True))

    names = list(samples[-1].tables)

    def tables(field: str, scale: float = 1.0) -> dict[str, list[tuple[float, float]]]:
        return {
            name: series([getattr(sample.tables[name], field) / scale for sample in samples])
            for name in names
        }

    lags = [sample.lag() for sample in samples]
    return [
        Panel("commit to visible", "ms", {n: series([v[n] * 1000 for v in lags]) for n in lags[0]}),
        Panel(
            "resident memory",
            "MiB",
            {
                shown: series([sample.mib[kind] for sample in samples])
                for kind, shown in _KIND_OF.items()
            },
        ),
        Panel("data files of the newest version", "files", tables("live")),
        Panel("data files in the folder", "files", tables("kept")),
        Panel("files of the log", "files", tables("entries")),
        Panel("size of the log", "MiB", tables("log_bytes", _MIB)),
    ]


def quarters(samples: Sequence[Sample]) -> str:
    """The median of each figure in the first quarter and in the last."""
    part = max(1, len(samples) // 4)
    first = [sample.values() for sample in samples[:part]]
    last = [sample.values() for sample in samples[-part:]]
    lines = [f"{'median of':<40} {'first quarter':>14} {'last quarter':>14} {'growth':>8}"]
    for name in first[0]:
        if name in ("seconds", "commits"):
            continue
        before, after = (statistics.median(row[name] for row in rows) for rows in (first, last))
        growth = f"{after / before:7.2f}x" if before else f"{'-':>8}"
        lines.append(f"{name:<40} {before:14,.10g} {after:14,.10g} {growth}")
    return "\n".join(lines)
