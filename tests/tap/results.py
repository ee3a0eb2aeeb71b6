"""What a test file said, out of its output in the Test Anything Protocol.

In: the text that Perl's Test::More printed, with the lines ``# step failed: ...`` of our modules.
Out: ``FileResult``: assertions by number, steps that failed, and whether the file came to its end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_ASSERTION = re.compile(r"^(not )?ok (\d+)(?: - (.*?))?(?:\s+# (SKIP|TODO)\b.*)?$", re.IGNORECASE)
_PLAN = re.compile(r"^1\.\.(\d+)")
_STEP = re.compile(r"^# step failed: (.*)$")


@dataclass(frozen=True)
class Assertion:
    """One ``ok`` or ``not ok``; ``name`` is the test's own text."""

    number: int
    passed: bool
    name: str


@dataclass(frozen=True)
class FileResult:
    """``ended`` is false when the file stopped before its plan: a hang, or an error of Perl's."""

    assertions: Mapping[int, Assertion]
    failed_steps: tuple[str, ...]
    ended: bool

    def passed(self) -> frozenset[int]:
        return frozenset(number for number, a in self.assertions.items() if a.passed)


def parse(text: str) -> FileResult:
    """Reads the output of one file; lines that are no TAP are passed over."""
    assertions: dict[int, Assertion] = {}
    steps: list[str] = []
    planned: int | None = None
    for line in text.splitlines():
        if found := _ASSERTION.match(line):
            number = int(found[2])
            assertions[number] = Assertion(number, found[1] is None, found[3] or "")
        elif found := _PLAN.match(line):
            planned = int(found[1])
        elif found := _STEP.match(line):
            steps.append(found[1])
    return FileResult(assertions, tuple(steps), planned is not None and planned == len(assertions))
