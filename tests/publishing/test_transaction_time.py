"""The time in rows that sessions write: of their transaction, as on a server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import psycopg
import pytest

from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_TABLE = (
    "CREATE TABLE w (id int, a timestamptz DEFAULT now(), b timestamptz DEFAULT CURRENT_TIMESTAMP,"
    " c timestamp DEFAULT LOCALTIMESTAMP, d date DEFAULT CURRENT_DATE, e timestamp DEFAULT now(),"
    " f date DEFAULT now(), who text)"
)
_ALL = "now(), transaction_timestamp(), localtimestamp, current_date, CURRENT_TIMESTAMP, now()"


def _same(session: Any) -> list[bool]:
    """Of each row, whether all of its times are one."""
    rows = session.execute("SELECT a, b, c, d, e, f FROM w ORDER BY id").fetchall()
    found = []
    for a, b, c, d, e, f in rows:
        at = a.astimezone(UTC)
        naive = at.replace(tzinfo=None)
        assert (type(d), type(f)) == (date, date)
        found.append(a == b and c == e == naive and d == f == naive.date())
    return found


def test_a_transaction_has_one_time(both: Callable[..., tuple[Any, Any]]) -> None:
    sessions = both(_TABLE)
    sessions[1].execute("SET timezone = 'UTC'")
    for session in sessions:
        before = datetime.now(UTC) - timedelta(seconds=1)
        session.execute(f"INSERT INTO w VALUES (1, {_ALL}, current_user), (2, {_ALL}, '')")
        session.execute("INSERT INTO w (id) VALUES (3)")
        session.execute(f"INSERT INTO w (id, a, b, c, d, e, f) SELECT id + 3, {_ALL} FROM w")
        session.execute("BEGIN")
        session.execute("SELECT 1")
        session.execute("INSERT INTO w (id) VALUES (7)")
        session.execute(f"INSERT INTO w VALUES (8, {_ALL})")
        session.execute(
            "UPDATE w SET a = now(), b = CURRENT_TIMESTAMP, c = LOCALTIMESTAMP,"
            " d = CURRENT_DATE, e = now(), f = DEFAULT WHERE id = 1 AND a <= now()"
        )
        ((now,),) = session.execute("SELECT now()").fetchall()
        ((also,),) = session.execute("SELECT CURRENT_TIMESTAMP FROM w WHERE id = 1").fetchall()
        ((since,),) = session.execute("SELECT statement_timestamp() > now()").fetchall()
        session.execute("COMMIT")
        assert session.execute("SELECT statement_timestamp() = now()").fetchall() == [(True,)]
        in_block = session.execute("SELECT a FROM w WHERE id IN (1, 7, 8)").fetchall()
        assert {now, also, *(a for (a,) in in_block)} == {now}
        assert since and _same(session) == [True] * 8
        ((distinct, first, count),) = session.execute(
            "SELECT count(DISTINCT a), min(a), count(*) FROM w"
        ).fetchall()
        assert (distinct, count) == (4, 8)
        assert before < first < now < datetime.now(UTC) + timedelta(seconds=1)
        ((who,),) = session.execute("SELECT who = current_user FROM w WHERE id = 1").fetchall()
        assert who


def test_casts_between_times(both: Callable[..., tuple[Any, Any]]) -> None:
    ours, server = both(
        "CREATE TABLE c (tz timestamptz, ts timestamp, d date)",
        "INSERT INTO c VALUES ('2024-02-29 23:30:00.123456+02', '1999-12-31 23:59:59.5',"
        " '0044-03-15'), ('1969-12-31 23:59:59.999999+00', '0001-01-01', '9999-12-31'),"
        " (NULL, NULL, NULL)",
    )
    server.execute("SET timezone = 'UTC'")
    for query in (
        "SELECT tz::timestamp AS a, tz::date AS b, ts::timestamptz AS e, d::timestamptz AS f"
        " FROM c ORDER BY tz",
        "SELECT tz > ts::timestamptz AS a, tz::date > d AS b FROM c WHERE tz::date < '2024-03-01'"
        " ORDER BY tz",
    ):
        assert ours.execute(query).fetchall() == server.execute(query).fetchall()


def test_by_spark(lake: LakeNode, by_spark: None) -> None:
    lake.execute(
        "CREATE TABLE large (id int, a timestamptz, c timestamp)",
        "INSERT INTO large VALUES (1, now(), LOCALTIMESTAMP)",
        "UPDATE large SET a = now(), c = now() WHERE a <= CURRENT_TIMESTAMP",
    )
    ((a, c),) = lake.rows("SELECT a, c FROM large")
    assert a.astimezone(UTC).replace(tzinfo=None) == c


def test_what_is_refused(lake: LakeNode) -> None:
    lake.execute("CREATE TABLE r (t text)")
    times = ("CURRENT_TIMESTAMP(3)", "CURRENT_TIMESTAMP(0)", "clock_timestamp()")
    for value in ("pg_current_xact_id()::text", *times):
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            lake.execute(f"INSERT INTO r VALUES ({value})")
