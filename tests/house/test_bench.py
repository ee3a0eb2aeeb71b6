"""What benchmarks make of their figures: percentiles of both ends, rows of the history, curves."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

from penstock.embedded import wait_until

ROOT = Path(__file__).parents[2]
MODULES = (
    "budget",
    "percentiles",
    "figure",
    "history",
    "svg",
    "samples",
    "changes",
    "latency",
    "lag",
)


@pytest.fixture(scope="module")
def bench() -> Iterator[SimpleNamespace]:
    """The modules of bench/, whose names nobody else shall find afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(ROOT / "bench"))
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    finally:
        sys.path.remove(str(ROOT / "bench"))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(ROOT / "bench")):
                del sys.modules[name]


def delays(bench: SimpleNamespace, *pairs: tuple[float, float]) -> list[object]:
    return [bench.percentiles.Delay(at, seconds) for at, seconds in pairs]


def test_the_ends_of_a_run(bench: SimpleNamespace) -> None:
    """Those of its halves where it was short; no delay is in both."""
    run = delays(bench, *((float(second), 0.1) for second in range(45)))
    first, last = bench.percentiles.ends(run, 15)
    assert [delay.at for delay in first] == list(range(16))
    assert [delay.at for delay in last] == list(range(30, 45))
    short = delays(bench, (0, 0.1), (1, 0.1), (2, 0.3), (3, 0.3))
    first, last = bench.percentiles.ends(short, 15)
    assert [delay.at for delay in first] == [0, 1]
    assert [delay.at for delay in last] == [2, 3]
    assert bench.percentiles.ends([], 15) == ([], [])


def test_percentiles_in_milliseconds(bench: SimpleNamespace) -> None:
    run = delays(bench, *((float(number), number / 1000) for number in range(1000)))
    assert bench.percentiles.in_ms(run) == "500 / 950 / 990 ms"
    assert bench.percentiles.in_ms([]) == "-"


def test_a_delay_ends_with_the_first_look_that_shows_the_commit(bench: SimpleNamespace) -> None:
    commits = [bench.changes.Commit(1.0, 10), bench.changes.Commit(2.0, 20)]
    found = bench.latency.delays(commits, [(1.5, 5), (2.5, 12), (3.5, 20)])
    assert [delay.seconds for delay in found] == [1.5, 1.5]
    with pytest.raises(RuntimeError, match="not become visible"):
        bench.latency.delays(commits, [(1.5, 12)])


def test_runs_end_with_the_time(bench: SimpleNamespace) -> None:
    """The first always comes; a further one only where what is left to do has its time, too."""
    now = [0.0]

    def taken(budget: Any, wanted: int) -> int:
        count = 0
        for _ in budget.runs(wanted):
            now[0] += 10
            count += 1
        return count

    budget = bench.budget.Budget(100, {"one": 10, "two": 60}, lambda: now[0])
    budget.begin("one")
    assert taken(budget, 9) == 4
    budget.begin("two")
    assert taken(budget, 3) == 3
    assert taken(budget, 9) == 3
    assert taken(budget, 9) == 1


def test_a_row_of_the_history(bench: SimpleNamespace, tmp_path: Path) -> None:
    """Its head is written once; a median is the figure, its runs are notes."""
    path = tmp_path / "history.md"
    figure = bench.figure.of_runs("copy", 5_000_000, [8.0, 7.0, 9.0], [2.0, 2.5, 2.0])
    steady = bench.figure.of_delays(
        "small commits", delays(bench, (0, 0.001)), delays(bench, (0, 0.2))
    )
    bench.history.append(path, "2030-01-02", "abc", [figure])
    bench.history.append(path, "2030-01-03", "def+", [steady])
    text = path.read_text("utf-8")
    assert text.startswith(bench.history.HEAD)
    assert text.removeprefix(bench.history.HEAD).splitlines() == [
        "| 2030-01-02 | abc | copy (median of 3) | 8.0 s (625 k/s) | 2.0 s (2500 k/s) | 4x |",
        "| 2030-01-03 | def+ | small commits, p50 / p95 / p99 (1 run, 1 commits)"
        " | 1 / 1 / 1 ms | 200 / 200 / 200 ms | 0.005x |",
    ]
    assert figure.notes == (
        "runs of copy, PostgreSQL: 8.00 s  7.00 s  9.00 s",
        "runs of copy, Penstock: 2.00 s  2.50 s  2.00 s",
    )


def test_the_commit_of_a_row(bench: SimpleNamespace, tmp_path: Path) -> None:
    """The history's own change does not make a tree a changed one."""

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=e@example.org")
        subprocess.run(["git", "-C", tmp_path, *who, *arguments], check=True, capture_output=True)

    assert bench.history.commit_of(tmp_path, "history.md") == "unknown"
    git("init")
    for name in ("history.md", "code.py"):
        (tmp_path / name).write_text("one\n")
    git("add", ".")
    git("commit", "-m", "one")
    commit = bench.history.commit_of(tmp_path, "history.md")
    (tmp_path / "history.md").write_text("two\n")
    assert bench.history.commit_of(tmp_path, "history.md") == commit
    (tmp_path / "code.py").write_text("two\n")
    assert bench.history.commit_of(tmp_path, "history.md") == f"{commit}+"


@pytest.mark.parametrize(
    ("largest", "expected"),
    [
        (0, [0, 1]),
        (7, [0, 2, 4, 6, 8]),
        (100, [0, 20, 40, 60, 80, 100]),
        (0.3, [0, 0.1, 0.2, 0.3]),
    ],
)
def test_ticks_are_round(bench: SimpleNamespace, largest: float, expected: list[float]) -> None:
    assert bench.svg.ticks(largest) == pytest.approx(expected)


def sample(bench: SimpleNamespace, at: float, files: int) -> object:
    size = bench.samples.TableSize(files, files + 1, 3 * files, 1 << 20)
    mib = {"driver": 100, "jvm": 300, "worker": 200}
    return bench.samples.Sample(at, int(at) * 200, (0.1, 0.2), mib, {"a<b": size})


def test_samples_are_plotted(bench: SimpleNamespace, tmp_path: Path) -> None:
    """The plot is XML with one curve a series; the table has a line a column."""
    samples = [sample(bench, 10.0 * number, number) for number in range(1, 9)]
    text = bench.svg.plot(bench.samples.panels(samples), x_label="minutes")
    lines = ElementTree.fromstring(text).findall("{*}polyline")
    assert len(lines) == 3 + 3 + 4
    assert all(len(line.attrib["points"].split()) == 8 for line in lines)
    bench.samples.write_csv(tmp_path / "samples.csv", samples)
    assert len((tmp_path / "samples.csv").read_text().splitlines()) == 9
    told = bench.samples.quarters(samples)
    assert [line.split() for line in told.splitlines() if line.startswith("a<b_files ")] == [
        ["a<b_files", "1.5", "7.5", "5.00x"]
    ]


def test_lags_come_once_and_with_what_still_waits(bench: SimpleNamespace) -> None:
    commits = [bench.changes.Commit(float(number), number) for number in range(1, 5)]
    positions = iter([2])
    follower = bench.lag.Follower(lambda: next(positions, 2), commits)
    with follower:
        wait_until(lambda: follower._seen, "the look is noted", 60)
    assert len(follower.interval()) == 2 + 1
    assert follower.waiting == 2
    assert len(follower.interval()) == 1
