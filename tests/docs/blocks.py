"""Fenced blocks of the Markdown pages, and what each of them is for.

In: a page. Out: its blocks in order. The word behind the language in the opening fence says what a
test does with the block; readers do not see it:

=====================  ==========================================================================
``sh``                 run by bash in the page's folder; exit status 0
``sh background``      started, and running until the page ends
``sh environment``     variables that the tests set to their own object store's
``sh stops-node``      as ``sh``, once the node in the background has been stopped
``sql publisher``      run by the publisher's superuser
``sql node``           run by ``penstock sql``
``sql lake``           run by psql on the node's port, as role ``admin``
``sql subscriber``     run by the superuser of the PostgreSQL that subscribes
``sql spark``          run by a Spark session with Delta
``sql syntax``         a grammar, not run
``python``             run; blocks of a page share their names
``python spark``       the same, with a SparkSession called ``spark``
``ini postgresql.conf``  the publisher of the tests has these settings
``text pg_hba.conf``   and these lines
``yaml``               shown only
``text output``        what the block before it prints; ``...`` stands for anything
``text example``       shown only; so is a block without any language
``X not-run: reason``  not run, for the reason given
=====================  ==========================================================================

Names of the examples are replaced by the tests' own: hosts ``db.example.com`` and
``lake.example.com``, ports 5440 and 9187, folder ``/srv/node``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_FENCE = re.compile(r"^```(.*)$")
_KNOWN = {
    "",
    "sh",
    "sh background",
    "sh environment",
    "sh stops-node",
    "sql publisher",
    "sql node",
    "sql lake",
    "sql subscriber",
    "sql spark",
    "sql syntax",
    "python",
    "python spark",
    "ini postgresql.conf",
    "text pg_hba.conf",
    "yaml",
    "text output",
    "text example",
}


@dataclass(frozen=True)
class Block:
    """``kind``: language and mark of the opening fence; ``heading``: the section it stands in."""

    page: str
    line: int
    heading: str
    kind: str
    text: str

    @property
    def known(self) -> bool:
        """Whether the mark is one of those above."""
        return self.kind in _KNOWN or " not-run: " in self.kind

    @property
    def runs(self) -> bool:
        """Whether a test runs it."""
        shown = self.kind == "" or self.kind.startswith(("text", "ini", "yaml"))
        return self.known and not shown and not self.skipped

    @property
    def skipped(self) -> bool:
        """Whether it is a grammar or says why it is not run."""
        return self.kind == "sql syntax" or " not-run: " in self.kind

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """README and docs, by their paths in the repository."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [str(path.relative_to(ROOT)) for path in found if path.exists()]


def blocks(page: str) -> list[Block]:
    """Every fenced block of a page."""
    found: list[Block] = []
    heading = kind = ""
    begun: int | None = None
    lines: list[str] = []
    for number, line in enumerate((ROOT / page).read_text("utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if fence and begun is None:
            begun, kind, lines = number, fence[1].strip(), []
        elif fence and begun is not None:
            found.append(Block(page, begun, heading, kind, "\n".join(lines)))
            begun = None
        elif begun is not None:
            lines.append(line)
        elif line.startswith("#"):
            heading = line.lstrip("# ").strip()
    assert begun is None, f"{page}:{begun}: block without an end"
    return found
