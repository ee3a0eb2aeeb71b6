"""The tables of ``docs/fidelity.md``, out of ``expected.toml``, and lines for the terminal.

``python -m tap.page`` writes the tables into the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tap.comparison import Counts, expected_counts, total
from tap.expected import ExpectedRole, load

PAGE = Path(__file__).parents[2] / "docs" / "fidelity.md"

_HEADINGS = ("file", "assertions", "passed", "failed", "not applicable")


def table(role: ExpectedRole) -> str:
    """Return a role's table: a line for each file that does not pass whole, with its reasons, one
    for all others, and the sum."""
    lines = [_row((*_HEADINGS, "why")), _row(("---", *["---:"] * 4, "---"))]
    passed: list[Counts] = []
    others: list[Counts] = []
    for name, file in sorted(role.files.items()):
        counts = expected_counts(file)
        reasons = [*file.failed.items(), *file.not_applicable.items()]
        if reasons:
            why = "; ".join(f"{reason} ({len(numbers)})" for reason, numbers in reasons)
            lines.append(_row((name, *_numbers(counts), why)))
        (others if reasons else passed).append(counts)
    lines.append(_row((f"{len(passed)} other files", *_numbers(total(passed)), "")))
    lines.append(_row(("**all**", *_numbers(total([*passed, *others])), "")))
    return "\n".join(lines)


def missing_tables(text: str, roles: Mapping[str, ExpectedRole]) -> list[str]:
    """Roles whose table is not in the page's text as it should be."""
    return [name for name, role in roles.items() if table(role) not in text]


def with_tables(text: str, roles: Mapping[str, ExpectedRole]) -> str:
    """The page's text with its tables between their marks replaced."""
    for name, role in roles.items():
        head, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, tail = rest.partition(f"<!-- end of {name} -->")
        if not begin or not end:
            raise ValueError(f"docs/fidelity.md has no place for the table of {name}")
        text = f"{head}{begin}\n{table(role)}\n\n{end}{tail}"
    return text


def plain(name: str, counts: Counts, note: str = "") -> str:
    """One line for the terminal, under ``plain_heading``."""
    numbers = "".join(f"{value:>16}" for value in _numbers(counts))
    return f"{name:34}{numbers}  {note}".rstrip()


def plain_heading() -> str:
    return f"{_HEADINGS[0]:34}" + "".join(f"{heading:>16}" for heading in _HEADINGS[1:])


def _numbers(counts: Counts) -> Iterable[str]:
    values = (counts.assertions, counts.passed, counts.failed, counts.not_applicable)
    return tuple(str(value) for value in values)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text("utf-8"), load()), "utf-8")
