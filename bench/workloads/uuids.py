"""Random updates of tables with uuid keys: a backlog, and bursts in a small and a big table.

In: a number of rows. Out: figures; how a burst's time grows with the table.
"""

from __future__ import annotations

import functools
import statistics

from changes import make_backlog
from context import Bench, Outcome
from figure import Figure
from kinds import backlogs, bursts
from subject import Subject, Table


def _subject(rows: int) -> Subject:
    """The key of row i is md5(i), so that it can be drawn without being looked up."""
    return Subject(
        "bench_uuids",
        (
            Table(
                "uuids",
                ("n", "n * ascii(substr(CAST(id AS text), 20, 1))", "ascii(CAST(id AS text))"),
                "id uuid, n bigint NOT NULL, v text",
                "id",
            ),
        ),
        touch="UPDATE uuids SET n = n WHERE id = md5('1')::uuid",
        fill=(
            "INSERT INTO uuids SELECT md5(i::text)::uuid, i, 'row ' || i"
            f" FROM generate_series(1, {rows}) i",
        ),
    )


def _update(rows: int) -> str:
    return (
        "UPDATE uuids SET n = n + 1 + i % 7 WHERE id ="
        f" (SELECT md5((1 + floor(random() * {rows})::int)::text)::uuid)"
    )


def backlog(bench: Bench) -> Outcome:
    """A transaction each, in the small table."""
    rows, count = bench.sizes.small_rows, bench.sizes.uuid_updates
    subject = _subject(rows)
    make = functools.partial(
        make_backlog, bench.publisher, _update(rows), transactions=count, touch=subject.touch
    )
    with bench.subject(subject), bench.subscribed(subject) as sides:
        what = f"backlog of {count} updates by uuid keys of {rows} rows"
        figures = backlogs(bench, subject, sides, make, what=what, count=count)
        return Outcome(figures, bench.equal(subject, sides))


def growth(bench: Bench) -> Outcome:
    """Bursts in both tables, and by how much the big one's are slower."""
    small, small_times, same = _bursts(bench, bench.sizes.small_rows)
    big, big_times, also_same = _bursts(bench, bench.sizes.big_rows)
    native, ours = (
        statistics.median(grown) / statistics.median(before)
        for before, grown in zip(small_times, big_times, strict=True)
    )
    what = f"growth of a burst from {bench.sizes.small_rows} to {bench.sizes.big_rows} rows"
    grown = Figure(what, f"{native:.2f}x", f"{ours:.2f}x", native / ours)
    return Outcome([small, big, grown], same and also_same)


def _bursts(bench: Bench, rows: int) -> tuple[Figure, list[list[float]], bool]:
    subject = _subject(rows)
    make = functools.partial(
        make_backlog,
        bench.publisher,
        _update(rows),
        transactions=bench.sizes.burst,
        touch=subject.touch,
    )
    with bench.subject(subject), bench.subscribed(subject) as sides:
        what = f"{bench.sizes.burst} updates by uuid keys of {rows} rows"
        figure, times = bursts(bench, subject, sides, make, what=what)
        return figure, times, bench.equal(subject, sides)
