"""Random tables, rows and filters: PostgreSQL 18 and we evaluate, take and print them alike.

PENSTOCK_FILTER_PAIRS: how many pairs of filter and row are compared (make oracle: 1 million).
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import duckdb
import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from faults.heavy import in_make_faults
from penstock.embedded import EmbeddedPostgres
from penstock.publication.row_filter import RowFilter
from publication.filters import VALUES, Filters, random_rows
from publication.oracle import World, is_our_refusal

REPEATED_PAIRS = 24_000
"""Up to here the same filters every time; more of them are new ones in every run."""
PAIRS = int(os.environ.get("PENSTOCK_FILTER_PAIRS", "24000"))
ROWS = 120
MOST_DIFFERENCES = 40
FILTERS = 10
SINGLE_ROWS = 6
"""Rows that are evaluated one by one where a filter raises an error on some."""


@dataclass
class Counts:
    pairs: int = 0
    filters: int = 0
    failing: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    differences: list[object] = field(default_factory=list)


@pytest.fixture(scope="module")
def world(postgres: EmbeddedPostgres) -> Iterator[World]:
    with psycopg.connect(postgres.conninfo(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE filter_oracle TEMPLATE template0 LOCALE 'C'")
    with psycopg.connect(postgres.conninfo("filter_oracle"), autocommit=True) as connection:
        connection.execute("SET extra_float_digits = 3")
        yield World(connection)
    with psycopg.connect(postgres.conninfo(), autocommit=True) as admin:
        admin.execute("DROP DATABASE filter_oracle")


@dataclass(frozen=True)
class Table:
    """What one seed gives; the repr is short on purpose."""

    columns: list[tuple[str, str]] = field(repr=False)
    rows: list[list[str | None]] = field(repr=False)
    filters: list[str] = field(repr=False)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    random = Random(draw(st.integers(0, 2**64)))
    types = random.sample(sorted(VALUES), 14)
    columns = [(f"c{number}", type_) for number, type_ in enumerate(types)]
    generator = Filters({type_: [name] for name, type_ in columns})
    filters = [generator.draw(random) for _ in range(FILTERS)]
    return Table(columns, random_rows(random, types, ROWS), filters)


def compare(world: World, text: str, counts: Counts) -> None:
    try:
        agree(world, text, counts)
    except AssertionError as error:
        counts.differences.append((text, str(error).split("\n")[0]))
    except duckdb.Error as error:
        counts.differences.append((text, repr(error)))


def agree(world: World, text: str, counts: Counts) -> None:
    expected, got = world.postgres_says(text), world.we_say(text)
    if is_our_refusal(got):
        assert isinstance(got, tuple)
        counts.refused[got[1]] += 1
        return
    if not isinstance(got, RowFilter):
        assert got == expected.verdict, text
        return
    assert expected.verdict is None, (text, expected.verdict)
    assert got.text == expected.text, text
    again = world.we_say(got.text)
    assert isinstance(again, RowFilter) and again.columns == got.columns, again
    counts.filters += 1
    theirs, ours = world.postgres_rows(text), world.our_rows(got.predicate)
    assert world.our_rows(again.predicate) == ours, "stored text"
    if theirs is not None:
        assert ours == theirs, _different(world, got, theirs, ours)
        assert world.taken(got) == [n for n, value in enumerate(theirs, 1) if value], world.error
        counts.pairs += world.rows
        return
    counts.failing += 1
    assert got.may_fail, text
    assert ours is None, (world.error, got.predicate)
    for number in range(1, SINGLE_ROWS + 1):
        where = f"WHERE id = {number}"
        theirs, ours = world.postgres_rows(text, where), world.our_rows(got.predicate, where)
        assert ours == theirs, (ours, theirs, world.error, world.shown(number, got.columns))
        taken = None if theirs is None else [number for value in theirs if value]
        assert world.taken(got, where) == taken, world.error
        counts.pairs += 1


def _different(
    world: World, got: RowFilter, theirs: list[bool | None], ours: list[bool | None] | None
) -> object:
    if ours is None:
        return "ours raises", world.error, got.predicate
    pairs = enumerate(zip(theirs, ours, strict=True), start=1)
    wrong = [(n, t, o) for n, (t, o) in pairs if t != o][:2]
    return [(t, o, world.shown(n, got.columns)) for n, t, o in wrong]


def test_filters_agree_with_postgresql(world: World) -> None:
    counts = Counts()

    @settings(
        max_examples=max(PAIRS // (ROWS * FILTERS * 6 // 10), 1),
        deadline=None,
        database=None,
        derandomize=PAIRS <= REPEATED_PAIRS,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(tables())
    def run(table: Table) -> None:
        world.create(table.columns, table.rows)
        for text in table.filters:
            compare(world, text, counts)
        assert len(counts.differences) < MOST_DIFFERENCES

    with contextlib.suppress(AssertionError):
        run()
    print(
        f"\n{counts.pairs} pairs, {counts.filters} filters, {counts.failing} of them raise errors,"
        f" {counts.refused.total()} refused"
    )
    for message, number in counts.refused.most_common(40):
        print(f"{number:6} {message}")
    assert not counts.differences, "\n".join(map(str, counts.differences))
    assert counts.pairs >= min(PAIRS, 20_000)


DECIDED = [
    f"f::int > 0 AND {decided}"
    for decided in (
        "(false AND b) IS UNKNOWN",
        "(('f'::boolean < 'f'::boolean) AND b) IS NULL",
        "(false AND b) IS NOT FALSE",
        "(true OR b) IS NOT TRUE",
        "(true OR b) IS FALSE",
        "(false AND b) IS TRUE",
        "NOT ((true OR b) IS NOT UNKNOWN)",
        "(false AND b) = true",
        "(false AND b) <> (true AND false)",
        "(true OR b) < true",
        "true <= (false AND b)",
        "(false AND b) IS DISTINCT FROM false",
        "((false AND b) IS NULL) IS NOT FALSE",
        "(false AND b) = b",
        "(NULL AND b) IS NULL",
        "(b IS NULL) IS UNKNOWN",
        "CASE WHEN true THEN false ELSE b END IS TRUE",
    )
] + [
    "f::int > 0 OR (false AND b) IS NOT UNKNOWN",
    "f::int > 0 OR (true OR b) >= true",
    "f::int > 0 OR COALESCE(0, f::int)::boolean IS NOT DISTINCT FROM false",
    "f::int > 0 OR COALESCE(NULL, 7 - 2, f::int) = 5",
    "f::int > 0 AND COALESCE(f::int, 3, f::int) IS NULL",
    "f::int > 0 AND COALESCE(NULL + f, NULL) > 1",
    "f::int > 0 AND (NULL::int + f::int) > 1",
    "f::int > 0 OR (NULL || f::text) IS NULL",
    "f::int > 0 OR lower(NULL || 'x') IS NULL",
    "f::int > 0 OR CASE WHEN NULL THEN f::int WHEN true THEN 1 ELSE f::int END = 1",
    "f::int > 0 OR CASE WHEN false THEN f::int ELSE 1 END = 1",
    "f::int > 0 OR CASE WHEN f > 1 THEN 1 WHEN true THEN 1 ELSE f::int END = 1",
    "f::int > 0 OR NULLIF(NULL::int, f::int) IS NULL",
    "f::int > 0 OR NULLIF(1, NULL::int + f::int) = 1",
    "COALESCE(0, 1 / 0) = 0",
    "CASE WHEN true THEN b ELSE 1 / 0 > 1 END",
]


@pytest.mark.parametrize("text", DECIDED)
def test_what_constants_decide_is_decided_first(text: str, world: World) -> None:
    """PostgreSQL's planner evaluates nothing that may fail then."""
    world.create(
        [("f", "double precision"), ("b", "boolean")], [["inf", "t"], ["1", None], [None, "f"]]
    )
    agree(world, text, Counts())


BESIDE_NULL = [
    "NULL AND f::int > 0",
    "f::int > 0 AND NULL",
    "NULL OR f::int > 0",
    "CASE WHEN NULL AND f::int > 0 THEN true ELSE b END",
    "NOT (NULL AND f::int > 0)",
    "(NULL AND f::int > 0) IS NULL",
    "NULLIF(NULL::int, f::int) IS NULL",
    "NULLIF(f::int, NULL::int) IS NULL",
    "NULLIF(NULL::int + 1, f::int) IS NULL",
    "NULLIF(f::int, 1) IS NULL",
    "CASE NULL::int WHEN f::int THEN true ELSE b END",
    "CASE 1 + NULL::int WHEN f::int THEN true ELSE b END",
    "CASE 1 WHEN f::int THEN true ELSE b END",
    "CASE f::int WHEN NULL THEN true ELSE b END",
    "CASE (CASE WHEN b THEN NULL ELSE b END) WHEN b THEN f::int > 0 ELSE b END",
]


@pytest.mark.parametrize("text", BESIDE_NULL)
def test_what_stands_beside_null_fails_as_in_postgresql(text: str, world: World) -> None:
    world.create(
        [("f", "double precision"), ("b", "boolean")], [["inf", "t"], ["1", None], [None, "f"]]
    )
    agree(world, text, Counts())


@pytest.mark.parametrize(
    "field", ["year", "week", *map(in_make_faults, ("month", "quarter", "dow", "isodow", "doy"))]
)
def test_fields_of_dates_before_christ(field: str, world: World) -> None:
    """Columns of the lake hold none, but filters compute some."""
    days = ["0", "-1", "-366", "-367", "-1462", "-16000", "400", None]
    world.create([("n", "int")], [[day] for day in days])
    day = "('0001-01-01'::date + n)"
    for number in range(-45, 60):
        agree(world, f"extract({field} FROM {day}) = {number}", Counts())
        agree(world, f"date_part('{field}', {day}) < {number}", Counts())
        agree(world, f"extract({field} FROM {day}::timestamp) = {number}", Counts())
