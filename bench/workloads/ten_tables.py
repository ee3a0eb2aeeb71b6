"""Single-row transactions over ten tables of 16 columns: a fifth inserts, three fifths updates, a
fifth deletes.

In: sizes. Out: a figure. The numbers are those that Wirekite publishes its rate for.
"""

from __future__ import annotations

import functools
from typing import Final

from changes import make_backlog
from context import Bench, Outcome
from kinds import backlogs
from subject import Subject, Table

_NAMES: Final = tuple(f"ten_{number}" for number in range(10))
_ROWS: Final = 50_000
"""Of each table, at any time: as many are deleted as are inserted."""
_ROUND: Final = 5 * len(_NAMES)
"""Transactions in which each table has one insert, three updates and one delete."""
_COLUMNS: Final = (
    "id bigint, a int, b int, c bigint, d numeric(12,2), e numeric(12,2), f float8, g boolean,"
    " h date, at timestamp, tz timestamptz, u uuid, k varchar(20), t text, v text, w smallint"
)
_VALUES: Final = (
    "n, n % 1000, n % 77, n * 3, n % 1000 * 0.25, n % 500 * 0.01, n * 0.5, n % 3 = 0,"
    " DATE '2020-01-01' + (n % 3000)::int, TIMESTAMP '2024-01-01' + n * INTERVAL '1 s',"
    " TIMESTAMPTZ '2024-01-01 00:00 UTC' + n * INTERVAL '1 s', md5(n::text)::uuid,"
    " 'key ' || n, md5(n::text), 'value of row ' || n, n % 100"
)
_SUBJECT: Final = Subject(
    "bench_ten",
    tuple(
        Table(
            name,
            ("id", "a + b", "c", "d", "e", "CAST(f * 2 AS bigint)", "length(t) + length(v)", "w"),
            _COLUMNS,
            "id",
        )
        for name in _NAMES
    ),
    touch=f"UPDATE {_NAMES[0]} SET a = a WHERE id = (SELECT max(id) FROM {_NAMES[0]})",
    fill=tuple(
        f"INSERT INTO {name} SELECT {_VALUES} FROM generate_series(1, {_ROWS}) n" for name in _NAMES
    ),
)
_UPDATE: Final = (
    "UPDATE %I SET a = a + 1, d = d + 0.25, v = ''changed '' || $1 WHERE id ="
    f" (SELECT $1 - 1 - floor(random() * {_ROWS - 2})::int)"
)
_QUOTED: Final = _VALUES.replace("'", "''").replace("%", "%%")
_STATEMENT: Final = f"""EXECUTE format(CASE i % 5
    WHEN 0 THEN 'INSERT INTO %I SELECT {_QUOTED} FROM (SELECT $1) row (n)'
    WHEN 4 THEN 'DELETE FROM %I WHERE id = $1 - {_ROWS}'
    ELSE '{_UPDATE}' END, 'ten_' || i / 5 % {len(_NAMES)}) USING base + 1 + i / {_ROUND}"""


def backlog(bench: Bench) -> Outcome:
    """A transaction each."""
    count = bench.sizes.ten_changes
    make = functools.partial(
        make_backlog,
        bench.publisher,
        _STATEMENT,
        transactions=count,
        base=f"(SELECT max(id) FROM {_NAMES[0]})",
        touch=_SUBJECT.touch,
    )
    with bench.subject(_SUBJECT), bench.subscribed(_SUBJECT) as sides:
        what = f"backlog of {count} single-row transactions over {len(_NAMES)} tables"
        figures = backlogs(bench, _SUBJECT, sides, make, what=what, count=count, raw=True)
        return Outcome(figures, bench.equal(_SUBJECT, sides))
