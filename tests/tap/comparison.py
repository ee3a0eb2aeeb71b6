"""What was measured beside what is expected, by file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tap.expected import ExpectedFile
from tap.results import FileResult


@dataclass(frozen=True)
class Counts:
    """Assertions of a file, or of several. What is not applicable is neither passed nor failed."""

    assertions: int
    passed: int
    failed: int
    not_applicable: int


def expected_counts(file: ExpectedFile) -> Counts:
    return Counts(
        file.assertions, len(file.passing()), len(file.failing()), len(file.inapplicable())
    )


def measured_counts(result: FileResult, file: ExpectedFile | None) -> Counts:
    """An assertion that was not reached has failed."""
    total = max([file.assertions if file else 0, *result.assertions])
    left_out = file.inapplicable() if file else frozenset()
    passed = len(result.passed() - left_out)
    return Counts(total, passed, total - passed - len(left_out), len(left_out))


def total(counts: Iterable[Counts]) -> Counts:
    columns = [(c.assertions, c.passed, c.failed, c.not_applicable) for c in counts]
    return Counts(*(sum(column) for column in zip(*columns, strict=True)) if columns else (0,) * 4)


def differences(result: FileResult, file: ExpectedFile | None) -> list[str]:
    """One line for each assertion that is not as expected; empty when all are."""
    if file is None:
        return ["the file is not in expected.toml"]
    lines = []
    if result.assertions and max(result.assertions) > file.assertions:
        lines.append(f"has {max(result.assertions)} assertions, expected {file.assertions}")
    for number in sorted(file.passing() - result.passed()):
        state = "fails" if number in result.assertions else "is not reached"
        lines.append(f"assertion {number} {state}, expected to pass{_named(result, number)}")
    for number in sorted(file.failing() & result.passed()):
        lines.append(f"assertion {number} passes, expected to fail{_named(result, number)}")
    return lines


def _named(result: FileResult, number: int) -> str:
    assertion = result.assertions.get(number)
    return f": {assertion.name}" if assertion and assertion.name else ""
