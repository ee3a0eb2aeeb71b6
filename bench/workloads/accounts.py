"""pgbench_accounts alone: its copy, random updates of it, and the delay of single updates.

In: the table that pgbench made. Out: figures, with ``binary = true`` and without.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from typing import Final

from changes import make_backlog
from context import Bench, Outcome
from kinds import backlogs, catch_up, copies, steady_rate
from subject import Subject, Table

ACCOUNTS: Final = Subject(
    "bench",
    (Table("pgbench_accounts", ("abalance", "CAST(aid AS bigint) * CAST(abalance AS bigint)")),),
    touch="UPDATE pgbench_accounts SET abalance = abalance WHERE aid = 1",
)
_BACKLOG: Final = (
    "UPDATE pgbench_accounts SET abalance = abalance + 1 + i % 7"
    " WHERE aid = (SELECT 1 + floor(random() * {rows})::int)"
)
_RATE: Final = 100.0


def copy(bench: Bench, *, binary: bool) -> Outcome:
    """The sides are compared by ``updates``, and here after one more copy."""
    rows = bench.sizes.rows
    what = f"copy of {rows} accounts{_form(binary)}"
    figures = copies(bench, ACCOUNTS, what, rows, binary=binary)
    with bench.subscribed(ACCOUNTS, binary=binary) as sides:
        catch_up(bench, ACCOUNTS, sides)
        return Outcome(figures, bench.equal(ACCOUNTS, sides))


def updates(bench: Bench, *, binary: bool) -> Outcome:
    """A transaction each. In binary form once, since it takes long."""
    count = bench.sizes.updates
    make = functools.partial(
        make_backlog,
        bench.publisher,
        _BACKLOG.format(rows=bench.sizes.rows),
        transactions=count,
        touch=ACCOUNTS.touch,
    )
    with bench.subscribed(ACCOUNTS, binary=binary) as sides:
        figures = backlogs(
            bench,
            ACCOUNTS,
            sides,
            make,
            what=f"backlog of {count} random updates{_form(binary)}",
            count=count,
            runs=1 if binary else None,
            raw=not binary,
        )
        return Outcome(figures, bench.equal(ACCOUNTS, sides))


def steady(bench: Bench) -> Outcome:
    """Random updates of one table."""
    with bench.subscribed(ACCOUNTS) as sides:
        figure = steady_rate(
            bench,
            ACCOUNTS,
            sides,
            functools.partial(_updates, bench.sizes.rows),
            what=f"commit to visible, one table, {_RATE:.0f}/s",
            rate=_RATE,
        )
        return Outcome([figure], bench.equal(ACCOUNTS, sides))


def _updates(rows: int) -> Iterator[str]:
    draw = random.Random(42)
    while True:
        yield (
            f"UPDATE pgbench_accounts SET abalance = abalance + {draw.randint(1, 99)}"
            f" WHERE aid = {draw.randint(1, rows)}"
        )


def _form(binary: bool) -> str:
    return ", binary" if binary else ""
