"""Rows that people have: New York's taxi trips, TPC-H's lineitem, 20 columns of mixed types.

In: sizes. Out: figures of copies in both forms; of the mixed rows also backlogs of updates of one
column, three in a row, and of inserts. Every fourth mixed row has 3 kB of TOAST.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from changes import make_backlog
from context import Bench, Outcome, Sizes
from kinds import backlogs, catch_up, copies
from subject import Subject, Table


@dataclass(frozen=True, slots=True)
class _Rows:
    """``fill``: a SELECT of the rows k from {first} to {last}. ``size``: of ``Sizes``."""

    table: Table
    fill: str
    size: str

    def subject(self, sizes: Sizes) -> Subject:
        name, key = self.table.name, self.table.key.partition(",")[0]
        fill = self.fill.format(first=1, last=self.count(sizes))
        return Subject(
            f"bench_{name}",
            (self.table,),
            touch=f"UPDATE {name} SET {key} = {key} WHERE {key} = 1",
            fill=(f"INSERT INTO {name} {fill}",),
        )

    def count(self, sizes: Sizes) -> int:
        return int(getattr(sizes, self.size))


_TAXI: Final = _Rows(
    Table(
        "taxi",
        (
            "vendor",
            "passengers",
            "CASE WHEN pickup > TIMESTAMP '2024-03-01 00:00:00' THEN id ELSE 0 END",
            "CASE WHEN dropoff > TIMESTAMP '2024-03-01 00:00:00' THEN id ELSE 0 END",
            "rate + pu * id",
            "CAST(floor(distance * 1024) AS bigint)",
            "ascii(flag)",
            "dof * pay",
            "id",
            "fare",
            "extra + mta",
            "tip + tolls",
            "imp + total",
            "congestion",
        ),
        "vendor int, passengers bigint, pickup timestamp, dropoff timestamp, rate int,"
        " distance float8, pu int, flag text, dof int, pay bigint, id bigint,"
        " fare numeric(15,2), extra numeric(15,2), mta numeric(15,2), tip numeric(15,2),"
        " tolls numeric(15,2), imp numeric(15,2), total numeric(15,2), congestion numeric(15,2)",
        "id",
    ),
    "SELECT k % 2 + 1, k % 6, TIMESTAMP '2024-01-01' + k * INTERVAL '7.3 s',"
    " TIMESTAMP '2024-01-01' + k * INTERVAL '7.3 s' + k % 3000 * INTERVAL '1 s', 1 + k % 5,"
    " random() * 30, k % 265, CASE WHEN k % 50 = 0 THEN 'Y' ELSE 'N' END, k % 263, k % 4, k,"
    " (random() * 80)::numeric(15,2), (random() * 5)::numeric(15,2), 0.50,"
    " (random() * 20)::numeric(15,2), (random() * 7)::numeric(15,2), 1.00,"
    " (random() * 100)::numeric(15,2), CASE WHEN k % 3 > 0 THEN 2.50 END"
    " FROM generate_series({first}, {last}) k",
    "taxi_rows",
)
_LINEITEM: Final = _Rows(
    Table(
        "lineitem",
        (
            "l_orderkey",
            "l_partkey + l_suppkey",
            "l_linenumber * l_orderkey",
            "l_quantity",
            "l_extendedprice",
            "l_discount + l_tax",
            "ascii(l_returnflag) * l_orderkey",
            "CASE WHEN l_shipdate > DATE '1995-06-17' THEN l_orderkey ELSE 0 END",
            "CASE WHEN l_commitdate > DATE '1995-06-17' THEN l_orderkey ELSE 0 END",
            "CASE WHEN l_receiptdate > DATE '1995-06-17' THEN l_orderkey ELSE 0 END",
            "length(l_comment)",
        ),
        "l_orderkey bigint, l_partkey int, l_suppkey int, l_linenumber int,"
        " l_quantity numeric(15,2), l_extendedprice numeric(15,2), l_discount numeric(15,2),"
        " l_tax numeric(15,2), l_returnflag char(1), l_linestatus char(1), l_shipdate date,"
        " l_commitdate date, l_receiptdate date, l_shipinstruct char(25), l_shipmode char(10),"
        " l_comment varchar(44)",
        "l_orderkey, l_linenumber",
    ),
    "SELECT k / 4 + 1, 1 + (random() * 200000)::int, 1 + (random() * 10000)::int, k % 4,"
    " 1 + k % 50, (900 + random() * 100000)::numeric(15,2), k % 11 * 0.01, k % 9 * 0.01,"
    " (ARRAY['N', 'R', 'A'])[1 + k % 3], (ARRAY['O', 'F'])[1 + k % 2], d, d + 20 + k % 40,"
    " d + 1 + k % 30,"
    " (ARRAY['DELIVER IN PERSON', 'COLLECT COD', 'NONE', 'TAKE BACK RETURN'])[1 + k % 4],"
    " (ARRAY['AIR', 'FOB', 'MAIL', 'RAIL', 'REG AIR', 'SHIP', 'TRUCK'])[1 + k % 7],"
    " left('carefully ' || md5(k::text) || ' deposits', 10 + k % 34)"
    " FROM (SELECT k, DATE '1992-01-02' + (random() * 2500)::int AS d"
    " FROM generate_series({first}, {last}) k) numbered",
    "lineitem_rows",
)
_WIDE: Final = _Rows(
    Table(
        "wide",
        (
            "id",
            "ascii(substr(CAST(u AS text), 20, 1)) * id",
            "s + n",
            "id * n",
            "amount",
            "CAST(free AS numeric(20, 6))",
            "CAST(floor(f * 1024) AS bigint)",
            "CASE WHEN r > 0.5 THEN id ELSE 0 END",
            "CASE WHEN b THEN id ELSE 0 END",
            "length(t) + length(v)",
            "CASE WHEN d > DATE '2024-01-01' THEN id ELSE 0 END",
            "CASE WHEN ts > TIMESTAMP '2024-01-03 00:00:00' THEN id ELSE 0 END",
            "length(encode(raw, 'hex'))",
            "cardinality(arr) + cardinality(tarr)",
            "length(big)",
        ),
        "id bigint, u uuid, s smallint, n int, amount numeric(12,4), free numeric, f float8,"
        " r float4, b boolean, t text, v varchar(40), c char(8), d date, ts timestamp,"
        " tz timestamptz, raw bytea, j jsonb, arr int[], tarr text[], big text",
        "id",
    ),
    "SELECT k, md5(k::text)::uuid, k % 100, k % 100000, (random() * 1e6)::numeric(12,4),"
    " round((random() * 1e9)::numeric, 6), random(), random(), k % 3 = 0, md5(k::text),"
    " 'name ' || k, 'fix', DATE '2020-01-01' + k::int % 3000,"
    " TIMESTAMP '2024-01-01' + k * INTERVAL '1.234567 s',"
    " TIMESTAMPTZ '2024-01-01 00:00 UTC' + k * INTERVAL '3.21 s', decode(md5(k::text), 'hex'),"
    " jsonb_build_object('a', k, 'b', ARRAY[1, 2, 3], 'c', 'text ' || k),"
    " ARRAY[k, k + 1, NULL]::int[], ARRAY['a', 'b c'],"
    " CASE WHEN k % 4 = 0 THEN (SELECT string_agg(md5((k + g)::text), '')"
    " FROM generate_series(1, 94) g) END"
    " FROM generate_series({first}, {last}) k",
    "wide_rows",
)
TABLES: Final[Mapping[str, _Rows]] = {
    "taxi": _TAXI,
    "lineitem": _LINEITEM,
    "wide": _WIDE,
}


def copy(bench: Bench, *, what: str, binary: bool) -> Outcome:
    """The copy of one of the tables, compared after one more."""
    rows = TABLES[what]
    subject, count = rows.subject(bench.sizes), rows.count(bench.sizes)
    title = f"copy of {count} rows of {what}{', binary' if binary else ''}"
    with bench.subject(subject):
        figures = copies(bench, subject, title, count, binary=binary)
        with bench.subscribed(subject, binary=binary) as sides:
            catch_up(bench, subject, sides)
            return Outcome(figures, bench.equal(subject, sides))


def updates(bench: Bench) -> Outcome:
    """Of one integer of the mixed rows, a transaction each; what has grown by the last backlog."""
    subject, rows = _WIDE.subject(bench.sizes), bench.sizes.wide_rows
    make = functools.partial(
        make_backlog,
        bench.publisher,
        f"UPDATE wide SET n = n + 1 + i % 7 WHERE id = (SELECT 1 + floor(random() * {rows})::int)",
        transactions=bench.sizes.wide_updates,
        touch=subject.touch,
    )
    return _backlogs(
        bench, subject, make, bench.sizes.wide_updates, "updates of one column of wide", raw=True
    )


def inserts(bench: Bench, *, each: int) -> Outcome:
    """Of mixed rows, ``each`` a transaction."""
    subject, count = _WIDE.subject(bench.sizes), bench.sizes.wide_inserts
    first, last = f"base + (i - 1) * {each} + 1", f"base + i * {each}"
    statement = f"INSERT INTO wide {_WIDE.fill.format(first=first, last=last)}"
    make = functools.partial(
        make_backlog,
        bench.publisher,
        statement,
        transactions=count // each,
        base="(SELECT max(id) FROM wide)",
        touch=subject.touch,
    )
    return _backlogs(bench, subject, make, count, f"inserts into wide, {each} a transaction")


def _backlogs(
    bench: Bench,
    subject: Subject,
    make: Callable[[], int],
    count: int,
    what: str,
    *,
    raw: bool = False,
) -> Outcome:
    with bench.subject(subject), bench.subscribed(subject) as sides:
        title = f"backlog of {count} {what}"
        figures = backlogs(bench, subject, sides, make, what=title, count=count, raw=raw)
        return Outcome(figures, bench.equal(subject, sides))
