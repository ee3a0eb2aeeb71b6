"""The tables of ``docs/fidelity.md``, out of ``expected.toml``, and lines for the terminal.

``python -m tap.page`` writes the tables into the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tap.comparison import Counts, expected_counts, total
from tap.expected import ExpectedFile, ExpectedRole, load

PAGE = Path(__file__).parents[2] / "docs" / "fidelity.md"

_HEADINGS = ("file", "assertions", "passed", "failed", "not applicable")


def table(roles: Mapping[str, ExpectedRole], name: str) -> str:
    """Return the table of subscribers, or of publishers: a column for each version, a line for each
    file that does not pass whole everywhere, with its reasons, one for all others, and the sums."""
    named = {key.removeprefix(name): role for key, role in roles.items() if key.startswith(name)}
    lines = [
        _row(("file", *named, "failed because", "not applicable because")),
        _row(("---", *["---"] * len(named), "---", "---")),
    ]
    whole = set()
    for file in sorted({file for role in named.values() for file in role.files}):
        found = [role.files.get(file) for role in named.values()]
        known = [each for each in found if each is not None]
        why = [
            "; ".join(dict.fromkeys(reason for reasons in each for reason in reasons))
            for each in ([e.failed for e in known], [e.not_applicable for e in known])
        ]
        if any(why):
            lines.append(_row((file, *map(_passed, found), *why)))
        else:
            whole.add(file)
    counted = [{f: expected_counts(file) for f, file in r.files.items()} for r in named.values()]
    others = [total(counts[file] for file in whole & counts.keys()) for counts in counted]
    all_ = [total(counts.values()) for counts in counted]
    for title, cells in (
        (f"{len(whole)} other files", [f"{c.passed} of {c.assertions}" for c in others]),
        ("**all**", [f"{c.passed} of {c.assertions}" for c in all_]),
        ("**failed**", [str(c.failed) for c in all_]),
        ("**not applicable**", [str(c.not_applicable) for c in all_]),
    ):
        lines.append(_row((title, *cells, "", "")))
    return "\n".join(lines)


def _passed(file: ExpectedFile | None) -> str:
    if file is None:
        return ""
    counts = expected_counts(file)
    return f"{counts.passed} of {counts.assertions}"


def _names(roles: Mapping[str, ExpectedRole]) -> list[str]:
    return sorted({key.rstrip("0123456789") for key in roles})


def missing_tables(text: str, roles: Mapping[str, ExpectedRole]) -> list[str]:
    """Roles whose table is not in the page's text as it should be."""
    return [name for name in _names(roles) if table(roles, name) not in text]


def with_tables(text: str, roles: Mapping[str, ExpectedRole]) -> str:
    """The page's text with its tables between their marks replaced."""
    for name in _names(roles):
        head, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, tail = rest.partition(f"<!-- end of {name} -->")
        if not begin or not end:
            raise ValueError(f"docs/fidelity.md has no place for the table of {name}")
        text = f"{head}{begin}\n{table(roles, name)}\n\n{end}{tail}"
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
