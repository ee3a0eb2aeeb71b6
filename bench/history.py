"""``bench/history.md``: what `make bench` measured, commit by commit.

In: figures, the day and the commit. Out: rows at the end of the table, whose head is written with
the first of them.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from figure import Figure

HEAD: Final = """\
# What was measured, commit by commit

Each run of `make bench` adds its rows. Machines differ: what can be compared is the ratio. `+`
after a commit: with changes that were not committed.

| date | commit | workload | PostgreSQL 18 | Penstock | ratio |
|---|---|---|---|---|---|
"""


def row(day: str, commit: str, figure: Figure) -> str:
    cells = (day, commit, figure.workload, figure.native, figure.penstock, f"{figure.ratio:.3g}x")
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"


def append(path: Path, day: str, commit: str, figures: Sequence[Figure]) -> None:
    """One row per figure."""
    before = path.read_text("utf-8") if path.exists() else HEAD
    rows = "".join(row(day, commit, figure) for figure in figures)
    path.write_text(before + rows, encoding="utf-8")


def commit_of(folder: Path, leave_out: str) -> str:
    """The commit that a folder of a repository is at. ``leave_out``: a file in it whose own changes
    do not count."""
    try:
        commit = _git(folder, "rev-parse", "--short", "HEAD")
        changed = _git(folder, "status", "--porcelain", "--", ":/", f":(exclude){leave_out}")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}+" if changed else commit


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", folder, *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
