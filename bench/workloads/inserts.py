"""Backlogs of inserted rows: narrow ones, few and many in a transaction, and mixed types.

In: empty tables. Out: a figure for each.
"""

from __future__ import annotations

import functools
from typing import Final

from changes import make_backlog
from context import Bench, Outcome
from kinds import backlogs
from subject import Subject, Table

_NARROW: Final = Subject(
    "bench_inserts",
    (
        Table(
            "events",
            ("id", "id * n", "length(v)"),
            "id bigint, n int, v text, at timestamptz",
            "id",
        ),
    ),
    touch="UPDATE events SET n = n WHERE id = (SELECT max(id) FROM events)",
    fill=("INSERT INTO events VALUES (0, 0, '', now())",),
)
_MIXED: Final = Subject(
    "bench_mixed",
    (
        Table(
            "mixed",
            (
                "id",
                "id * i",
                "s",
                "n",
                "CAST(f * 2 AS bigint)",
                "length(t) + length(v)",
                "CASE WHEN b THEN id ELSE 0 END",
                "ascii(substr(CAST(u AS text), 20, 1)) * id",
                "CASE WHEN d > DATE '2000-02-01' THEN id ELSE 0 END",
                "CASE WHEN at > TIMESTAMP '2000-01-03 00:00:00' THEN id ELSE 0 END",
            ),
            "id bigint, i int, s smallint, f float8, n numeric(12, 2), t text, v varchar(20),"
            " b bool, d date, at timestamp, tz timestamptz, u uuid",
            "id",
        ),
    ),
    touch="UPDATE mixed SET i = i WHERE id = (SELECT max(id) FROM mixed)",
    fill=(
        "INSERT INTO mixed VALUES (0, 0, 0, 0, 0, '', '', false, '2000-01-01', '2000-01-01',"
        " '2000-01-01 00:00 UTC', md5('0')::uuid)",
    ),
)
_ONE: Final = "INSERT INTO events VALUES (base + i, i % 1000, 'row ' || i, clock_timestamp())"
_MANY: Final = (
    "INSERT INTO events SELECT base + (i - 1) * {each} + j, j % 1000, 'row ' || j, now()"
    " FROM generate_series(1, {each}) j"
)
_WIDE: Final = (
    "INSERT INTO mixed SELECT k, k % 100000, k % 1000, k * 0.5, k / 8.0, 'text of row ' || k,"
    " 'v' || k % 77, k % 3 = 0, DATE '2000-01-01' + (k % 365)::int,"
    " TIMESTAMP '2000-01-01' + k * INTERVAL '1 minute', now(), md5(k::text)::uuid"
    " FROM generate_series(base + (i - 1) * {each} + 1, base + i * {each}) k"
)
_WIDE_EACH: Final = 100


def narrow(bench: Bench, *, each: int) -> Outcome:
    """Four columns, ``each`` rows a transaction."""
    statement = _ONE if each == 1 else _MANY.format(each=each)
    rows = "row" if each == 1 else "rows"
    return _inserted(bench, _NARROW, statement, each, f"inserts, {each} {rows} a transaction")


def mixed(bench: Bench) -> Outcome:
    """12 columns of as many types."""
    what = f"inserts, 12 columns, {_WIDE_EACH} rows a transaction"
    return _inserted(bench, _MIXED, _WIDE.format(each=_WIDE_EACH), _WIDE_EACH, what)


def _inserted(bench: Bench, subject: Subject, statement: str, each: int, what: str) -> Outcome:
    count = bench.sizes.inserts
    make = functools.partial(
        make_backlog,
        bench.publisher,
        statement,
        transactions=count // each,
        base=f"(SELECT max(id) FROM {subject.tables[0].name})",
        touch=subject.touch,
    )
    with bench.subject(subject), bench.subscribed(subject) as sides:
        figures = backlogs(
            bench, subject, sides, make, what=f"backlog of {count} {what}", count=count
        )
        return Outcome(figures, bench.equal(subject, sides))
