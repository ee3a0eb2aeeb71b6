"""What is expected of each file of PostgreSQL's subscription suite: ``expected.toml``.

For each role and file: how many assertions there are, which of them fail and why, and which are not
applicable to a lake and why. The reasons are texts, with the numbers of their assertions. Whatever
is in neither list has to pass.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EXPECTED_FILE = Path(__file__).with_name("expected.toml")

Reasons = Mapping[str, frozenset[int]]
"""Numbers of assertions by the reason that they share."""


@dataclass(frozen=True)
class ExpectedFile:
    """One test file in one role."""

    assertions: int
    failed: Reasons
    not_applicable: Reasons

    def numbers(self) -> frozenset[int]:
        return frozenset(range(1, self.assertions + 1))

    def failing(self) -> frozenset[int]:
        return frozenset().union(*self.failed.values())

    def inapplicable(self) -> frozenset[int]:
        return frozenset().union(*self.not_applicable.values())

    def passing(self) -> frozenset[int]:
        return self.numbers() - self.failing() - self.inapplicable()


@dataclass(frozen=True)
class ExpectedRole:
    """``source``: the release of PostgreSQL that was measured with."""

    source: str
    files: Mapping[str, ExpectedFile]


def load(path: Path = EXPECTED_FILE) -> dict[str, ExpectedRole]:
    """Expected results by role. Raises ValueError for numbers that are out of range or twice."""
    document = tomllib.loads(path.read_text("utf-8"))
    return {name: _role(name, body) for name, body in document.items()}


def _role(role: str, body: dict[str, Any]) -> ExpectedRole:
    files = {}
    for name, facts in body["file"].items():
        files[name] = _checked(
            f"{role} {name}",
            ExpectedFile(
                facts["assertions"],
                _reasons(facts.get("failed", {})),
                _reasons(facts.get("not_applicable", {})),
            ),
        )
    return ExpectedRole(body["source"], files)


def _reasons(table: dict[str, list[int | str]]) -> dict[str, frozenset[int]]:
    return {reason: frozenset(_numbers(entries)) for reason, entries in table.items()}


def _numbers(entries: list[int | str]) -> list[int]:
    """Numbers, and ranges as texts: ``"3-7"``."""
    found: list[int] = []
    for entry in entries:
        first, _, last = str(entry).partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _checked(where: str, file: ExpectedFile) -> ExpectedFile:
    seen: set[int] = set()
    for reason, numbers in [*file.failed.items(), *file.not_applicable.items()]:
        if not reason or not numbers:
            raise ValueError(f"{where}: a reason without a text or without assertions")
        if numbers & seen:
            raise ValueError(f"{where}: listed twice: {sorted(numbers & seen)}")
        seen |= numbers
    if not seen <= file.numbers():
        raise ValueError(f"{where}: there are no assertions {sorted(seen - file.numbers())}")
    return file
