"""Row filters written by hand: PostgreSQL 18 takes, refuses and prints them as we do."""

from __future__ import annotations

import time
from collections.abc import Iterator

import psycopg
import pytest

from penstock.embedded import EmbeddedPostgres
from penstock.publication.row_filter import RowFilter
from publication.oracle import World, is_our_refusal

COLUMNS = [
    ("i2", "smallint"), ("i4", "integer"), ("i8", "bigint"), ("n", "numeric(10,2)"),
    ("nn", "numeric"), ("f4", "real"), ("f8", "double precision"), ("b", "boolean"),
    ("t", "text"), ("v", "varchar(20)"), ("c", "char(5)"), ("nm", "name"), ("by", "bytea"),
    ("d", "date"), ("ts", "timestamp"), ("tz", "timestamptz"), ("u", "uuid"),
    ("ia", "integer[]"), ("ta", "text[]"), ("j", "jsonb"), ("iv", "interval"),
    ('"Mixed Case"', "integer"), ('"select"', "integer"),
]  # fmt: skip

TEXTS = """
i4 > 5 AND t = 'NSW'
(i4 > 5) AND (i4 < 7) AND i8 = 3 OR NOT b
i4 > 5 AND (i8 > 6 AND b)
i4 = 1 = b
NOT NOT b
b
NOT b IS TRUE
b IS NOT UNKNOWN
b IS UNKNOWN AND b IS NOT TRUE AND b IS FALSE AND b IS NOT FALSE
i4 > -5
i4 > - 5 AND -i4 < 3
i4 > +5
i4 = 3000000000
i4 = 99999999999999999999
i4 = -2147483648
i8 = -9223372036854775808
i2 = 5
i2 + i4 > i8
n > 5
n > 5.50
n = 1e3
n = -1.5
n = 'NaN'
nn > 100 AND nn <> 'Infinity'
f8 > 1.5
f8 = '1e20'
f8 = '0.00001'
f8 = '1e15'
f8 = 'NaN' AND f4 = '-Infinity'
f4 = '3.4e38'
f4 = '1e-7' AND f4 = '123456' AND f4 = '1234567'
f4 > f8
i4 > 1.5
f8 > i4
t = 'a''b'
t = 'a\\b'
t = E'a\\nb'
v = 'abc'
v = t
c = 'abc'
c = t
c = 'abc'::text
c::text = 'x'
nm = 'abc'
nm = t
t > 'a' COLLATE "C"
t COLLATE "C" < 'b'
t COLLATE "nope" < 'b'
i4 COLLATE "C" < 5
by = '\\x00ff'
by = 'abc'
d = '2020-01-01'
d > '2020-01-01'::timestamp
d = 'infinity'
d = '2020-13-01'
d = 'nonsense'
d + 1 > '2020-01-01'
d - '2020-01-01' > 5
d - d > 5
ts > '2020-01-01 10:00'
ts = '2020-01-01 10:00:00.123456'
ts > d
ts > tz
tz > '2020-01-01 10:00+02'
tz > '2020-01-01'
tz = d
date '2020-01-01' < d
timestamp '2020-01-01' < ts
timestamp with time zone '2020-01-01 00:00:00+00' < tz
u = 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'
u = 'nope'
ia = '{1,2,NULL}'
ia = ARRAY[1,2]
ia = ARRAY[]::int[]
ia @> ARRAY[1]
ta = '{a,"b c",NULL,"NULL"}'
1 = ANY(ia)
i4 = ANY('{1,2}')
i4 = ANY(ARRAY[1,2,NULL])
i4 <> ALL(ARRAY[1,2])
i4 > ALL('{}'::int[])
t = ANY(ta)
t LIKE ANY(ARRAY['a%','b%'])
i4 IN (1,2,3)
i4 IN (1)
i4 NOT IN (1,2)
i4 IN (1, i8)
i4 IN (1, 2, i8)
i4 IN (1, 2, NULL)
i4 IN (1.5, 2)
t IN ('a','b')
v IN ('a','b')
v IN ('a')
c IN ('a','b')
n IN (1,2)
i4 BETWEEN 1 AND 5
i4 NOT BETWEEN 1 AND 5
i4 BETWEEN SYMMETRIC 5 AND 1
i4 NOT BETWEEN SYMMETRIC 5 AND 1
i4 IS DISTINCT FROM 5
i4 IS NOT DISTINCT FROM 5
i4 IS DISTINCT FROM NULL
NULL IS DISTINCT FROM i4
i4 IS NOT DISTINCT FROM NULL
i4 IS NULL
i4 ISNULL OR i4 NOTNULL
(i4 + 1) IS NOT NULL
j IS NULL AND iv IS NOT NULL
t LIKE 'a%'
t NOT LIKE 'a\\_%'
t LIKE 'a#%' ESCAPE '#'
t ILIKE 'A%'
t NOT ILIKE 'A%'
v LIKE 'a%'
c LIKE 'a%'
nm LIKE 'a%'
t ~ '^a.*b$'
t ~* 'A[bc]+'
t !~ 'x' AND t !~* 'y'
t SIMILAR TO 'a%'
COALESCE(i4, 0) > 5
COALESCE(t, 'x') = 'x'
COALESCE(i4, 1.5) > 2
COALESCE(v, 'x') = 'x'
COALESCE(i4, 'x') = 1
COALESCE(i4, t) = 1
COALESCE(b, false)
NULLIF(i4, 5) = 3
NULLIF(t, 'x') IS NULL
GREATEST(i4, 5) > 6
LEAST(i4, i8, 1.5) < 0
GREATEST(i4, t) = 1
CASE WHEN i4 > 5 THEN b ELSE false END
CASE WHEN i4 > 5 THEN 'a' WHEN b THEN t END = 'x'
CASE i4 WHEN 1 THEN true WHEN 2 THEN false END
CASE i4 WHEN 1.5 THEN true END
CASE t WHEN 'a' THEN 1 ELSE 2 END = 1
CASE WHEN i4 THEN b END
CASE WHEN b THEN 1 ELSE 'x' END = 1
CASE WHEN b THEN 1 ELSE t END = 1
lower(t) = 'abc'
upper(v) = 'ABC'
lower(i4) = 'a'
length(t) > 3
length(c) > 3
char_length(t) > 3
octet_length(t) > 3
substring(t, 1, 2) = 'ab'
substring(t from 1 for 2) = 'ab'
substring(t from 2) = 'ab'
substring(t for 2) = 'ab'
substr(t, 2) = 'ab'
position('a' in t) > 0
strpos(t, 'a') > 0
trim(t) = 'a'
trim(both 'x' from t) = 'a'
trim(leading from t) = 'a'
ltrim(t, 'ab') = 'c'
btrim(t) = 'c'
left(t, 2) = 'ab'
right(t, 2) = 'ab'
replace(t, 'a', 'b') = 'b'
starts_with(t, 'a')
t ^@ 'a'
t || 'x' = 'ax'
t || i4 = 'a1'
v || 'x' = 'ax'
abs(i4) > 5
abs(n) > 5
mod(i4, 2) = 1
i4 % 2 = 0
i4 / 2 = 1
n / 2 > 1
n * 2 > 1
n + 1 > 1
n - nn > 1
f8 * 2 > 1
f8 / f4 > 1
-n < 0
-f8 < 0
floor(f8) = 1
ceil(n) = 1
round(n) = 1
round(n, 1) = 1
i4 ^ 2 > 5
i4 & 1 = 1
extract(year from d) = 2020
extract('month' from ts) = 5
extract(year from tz) = 2020
date_part('year', d) = 2020
date_trunc('month', ts) = '2020-01-01'
date_trunc('month', tz) = '2020-01-01'
cardinality(ia) = 2
array_length(ia, 1) = 2
ia[1] = 5
i4::bigint > 5
i4::smallint > 5
i4::numeric(5,1) > 5
n::numeric(5,1) > 5
n::int > 5
n::float8 > 5
f8::int > 5
f8::real > 5
f8::numeric > 5
CAST(i4 AS bigint) > 5
i4::text = '5'
t::int = 5
i4::bool
b::int = 1
b::text = 'true'
v::text = 'a'
v::varchar(3) = 'a'
t::varchar = 'a'
v::varchar = 'a'
t::varchar(3) = 'abc'
t::char(3) = 'abc'
c::char(3) = 'abc'
'abc'::varchar(2) = v
'abc'::char(2) = c
'1'::int = i4
'x'::int = i4
'99999'::smallint = i2
'1.239'::numeric(5,2) = n
int '5' = i4
int4(n) = 5
int8 '5' = i4
float8 '5' = f8
bool 'yes'
ts::date = '2020-01-01'
tz::date = '2020-01-01'
d::timestamp = '2020-01-01'
d::timestamptz = '2020-01-01'
ts = 'now'
d = CURRENT_DATE
tz < now()
t = CURRENT_USER
t = current_setting('x')
random() < 0.5
i4
t
NULL
'true'
'x'
1
i4 + 1
ctid = '(0,1)'
xmin = '1'
tableoid > 5
nope = 1
tb.i4 = 1
public.tb.i4 = 1
other.i4 = 1
i4 = t
i4 = '5'
i4 = 'x'
b = 1
b > true
t > 5
t + 1 > 5
'a' || 'b' = t
'1' + '2' = 3
NULL + NULL = 3
'1' = '1'
NULL = NULL
NULL IS NULL
foo(i4)
foo(i4, 'x')
abs()
abs(t) = 1
abs('1') = 1
lower() = 'x'
count(*) > 1
sum(i4) > 1
max(t) = 'x'
count(i4) OVER () > 1
row_number() OVER () = 1
generate_series(1,2) = 1
i4 = (SELECT 1)
i4 IN (SELECT 1)
EXISTS (SELECT 1)
i4 = ANY (SELECT 1)
i4 = $1
i4 = ANY(5)
i4 = ANY(t)
i4 AND b
NOT i4
i4 OR b
i4 IS TRUE
t IS TRUE
i4 ~~ 'x'
@ i4 = 5
|/ f8 = 5
!! t
i4 !
"Mixed Case" = 1
"select" = 1
mixed = 1
i4 = 1::nope
i4 = 1::int(3)
t::varchar(0) = 'x'
ARRAY[] = ia
ARRAY[1,'x'] = ia
ARRAY[1,t] = ia
ARRAY[i4, 2] = ia
ARRAY['1','2']::int[] = ia
'{1,x}' = ia
'{1' = ia
'1' = ia
i4 < 5 < 6
i4 = = 5
i4 =
i4 = 5)
i4 = 5 AND
i4 BETWEEN 1
i4 IN ()
CASE END
CASE WHEN b END
i4 = 5 LIMIT 1
t LIKE 'a' LIKE 'b'
i4 IS 5
select
5 = i4 AND select
t = 'abc' 'def'
i4 operator(pg_catalog.=) 5
j = '{}'
iv > '1 day'
ts + '1 day' > '2020-01-01'
ts AT TIME ZONE 'UTC' > '2020-01-01'
tz AT TIME ZONE 'UTC' > '2020-01-01'
num_nulls(i4, i8) = 1
concat(t, v) = 'ab'
format('%s', t) = 'a'
md5(t) = 'x'
(i4, i8) = (1, 2)
ROW(i4) = ROW(1)
i4 NOT NULL
b = 'yes'
b = 'maybe'
b IN (true, false)
t = U&'\\0061'
i4 = 0x1F
i4 = 1_000
n = .5
n = 5.
"Mixed Case" IS NULL
CASE WHEN b THEN CASE WHEN i4 = 1 THEN t ELSE v END ELSE 'x' END = 'y'
NOT (i4 = 1 OR i8 = 2)
NOT (i4 = 1 AND NOT b)
i4 <> 1 AND i4 != 2
length(t COLLATE "C") = 1
t = c
nm IN ('a', 'b')
nm = v
i2 = ANY('{1,2}')
i8 IN (1, 2, 3000000000)
f8 IN (1, 2.5)
f4 = 1.1
d IN ('2020-01-01', '2020-01-02')
d BETWEEN '2020-01-01' AND '2020-12-31'
ts BETWEEN d AND '2020-12-31'
tz IN ('2020-01-01', '2020-01-02 00:00:00+01')
ta = ARRAY['a', NULL]
ta @> '{a}'
'a' = ANY(ta) OR ta IS NULL
t = ALL(ta)
v = ANY(ta)
i8 = ANY(ia)
by || '\\x00' = '\\x00'
length(by) > 3
bit_length(t) > 5
interval '1 day' < iv
interval '1' day = iv
iv::text = 'x'
t::interval > iv
ts + interval '1 day' > d
time '10:00' IS NULL
b'01' = b'01'
bit '01' IS NULL
t::varchar(1,2) = 'x'
CAST(i4 AS float(10)) > 5
CAST(i4 AS float(60)) > 5
float(24) '1.5' = f4
t = U&'d!0061t' UESCAPE '!'
t = E'\\u00'
t = E'\\xff'
t LIKE 'x' || '%'
t NOT SIMILAR TO 'a%' ESCAPE '#'
lower(DISTINCT t) = 'a'
lower(t ORDER BY t) = 'a'
lower(t) FILTER (WHERE b) = 'a'
lower(t) OVER () = 'a'
lower(*) = 'a'
nope(*) = 1
rank() = 1
rank() OVER () = 1
sum(t) = 1
sum(t) OVER () = 1
count(DISTINCT i4) > 1
count(i4) FILTER (WHERE b) > 1
count() > 1
concat(VARIADIC ta) = 'a'
lower(x => t) = 'a'
overlay(t PLACING 'x' FROM 1) = 'a'
normalize(t) = 'a'
t IS NORMALIZED
t IS NOT NFD NORMALIZED
j IS JSON
(ts, ts) OVERLAPS (ts, ts)
substring(t SIMILAR 'a' ESCAPE '#') = 'a'
substring(t for 2 from 1) = 'a'
substring() = 'a'
collation for (t) = 'x'
treat(i4 AS int8) = 5
trim(trailing from t, 'x') = 'a'
i4 = 0b102
i4 = 1_
i8 = 3_000_000_000
n = 1_000.5
i8 = 0xFFFFFFFFFF
tz < current_timestamp(3)
d < localtimestamp(2)
t = current_schema
t = user
DEFAULT
i4 = DEFAULT
(SELECT true)
ARRAY(SELECT 1) = ia
i4 = ALL (SELECT 1)
ia[1:2] = ia
ta[1] = 'a'
(t).x = 1
(tb).i4 = 1
tb.* IS NULL
tb IS NULL
i4 OPERATOR(pg_catalog.+) 1 = 2
OPERATOR(pg_catalog.-) i4 < 0
ARRAY[[1,2],[3,4]] = ia
ARRAY[1,[2]] = ia
i4 = 1; SELECT 1
i4 = 1, b
i4 = 1 AS x
SELECT 1
DISTINCT b
b FOR READ ONLY
b) + (b
interval IS NULL
unique (SELECT 1)
exists (b)
f(i4)[1] = 1
""".strip().split("\n")


@pytest.fixture(scope="module")
def world(postgres: EmbeddedPostgres) -> Iterator[World]:
    with psycopg.connect(postgres.conninfo(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE filter_texts TEMPLATE template0 LOCALE 'C'")
    with psycopg.connect(postgres.conninfo("filter_texts"), autocommit=True) as connection:
        world = World(connection)
        world.create(COLUMNS, [])
        yield world
    with psycopg.connect(postgres.conninfo(), autocommit=True) as admin:
        admin.execute("DROP DATABASE filter_texts")


@pytest.mark.parametrize("text", TEXTS)
def test_verdict_and_text_are_postgresqls(text: str, world: World) -> None:
    expected, got = world.postgres_says(text), world.we_say(text)
    if is_our_refusal(got):
        assert expected.verdict is None or expected.verdict[0] in ("0A000", "42883", "42704")
        return
    if isinstance(got, RowFilter):
        assert got.text == expected.text, expected
        again = world.we_say(got.text)
        assert again == got
        assert world.our_rows(got.predicate) == []
    else:
        assert got == expected.verdict


def test_columns_may_have_any_name(world: World) -> None:
    columns = [("item", "integer"), ('"Each"', "integer"), ("a", "integer[]")]
    world.create(columns, [("5", "1", "{1,2}"), ("1", "5", "{1,2}"), ("1", "1", "{NULL,2}")])
    for text in ("item = ANY(a)", "item <> ALL(a)", '"Each" = ANY(a)'):
        compiled = world.we_say(text)
        assert isinstance(compiled, RowFilter)
        assert world.our_rows(compiled.predicate) == world.postgres_rows(text)
    world.create(COLUMNS, [])


def test_a_deep_filter_that_may_fail_is_compiled_in_little_time(world: World) -> None:
    """Each level asks whether a column is used below it."""
    began = time.thread_time()
    assert isinstance(world.we_say("NOT " * 2000 + "n::numeric(5,1) > 5"), RowFilter)
    assert time.thread_time() - began < 2
