"""Find lists, figures and sentences that stand twice in README and docs.

In: the pages. Out: a line for each that stands twice, and exit status 1. One fact stands in one
place; other pages link to it. What counts as twice, word for word:

- two tables with the same cells in their first column;
- two bullet lists of the same items, four or more;
- two sentences of ten words or more, or of five with a figure and its unit;
- a parameter's default, as in ```apply_batch_idle` (10 ms)``, outside of docs/parameters.md.

Code blocks are not looked at, nor tables that a tool writes, between ``<!-- name -->`` and
``<!-- end of ... -->``.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
LEAST_ROWS: Final = 2
LEAST_ITEMS: Final = 4
LEAST_WORDS: Final = 10
LEAST_WORDS_WITH_FIGURE: Final = 5
PARAMETERS: Final = "docs/parameters.md"

_LEFT_OUT: Final = re.compile(r"```.*?```|<!-- (?!end of).*?<!-- end of [^>]*-->", re.DOTALL)
_FIGURE: Final = re.compile(r"\d (?:µs|ms|s|seconds|minutes|days|kB|MB|GB|MiB|bytes|rows|%)(?!\w)")
_DEFAULT: Final = re.compile(r"`(\w+)` \((\d[\d,.]*(?: ?[a-zµ]+)?)\)", re.IGNORECASE)
_ITEM: Final = re.compile(r"(?:-|\d+\.) ")


def blocks(text: str) -> Iterator[tuple[str, ...]]:
    """Yield a page's paragraphs, tables and lists, each as its lines."""
    text = re.sub(r"^#.*$", "", _LEFT_OUT.sub("\n\n", text), flags=re.MULTILINE)
    for block in re.split(r"\n\s*\n", text):
        lines = tuple(line.strip() for line in block.splitlines() if line.strip())
        if lines:
            yield lines


def facts(lines: tuple[str, ...]) -> Iterator[str]:
    """Yield what may stand only once of a block, each in words for the message."""
    if lines[0].startswith("|"):
        cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]
        if len(cells) >= LEAST_ROWS:
            yield f"table of {', '.join(row[0] for row in cells)}"
        texts = [cell for row in cells for cell in row]
    elif _ITEM.match(lines[0]):
        texts = items(lines)
        if len(texts) >= LEAST_ITEMS:
            yield f"list of {'; '.join(sorted(texts))}"
    else:
        texts = [" ".join(lines)]
    for text in texts:
        for sentence in re.split(r"(?<=[.:;!?])\s+", text):
            least = LEAST_WORDS_WITH_FIGURE if _FIGURE.search(sentence) else LEAST_WORDS
            if len(sentence.split()) >= least:
                yield f"sentence {sentence}"


def items(lines: tuple[str, ...]) -> list[str]:
    """Return the items of a list, without their marks."""
    found: list[str] = []
    for line in lines:
        mark = _ITEM.match(line)
        if mark:
            found.append(line[mark.end() :])
        else:
            found[-1] += f" {line}"
    return found


def repeated(pages: Mapping[str, str]) -> list[str]:
    """Return a line for each fact that stands twice, with the pages that have it."""
    places = defaultdict(list)
    for page, text in pages.items():
        for lines in blocks(text):
            for fact in facts(lines):
                places[fact].append(page)
    twice = [f"{', '.join(found)}: {fact}" for fact, found in places.items() if len(found) > 1]
    return [*twice, *defaults(pages)]


def defaults(pages: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each default of a parameter outside of the page of parameters."""
    known = set(re.findall(r"^\| `(\w+)` \|", pages.get(PARAMETERS, ""), re.MULTILINE))
    for page, text in pages.items():
        for name, value in _DEFAULT.findall(text):
            if name in known and page != PARAMETERS:
                yield f"{PARAMETERS}, {page}: default {value} of {name}"


def main() -> None:
    paths = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = repeated({str(path.relative_to(ROOT)): path.read_text("utf-8") for path in paths})
    if found:
        sys.exit("stands twice:\n" + "\n".join(found))


if __name__ == "__main__":
    main()
