"""A cancel request ends what a session waits for: queries, changes and copies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from penstock.backend.turns import Turn
from penstock.pipeline.evaluate import Evaluation
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_ENDLESS = "generate_series(1, 1000000000000) AS s(n)"


@pytest.fixture(scope="module")
def node(lake: LakeNode) -> LakeNode:
    lake.execute(
        "CREATE TABLE cancelled (id int PRIMARY KEY, note text)",
        "INSERT INTO cancelled SELECT n, repeat('x', 90) FROM generate_series(1, 400000) AS s(n)",
    )
    return lake


@pytest.mark.parametrize(
    "statement",
    [
        f"SELECT count(*) FROM cancelled, {_ENDLESS}",
        f"INSERT INTO cancelled SELECT n, 'new' FROM {_ENDLESS} WHERE n % 1000000007 = 5",
        f"UPDATE cancelled SET note = (SELECT max(n::text) FROM {_ENDLESS} WHERE n > id)",
        f"DELETE FROM cancelled WHERE id IN (SELECT n FROM {_ENDLESS} WHERE n > 5)",
    ],
)
def test_a_statement_is_cancelled(node: LakeNode, statement: str) -> None:
    count = node.rows("SELECT count(*) FROM cancelled")
    with node.connect() as connection:
        errors: list[psycopg.Error] = []

        def run() -> None:
            try:
                connection.execute(statement)
            except psycopg.Error as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        deadline = time.monotonic() + 60
        while thread.is_alive():  # a request before the statement has begun cancels nothing
            assert time.monotonic() < deadline, "the statement is not cancelled"
            connection.cancel_safe()
            thread.join(0.5)
        (error,) = errors
        assert error.sqlstate == "57014", error
        assert error.diag.message_primary == "canceling statement due to user request"
        # The session goes on, and nothing was written.
        assert connection.execute("SELECT count(*) FROM cancelled").fetchall() == count


def test_a_copy_is_cancelled(node: LakeNode) -> None:
    with node.connect() as connection, connection.cursor() as cursor:
        copy = cursor.copy("COPY cancelled TO STDOUT")
        with pytest.raises(psycopg.errors.QueryCanceled), copy as rows:
            rows.read()
            connection.cancel_safe()
            while rows.read():
                pass
        assert connection.execute("SELECT count(*) FROM cancelled").fetchone() == (400000,)


def test_what_is_computed_of_few_rows_is_cancelled(
    lake: LakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job of Spark's has it; the request comes once it has begun."""
    lake.execute(
        "CREATE TABLE few (v bigint)",
        "INSERT INTO few VALUES (1)",
        "CREATE TABLE many (v int)",
        "INSERT INTO many SELECT n FROM generate_series(1, 100000) AS s(n)",
    )
    values = Evaluation.values
    with lake.connect() as connection:

        def begun(*arguments: Any) -> Any:
            threading.Timer(1, connection.cancel_safe).start()
            return values(*arguments)

        monkeypatch.setattr(Evaluation, "values", begun)
        began = time.monotonic()
        with pytest.raises(psycopg.errors.QueryCanceled):
            connection.execute(
                "UPDATE few SET v = (SELECT count(*) FROM many a, many b WHERE a.v + b.v > few.v)"
            )
        assert time.monotonic() - began < 20
    assert lake.rows("SELECT v FROM few") == [(1,)]


_PAIRS = "SELECT max(a.note || b.id) FROM cancelled a, cancelled b WHERE a.id <= 30"


def test_a_query_of_tables_begins_again(node: LakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the query of a guest that has to leave does; it has sent nothing yet."""
    attempts: list[float] = []
    repeatable = Turn.repeatable

    @contextmanager
    def short(turn: Turn, leave: Callable[[], None]) -> Iterator[None]:
        attempts.append(time.monotonic())
        if len(attempts) == 1:
            threading.Timer(0.3, leave).start()
        with repeatable(turn, leave):
            yield

    ((expected,),) = node.rows(_PAIRS)
    monkeypatch.setattr(Turn, "repeatable", short)
    with node.connect() as connection:
        assert connection.execute(_PAIRS).fetchall() == [(expected,)]
        assert len(attempts) == 2
        assert connection.execute("SELECT count(*) FROM cancelled").fetchone() == (400000,)
