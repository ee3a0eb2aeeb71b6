"""The progress display, as a person sees it on a terminal and as a log has it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from cli.pace_of import pace_of
from cli.statuses import subscription, table
from cli.terminal import Terminal
from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.cli.run import PlainLines
from penstock.cli.status import amount

_STORY = [sys.executable, "-m", "cli.progress_story"]
_TESTS = str(Path(__file__).parents[1])
_MB = 1 << 20
_BAR = re.compile(
    r"s copy public\.big +\S+ +\d+ [kM]B of 40 MB, [\d,]+ rows, "
    r"\d+ [kM]B/s, [\d,]+ rows/s, \d:\d\d:\d\d left"
)


def environment() -> dict[str, str]:
    return {"PYTHONPATH": ":".join([*sys.path, _TESTS])}


def test_bars_show_rate_total_and_time_left_and_go_away_when_done() -> None:
    with Terminal(_STORY, columns=130, environment=environment()) as terminal:
        drawn: list[list[str]] = []

        def streams(visible: list[str]) -> bool:
            drawn.append(visible)
            return bool(visible) and visible[-1].startswith("s ") and "streaming" in visible[-1]

        terminal.wait_for("the end of both copies", streams)
        assert any(_BAR.match(line) for lines in drawn for line in lines), drawn[-2]
        both = re.compile(r"s copy +\S+ +[01] of 2, \d+ [kM]B of 80 MB, ")
        assert any(both.match(line) for lines in drawn for line in lines), drawn[-2]
        # Bars of what is copied go while the others are still drawn.
        assert any(
            any("public.big" in line for line in lines)
            and not any("public.small" in line for line in lines)
            for lines in drawn
        )
        assert not any(" copy " in line for line in terminal.visible())
        terminal.terminate()
        assert terminal.end() == 0
        # Of the display nothing is left, and each log line can be read whole.
        told = terminal.lines()
        assert told[-1] == "over"
        assert not [line for line in told if line.startswith("s ")]
        wrapped = "".join(line.ljust(130) for line in told)
        for number in range(60):
            whole = f"INFO:  line {number:02d} {'word ' * 30} end"
            assert wrapped.count(whole) == 1, (number, terminal.text())


@part_of_make_faults
def test_names_bars_and_the_time_left_fit_on_a_terminal_of_80_columns() -> None:
    line = re.compile(
        r"s copy public\.(big|small) +\S{20} \d+ [kM]B of 40 MB, (.+, )?\d:\d\d:\d\d left *$"
    )
    drawn: list[list[str]] = []

    def copies(visible: list[str]) -> bool:
        drawn.append(visible)
        return {m[1] for m in map(line.match, visible) if m} == {"big", "small"}

    with Terminal(_STORY, columns=80, environment=environment()) as terminal:
        terminal.wait_for("two bars", copies)
        terminal.terminate()
        assert terminal.end() == 0
    assert not any("…" in text for lines in drawn for text in lines), drawn[-1]


def test_a_log_has_lines_while_something_is_copied() -> None:
    lines = PlainLines()
    copying = subscription("s", "copying", table("public.t", "d", 100, 10 * _MB, 40 * _MB))
    assert lines.of([copying], 0.0) == [
        "s: copying, cut at 0/10, 0 rows applied",
        "s: copying public.t: 10 MB of 40 MB, 100 rows",
    ]
    further = subscription("s", "copying", table("public.t", "d", 300, 30 * _MB, 40 * _MB))
    assert lines.of([further], 10.0)[1] == (
        "s: copying public.t: 30 MB of 40 MB, 300 rows, 2048 kB/s, 20 rows/s, 0:00:05 left"
    )
    done = subscription("s", "streaming", table("public.t", "r", 400, 40 * _MB, 40 * _MB))
    assert lines.of([done], 20.0) == ["s: streaming, cut at 0/10, 0 rows applied"]
    assert lines.of([done], 30.0) == []


def test_a_pace_is_of_the_last_half_minute() -> None:
    assert pace_of((0, 0)).left is None
    assert pace_of((0, 0), (10, 50)).bytes == 5
    assert pace_of((0, 0), (10, 50)).left == 10
    # Slower since: what was long ago does not count.
    assert pace_of((0, 0), (10, 50), (40, 53), (70, 56)).bytes == 0.1
    assert pace_of((0, 0), (10, 50), (20, 1)).left is None  # it has begun again


def test_sizes_are_told_as_postgresql_tells_them(database: Database) -> None:
    sizes = [
        n
        for unit in range(5)
        for around in (1, 9, 10, 11, 512, 10239, 10240)
        for n in (around * 1024**unit - 1, around * 1024**unit, around * 1024**unit + 600)
    ]
    told = database.rows("SELECT s, pg_size_pretty(s) FROM unnest(%s::int8[]) s", (sizes,))
    assert [(size, amount(size)) for size in sizes] == told
