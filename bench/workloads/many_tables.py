"""Commits that change one of twenty small tables each, at a steady rate.

In: nothing but their number. Out: a figure.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from context import Bench, Outcome
from kinds import steady_rate
from subject import Subject, Table

_TABLES: Final = 20
_ROWS: Final = 1000
_RATE: Final = 100.0
_NAMES: Final = tuple(f"many_{number:02}" for number in range(_TABLES))
_MANY: Final = Subject(
    "bench_many",
    tuple(Table(name, ("n", "id * n"), "id bigint, n bigint NOT NULL", "id") for name in _NAMES),
    touch=f"UPDATE {_NAMES[0]} SET n = n WHERE id = 1",
    fill=tuple(
        f"INSERT INTO {name} SELECT i, i FROM generate_series(1, {_ROWS}) i" for name in _NAMES
    ),
)


def steady(bench: Bench) -> Outcome:
    """One update a transaction."""
    with bench.subject(_MANY), bench.subscribed(_MANY) as sides:
        figure = steady_rate(
            bench,
            _MANY,
            sides,
            _updates,
            what=f"commit to visible, {_TABLES} tables, {_RATE:.0f}/s",
            rate=_RATE,
        )
        return Outcome([figure], bench.equal(_MANY, sides))


def _updates() -> Iterator[str]:
    draw = random.Random(42)
    while True:
        yield (
            f"UPDATE {draw.choice(_NAMES)} SET n = n + {draw.randint(1, 99)}"
            f" WHERE id = {draw.randint(1, _ROWS)}"
        )
