"""Calls that random values do not reach, beside a server, in queries of the lake and row filters.

Each call gives what a server gives, or is refused when the statement is compiled: no row stops a
slot.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from executor.lake_oracle import LakeOracle
from fix_postgres import Database
from publication.oracle import World, is_our_refusal

pytestmark = pytest.mark.postgres

_COLUMNS = {
    "n": "integer", "item": "integer", "x": "integer", "y": "integer", '"Each"': "integer",
    "i": "integer", "a": "integer[]", "t": "text", "p": "text", "ts": "timestamp",
    "tz": "timestamptz", "d": "date", "iv": "interval", "iva": "interval[]", "nr": "int4range",
    "nra": "int4range[]", "m": "numeric(8,2)", "ma": "numeric(8,2)[]", "u": "numeric",
    "ua": "numeric[]", "j": "jsonb", "js": "json", "f": "float8", "b": "boolean", "s": "smallint",
    "tm": "time", "bin": "bytea",
}  # fmt: skip
_DEEP = "[" * 1200 + "1" + "]" * 1200
_ROWS = [
    ("1", "1", "2", "3", "1", "2", "{1,2,3}", "abc", "ab?", "2024-01-31 10:00",
     "2024-01-31 10:00+00", "2024-01-31", "1 day", "{1 day,24:00:00,1 mon}", "[1,5)",
     '{"[1,5)","[10,20)","[2,3)"}', "1.50", "{1.50,2.00}", "1.500", "{1.5,1.50}",
     '{"a": {"b": [1, 2]}}', '{"a": 1, "a": 2}', "1.5", "t", "-1", "10:00", "\\x6162"),
    ("2", "2", "1", "2", "2", "1", "{2,2,NULL}", "baac", "a", "1999-12-31 23:59:59.999999",
     "1999-12-31 23:59:59.999999+00", "1999-12-31", "infinity", "{infinity,-infinity}", "empty",
     "{empty}", "-2.00", "{}", "Infinity", "{NaN}", _DEEP, _DEEP, "Infinity", "f", "32767",
     "23:59:59", "\\x"),
    ("3", "3", "3", "1", "3", "3", "{}", "", "", "0001-01-01 00:00", "0001-01-01 00:00+00",
     "0001-01-01", "-infinity", "{01:00:00,60 mins}", "(,)", '{"(,)"}', "0.00", "{0.00}", "0",
     "{1,NULL}", "[]", "null", "NaN", "t", "0", "00:00", "\\x00"),
    ("4", "0", "0", "0", "0", "0", "{0}", "aa1b22c", "[", "2024-02-29 00:00",
     "2024-02-29 00:00+00", "2024-02-29",
     "-178956970 years -8 mons -2147483647 days -2562047788:00:54.775807",
     "{2 days,100 days,-1 days}", "[3,4)", "{}", "9.99", "{9.99,NULL}", "-0.001", "{}", '"x"',
     "1.0", "-0.0", "t", "7", "12:00:00.5", "\\xff"),
    ("5", *[None] * 26),
]  # fmt: skip


@pytest.fixture
def lake(database: Database) -> Iterator[LakeOracle]:
    with database.connect() as connection:
        oracle = LakeOracle(connection)
        oracle.create("t", _COLUMNS, _ROWS)
        yield oracle


@pytest.fixture
def world(database: Database) -> Iterator[World]:
    with database.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        made = World(connection)
        made.create(list(_COLUMNS.items()), _ROWS)
        yield made


# A parameter of a lambda that is named as a column
_NAMED = """
item = ANY(a)
item <> ALL(a)
"Each" = ANY(a)
array_remove(a, x)
array_positions(a, i)
array_positions(a, x)
array_replace(a, x, y)
array_replace(a, item, "Each")
m = ANY(ma)
u = ANY(ua)
ua = ARRAY[m]
"""
# Arrays of types that DuckDB does not compare as PostgreSQL does
_ARRAYS = """
iva = ARRAY[interval '1 day']
iva < ARRAY[interval '30 days']
iva @> ARRAY[interval '24 hours']
iva && ARRAY[interval '60 min']
array_position(iva, interval '1 day')
array_remove(iva, interval '1 day')
array_positions(iva, interval '60 min')
array_replace(iva, interval '1 day', interval '2 days')
iva IS DISTINCT FROM '{1 day}'
iv = ANY(iva)
nra < ARRAY[int4range(2, 3)]
nra = '{"[1,5)","[10,20)","[2,3)"}'
nra @> ARRAY[nr]
cardinality(iva)
trim_array(ma, 0)
trim_array(ma, 1)
greatest(ma, '{1}')
"""
# Regular expressions: PostgreSQL takes the longest match
_PATTERNS = r"""
regexp_substr(t, 'ab?(bc)?')
regexp_substr(t, 'b.*')
substring(t from 'a|ab')
substring(t from 'a(.)')
substring(t from 'b(a+)c')
substring(t from '\m..')
regexp_replace(t, 'a*', '-', 'g')
regexp_replace(t, 'a*', '-')
regexp_replace(t, '(ab?)+', '-')
regexp_replace(t, 'a+', '-', 'g')
regexp_replace(t, 'b', '[\1]')
regexp_replace(t, '(b)', '[\1\&]')
regexp_match(t, 'a(b)(c)?')
regexp_match(t, 'b(a*)(c)')
regexp_match(t, 'a')
regexp_match(t, '(a+)+b')
regexp_count(t, 'a|b')
regexp_count(t, 'a*')
regexp_count(t, 'a')
regexp_count(t, '[0-9]+')
regexp_split_to_array(t, '[0-9]+')
regexp_split_to_array(t, 'a')
regexp_split_to_array(t, 'a*')
regexp_split_to_array(t, '^a')
regexp_split_to_array(t, 'c$')
regexp_count(t, '^')
t ~ p
t !~* p
regexp_count(t, p)
regexp_substr(t, p)
regexp_replace(t, p, '-')
regexp_like(t, p)
t LIKE p
t ~ '(a+)+b'
"""
_TIMES = """
ts AT TIME ZONE 'Europe/Berlin'
ts AT TIME ZONE 'UTC'
ts AT TIME ZONE 'gmt'
tz AT TIME ZONE 'UTC'
ts AT TIME ZONE t
coalesce(tz, 'infinity')::date
coalesce(tz, '-infinity')::timestamp
coalesce(tz, 'infinity') AT TIME ZONE 'UTC'
coalesce(ts, 'infinity') AT TIME ZONE 'UTC'
extract(year FROM coalesce(tz, '-infinity'))
date_trunc('day', coalesce(ts, 'infinity'))
make_timestamp(i + 294000, 12, 31, 0, 0, 0)
make_interval(days => 7)
make_interval(days => i)
make_interval(i, secs => 1.5)
make_timestamp(i, 1, 1, 0, 0, 0)
to_timestamp(f)
to_timestamp(u::float8)
extract(year FROM to_timestamp(f))
to_timestamp(f)::date
iv < interval '1 day'
iv = 'infinity'
iv > interval '200000 years'
iv IS DISTINCT FROM interval '1 day'
iv BETWEEN interval '0' AND interval '1 year'
isfinite(iv)
iv + interval '1 day'
interval '1 day' - iv
- iv
iv * 2
iv / 2
f * interval '1 day'
interval '1 day' * f
interval '1 day' * i
interval '1 day' * (i * 1.5)
interval '3 days' / f
interval '3 days' / i
interval '1 day' * 1.7e308
iv * 1.7e308
ts + iv
d - iv
tm + iv
justify_days(iv)
extract(epoch FROM iv)
date_bin(iv, ts, ts)
- interval '9007199254740993 us'
interval '1 day' - interval '9007199254740993 us'
ts - interval '9007199254740993 us'
ts + interval '9007199254740993 us'
age(ts, ts - interval '1 day')
(ts - ts) = iv
d - d
d + 2147483647
s::integer
decode('\\x41', 'escape')
decode('a\\101', 'escape')
decode(t, 'hex')
time '24:00' - interval '1 day'
(ts, ts + interval '1 hour') OVERLAPS (ts, ts + iv)
"""
_DOCUMENTS = """
j -> 0
j -> 'a' -> 'b'
js -> 'a'
js ->> 'a'
j #> '{a,b,1}'
j #>> '{0,0,0}'
jsonb_array_length(j)
json_typeof(js)
jsonb_typeof(j)
j @> '{"a": {"b": [2]}}'
j @> j
j <@ j
j @> '1'
j @> '"x"'
j ? 'a'
j ?| '{a,x}'
j ?& '{a}'
"""


def _calls(*texts: str) -> list[str]:
    return [line for text in texts for line in text.strip().splitlines()]


_ALL = _calls(_NAMED, _ARRAYS, _PATTERNS, _TIMES, _DOCUMENTS)


# Infinite dates behind names of columns, and what a window or a group holds
_QUERIES = """
SELECT x - d FROM (SELECT d, 'infinity'::date AS x FROM t) AS s
SELECT extract(year FROM x) FROM (SELECT '-infinity'::date AS x FROM t) AS s
SELECT age(x) FROM (SELECT '-infinity'::timestamp AS x FROM t) AS s
SELECT x - ts FROM t, (VALUES ('infinity'::timestamp)) AS v(x) ORDER BY n
WITH c AS (SELECT n, 'infinity'::date AS x FROM t) SELECT x - d FROM c JOIN t USING (n) ORDER BY n
SELECT x - y FROM (SELECT d, d FROM t UNION SELECT 'infinity', '2024-01-01') AS s(x, y) ORDER BY 1
SELECT x::timestamp FROM (SELECT 'infinity'::date AS x FROM t) AS s
SELECT max(x) - min(x) FROM (SELECT coalesce(d, 'infinity') AS x FROM t) AS s
SELECT (SELECT 'infinity'::date) - d FROM t ORDER BY n
SELECT sum(u) OVER (ORDER BY n) FROM t ORDER BY n
SELECT avg(u) OVER () FROM t ORDER BY n
SELECT sum(u), avg(u) FROM t WHERE n <> 2
SELECT n FROM t ORDER BY iva, n
SELECT n FROM t ORDER BY nra DESC, n
SELECT iva, count(*) FROM t GROUP BY iva
SELECT count(DISTINCT iva) FROM t
SELECT coalesce(iva, '{1 day}') FROM t ORDER BY n
SELECT iva::text, nra::text FROM t ORDER BY n
SELECT CASE WHEN n = 1 THEN iva END FROM t ORDER BY n
SELECT array_agg(iv ORDER BY n) FROM t
SELECT s::oid FROM t ORDER BY n
SELECT '{a}'::char(3)[], '{abc,d}'::varchar(2)[], '{1.55}'::numeric(4,1)[] FROM t WHERE n = 1
SELECT ua::numeric(4,1)[] FROM t WHERE n = 1
SELECT ma::numeric(4,1)[], ARRAY[t]::varchar(2)[] FROM t ORDER BY n
SELECT ARRAY[t]::char(5)[], a::text[]::char(2)[] FROM t ORDER BY n
SELECT a::numeric(4,1)[], '{1.5}'::float8[]::numeric(5,2)[] FROM t ORDER BY n
SELECT min(iv), max(iv) FROM t
SELECT n FROM t ORDER BY iv, n
"""


def test_each_call_gives_what_a_server_gives(lake: LakeOracle) -> None:
    for text in _ALL:
        for n in range(1, len(_ROWS) + 1):
            lake.compare(f"SELECT {text} FROM t WHERE n = {n}")
    for query in _calls(_QUERIES):
        lake.compare(query)
    assert not lake.tally.differences, "\n".join(lake.tally.differences)


def test_each_filter_takes_the_rows_that_a_server_takes(world: World) -> None:
    wrong = []
    for text in _ALL:
        for filter_ in [text, f"({text}) IS NULL", *_equal(world, text)]:
            found, theirs = world.we_say(filter_), world.postgres_says(filter_)
            if isinstance(found, tuple):
                if theirs.verdict is None and not is_our_refusal(found):
                    wrong.append(f"{filter_[:80]}: {found}")
                continue
            for n in range(1, len(_ROWS) + 1):
                where = f"WHERE n = {n}"
                taken = world.our_rows(found.predicate, where)
                wanted = world.postgres_rows(filter_, where)
                if taken != wanted:
                    wrong.append(f"{filter_[:80]} {where}: {wanted}, ours {taken} {world.error}")
    assert not wrong, "\n".join(wrong)


def _equal(world: World, text: str) -> list[str]:
    """Filters that compare a call with the values that a server gives."""
    found = set()
    for n in range(1, len(_ROWS) + 1):
        value = world.theirs(text, f"WHERE n = {n}")
        if value is not None:
            found.add("({}) = '{}'".format(text, value.replace("'", "''")))
    return sorted(found)
