"""Texts of dates, times and intervals, beside a real server."""

from __future__ import annotations

from itertools import product

import psycopg

from penstock.civil import (
    EPOCH_DAYS,
    EPOCH_MICROSECONDS,
    parse_date,
    parse_timestamp,
    print_date,
    print_interval,
    print_time,
    print_timestamp,
)
from penstock.embedded import EmbeddedPostgres

PARTS = (
    (0, 1, -1, 11, 12, 13, -13, 24, -26),
    (0, 1, -1, 40),
    (0, 1, -1, 3_600_000_000, -90_000_000_123, 86_400_000_000_000, 1_500_000),
)
DAYS = (-2_440_588, -719_528, -719_163, -719_162, -1, 0, 1, 59, 10_957, 2_932_897, 106_751_000)
MOMENTS = (
    -210_866_803_200_000_000,
    -62_135_596_800_000_001,
    -1,
    0,
    1,
    86_399_999_999,
    10**15 + 500,
)


def test_intervals(postgres: EmbeddedPostgres) -> None:
    asked = list(product(*PARTS))
    sql = (
        "SELECT make_interval(months => m, days => d, secs => 0) + u * interval '1 microsecond'"
        " FROM unnest(%s::int4[], %s::int4[], %s::int8[]) WITH ORDINALITY AS t(m, d, u, n)"
        " ORDER BY n"
    )
    columns = [list(column) for column in zip(*asked, strict=True)]
    wanted = _texts(postgres, sql, *columns)
    assert [print_interval(*parts) for parts in asked] == wanted


def test_times(postgres: EmbeddedPostgres) -> None:
    asked = [0, 1, 10, 500_000, 3_661_000_100, 86_399_999_999]
    sql = "SELECT time '00:00' + n * interval '1 microsecond' FROM unnest(%s::int8[]) AS t(n)"
    assert list(map(print_time, asked)) == _texts(postgres, sql, asked)


def test_dates_and_timestamps_both_ways(postgres: EmbeddedPostgres) -> None:
    since = [day - EPOCH_DAYS for day in DAYS]
    sql = "SELECT date '2000-01-01' + n FROM unnest(%s::int4[]) AS t(n)"
    texts = _texts(postgres, sql, since)
    assert list(map(print_date, DAYS)) == texts
    assert [parse_date(text.encode()) for text in texts] == list(DAYS)
    for zone, kind in ((False, "timestamp"), (True, "timestamptz")):
        sql = (
            f"SELECT {kind} '2000-01-01' + n / 86400000000 * interval '1 day'"
            " + n %% 86400000000 * interval '1 microsecond'"
            " FROM unnest(%s::int8[]) AS t(n)"
        )
        texts = _texts(postgres, sql, [moment - EPOCH_MICROSECONDS for moment in MOMENTS])
        assert [print_timestamp(moment, zone) for moment in MOMENTS] == texts
        assert [parse_timestamp(text.encode(), zone) for text in texts] == list(MOMENTS)


def _texts(postgres: EmbeddedPostgres, sql: str, *arguments: list[int]) -> list[str]:
    with psycopg.connect(postgres.conninfo(), options="-c timezone=UTC") as connection:
        rows = connection.execute(f"SELECT c::text FROM ({sql}) AS q(c)", arguments).fetchall()
    return [text for (text,) in rows]
