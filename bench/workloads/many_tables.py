"""Commits that change one of many small tables each, at a steady rate.

In: the number of tables. Out: a figure.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from typing import Final

from context import Bench, Outcome
from kinds import steady_rate
from subject import Subject, Table

_ROWS: Final = 1000
"""Of each table."""


def steady(bench: Bench, *, tables: int, rate: float) -> Outcome:
    """One update a transaction, ``rate`` transactions a second."""
    names = [f"many_{number:03}" for number in range(tables)]
    subject = Subject(
        "bench_many",
        tuple(Table(name, ("n", "id * n"), "id bigint, n bigint NOT NULL", "id") for name in names),
        touch=f"UPDATE {names[0]} SET n = n WHERE id = 1",
        fill=tuple(
            f"INSERT INTO {name} SELECT i, i FROM generate_series(1, {_ROWS}) i" for name in names
        ),
    )
    with bench.subject(subject), bench.subscribed(subject) as sides:
        figure = steady_rate(
            bench,
            subject,
            sides,
            functools.partial(_updates, names),
            what=f"commit to visible, {tables} tables, {rate:.0f}/s",
            rate=rate,
        )
        return Outcome([figure], bench.equal(subject, sides))


def _updates(names: Sequence[str]) -> Iterator[str]:
    draw = random.Random(42)
    while True:
        yield (
            f"UPDATE {draw.choice(names)} SET n = n + {draw.randint(1, 99)}"
            f" WHERE id = {draw.randint(1, _ROWS)}"
        )
