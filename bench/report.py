"""Where time went: the phases of a node's work, and the greatest of them, the next bottleneck.

In: the log of a node that has PENSTOCK_LOG=DEBUG. Out: lines. Nothing is measured here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

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


def logged(log: Path, what: str, since: int) -> list[dict[str, float]]:
    """The figures after ``what`` ("batch", "copied") in a node's log from byte ``since`` on."""
    with log.open("rb") as file:
        file.seek(since)
        text = file.read().decode("utf-8", "replace")
    return [
        {key: float(value) for key, value in (pair.split("=") for pair in match[1].split())}
        for match in re.finditer(rf"\b{what}{_FIGURES}", text)
    ]


def parts_report(head: str, parts: Mapping[str, float]) -> str:
    """Parts of a time by name, and the greatest one."""
    lines = [f"  {name:<18} {value:6.2f} s" for name, value in parts.items()]
    worst = max(parts, key=lambda name: parts[name])
    return "\n".join([head, *lines, f"  next bottleneck: {worst}"])


def phase_report(
    batches: Sequence[dict[str, float]], seconds: float, what: str, *, idle: bool = False
) -> str:
    """Where the time of ``seconds`` went, and the greatest part of it: the next bottleneck.

    ``idle``: there was not always something to do, so that waiting is none.
    """
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
    if idle:
        del spent["wait"]
    worst = max(spent, key=lambda name: spent[name])
    lines.append(f"  next bottleneck: {_MEANING[worst]}")
    return "\n".join(lines)
