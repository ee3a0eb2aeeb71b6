"""Write README's table of speed from ``bench/history.md``, or compare the two.

In: the rows that ``make bench`` has added. Out: between the marks in README.md the newest row of
each workload below. ``--check`` writes nothing and ends with 1 where README shows other figures.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
HISTORY: Final = ROOT / "bench" / "history.md"
README: Final = ROOT / "README.md"
BEGIN: Final = "<!-- figures: tools/write_figures.py -->"
END: Final = "<!-- end of figures -->"
HEAD: Final = """\
| on 2 cores, 5 M rows of pgbench_accounts | PostgreSQL 18 | Penstock | ratio |
|---|---|---|---|
"""
SHOWN: Final = {
    "copy of 5000000 accounts": "subscribing: initial copy",
    "backlog of 1000000 random updates": "subscribing: backlog of 1 M single-row updates",
    "backlog of 500000 inserts, 1000 rows a transaction": "subscribing: backlog of 500,000 inserts",
    "commit to visible, one table, 100/s, p50 / p95 / p99": (
        "subscribing: commit to visible at 100 transactions/s, p50 / p95 / p99"
    ),
    "publishing: copy of 5000000 accounts": "publishing to a PostgreSQL 18: initial copy",
    "publishing: 1000000 changes in 20 transactions": "publishing to a PostgreSQL 18: 1 M changes",
}
"""README's words by the workload's name in the history, without how often it ran."""


def newest(history: str) -> dict[str, tuple[str, str, str]]:
    """Return PostgreSQL's figure, ours and the ratio of the last row of each workload."""
    found = {}
    for line in history.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and re.fullmatch(r"\d{4}-\d\d-\d\d", cells[0]):
            workload = re.sub(r" \([^()]*\)$", "", cells[2])
            found[workload] = (cells[3], cells[4], cells[5])
    return found


def table(history: str) -> str:
    """Return README's table. Raises KeyError where the history has no such workload."""
    rows = newest(history)
    lines = []
    for workload, words in SHOWN.items():
        server, node, ratio = (re.sub(r" \(.*\)$", "", cell) for cell in rows[workload])
        shown = "" if "visible" in workload else ratio
        lines.append(f"| {words} | {server} | {node} | {shown} |\n")
    return HEAD + "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="README's table of speed from bench/history.md")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    options = parser.parse_args()
    before = README.read_text("utf-8")
    head, rest = before.split(BEGIN)
    _, tail = rest.split(END)
    after = f"{head}{BEGIN}\n{table(HISTORY.read_text('utf-8'))}{END}{tail}"
    if not options.check:
        README.write_text(after, "utf-8")
    elif after != before:
        sys.exit("README.md shows other figures than bench/history.md: run tools/write_figures.py")


if __name__ == "__main__":
    main()
