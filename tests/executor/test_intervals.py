"""Intervals in queries, beside a server."""

from __future__ import annotations

import random

import psycopg
import pytest

from executor.lake_oracle import LakeOracle
from fix_postgres import Database
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.sql.text.interval_literals import read_interval

pytestmark = pytest.mark.postgres

_UNITS: tuple[str, ...] = (
    "us",
    "usec",
    "ms",
    "milliseconds",
    "s",
    "sec",
    "seconds",
    "m",
    "min",
    "minute",
    "h",
)
_UNITS += ("hours", "d", "day", "days", "w", "weeks", "mon", "mons", "month", "y", "yr", "years")
_UNITS += ("decade", "century", "c", "mil")
_NUMBERS = ("1", "2", "1.5", "0.25", "13", "100", ".5", "7.", "0", "2.333", "29", "1e2")
_TEXTS: tuple[str, ...] = (
    "",
    "P1Y2M3DT4H",
    "1-2",
    "infinity",
    "-infinity",
    "nothing",
    "99999999999 days",
    "1 d 1",
)
_TEXTS += ("9" * 29, "9" * 29 + " us", "9" * 29 + ".5 years")
_TEXTS += ("9223372036854775807 us", "9223372036854775808 us", "-9223372036854775807 h")
_TIMES = (
    "2024-02-29 23:59:59.999999",
    "2024-01-31 00:00:00",
    "1999-12-31 12:30:00.5",
    "1000-03-01 00:00:00",
    None,
)


def _text(chosen: random.Random) -> str:
    parts = []
    for _ in range(chosen.randint(1, 4)):
        sign = chosen.choice(("", "", "-", "+"))
        kind = chosen.random()
        if kind < 0.75:
            blank = chosen.choice(("", " "))
            parts.append(sign + chosen.choice(_NUMBERS) + blank + chosen.choice(_UNITS))
        elif kind < 0.9:
            seconds = chosen.choice(("", ":05", ":59.5", ":60", ":7.123456789", ":1.123456"))
            parts.append(f"{sign}{chosen.randint(0, 30)}:{chosen.randint(0, 61):02}{seconds}")
        else:
            parts.append(sign + chosen.choice(("1", "2.5", "30")))
    end = chosen.choice(("", "", "", "", " ago", " AGO", "x"))
    return chosen.choice(("", " ", "@ ")) + chosen.choice((" ", "  ")).join(parts) + end


def test_literals_are_read_as_by_a_server(database: Database) -> None:
    """Those that are not refused by name."""
    chosen, read = random.Random(7), 0
    texts = [*_TEXTS, *(_text(chosen) for _ in range(1500))]
    with database.connect() as connection:
        for text in texts:
            try:
                found = str(read_interval(text))
            except FeatureNotSupported:
                continue
            except PenstockError as error:
                found = f"{error.sqlstate} {error.message}"
            try:
                row = connection.execute("SELECT %s::interval::text", (text,)).fetchone()
                wanted = str(row[0]) if row is not None else ""
            except psycopg.Error as error:
                wanted = f"{error.sqlstate} {error.diag.message_primary}"
            assert found == wanted, text
            read += 1
    assert read > 400


_BY = (
    "interval '1 month'",
    "interval '-1 mon 3 days 02:00:00.000001'",
    "'1 year 1 day'::interval",
    "1.5 * interval '1 month 3 days 1 second'",
    "(interval '7 weeks' * 0.3 - interval '1 hour')",
    "(- interval '1 day' + '25:00')",
    "987654321 * interval '1s'",
    "NULL::interval",
)


def test_moments_are_moved_as_by_a_server(database: Database) -> None:
    with database.connect() as connection:
        oracle = LakeOracle(connection)
        rows = [
            [str(number), text, text and f"{text}+00", text and text[:10]]
            for number, text in enumerate(_TIMES)
        ]
        types = {"n": "int", "ts": "timestamp", "tz": "timestamptz", "d": "date"}
        oracle.create("moments", types, rows)
        for by in _BY:
            for moment in ("ts", "tz", "d", "'2024-03-31'::timestamp"):
                for text in (f"{moment} + {by}", f"{by} + {moment}", f"{moment} - {by}"):
                    query = f"SELECT n, {text} FROM moments WHERE {text} < '2100-01-01' ORDER BY n"
                    assert oracle.compare(query) == "equal", (query, oracle.tally)
        for field in ("epoch", "year", "hour", "dow", "minute"):
            query = f"SELECT extract({field} from ts), extract({field} from tz) FROM moments"
            assert oracle.compare(f"{query} ORDER BY n") == "equal", (field, oracle.tally)


@pytest.mark.parametrize(
    "text",
    ["ts + i", "i < interval '1 day'", "ts + interval '1001 years'", "ts - ts", "interval '1 day'"],
)
def test_other_intervals_are_refused_by_name(database: Database, text: str) -> None:
    with database.connect() as connection:
        oracle = LakeOracle(connection)
        oracle.create("spans", {"ts": "timestamp", "i": "interval"}, [[_TIMES[0], "1 day"]])
        assert oracle.compare(f"SELECT {text} FROM spans") in ("refused", "equal")
