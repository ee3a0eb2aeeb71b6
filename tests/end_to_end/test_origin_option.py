"""Option origin: a server that subscribes itself, and what of it a node takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_MESSAGE = (
    'subscription "s" requested copy_data with origin = NONE but might copy data that had a '
    "different origin"
)


@pytest.fixture
def cascade(database_on: Callable[..., Database]) -> Iterator[Callable[[int], Database]]:
    """A server of a version that subscribes to ``t``, which its own users change, too."""
    first = database_on(14)
    first.execute(
        "CREATE TABLE t (id integer PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'first');"
        "CREATE PUBLICATION p FOR TABLE t"
    )
    made: list[Database] = []

    def make(version: int) -> Database:
        second = database_on(version)
        second.execute(
            "CREATE TABLE t (id integer PRIMARY KEY, v text);"
            "CREATE TABLE own (id integer PRIMARY KEY);"
            "CREATE PUBLICATION p FOR TABLE t; CREATE PUBLICATION q FOR TABLE own"
        )
        second.execute(f"CREATE SUBSCRIPTION up CONNECTION '{first.conninfo}' PUBLICATION p")
        made.append(second)
        _flows(first, second, "first")
        return second

    make.first = first  # type: ignore[attr-defined]
    yield make
    for second in made:
        second.execute("DROP SUBSCRIPTION up")


def _flows(first: Database, second: Database, value: str) -> None:
    query = f"SELECT count(*) FROM t WHERE v = '{value}'"
    count = first.value(query)
    wait_until(lambda: second.value(query) == count, "the second server's subscription")


def _rows(node: LocalNode) -> list[Any]:
    return sorted(map(tuple, node.node.read("t", subscription="s").collect()))


def _change_both(cascade: Any, second: Database, more: int = 0) -> None:
    cascade.first.execute(f"INSERT INTO t VALUES ({more + 2}, 'there{more}')")
    _flows(cascade.first, second, f"there{more}")
    second.execute(f"INSERT INTO t VALUES ({more + 3}, 'here{more}')")


@pytest.mark.parametrize("backlog", [in_make_faults("-1"), "0"])
@pytest.mark.parametrize("version", [in_make_faults(16), 18])
def test_own_changes_or_all(
    version: int, backlog: str, cascade: Any, tmp_path: Path, spark: Any
) -> None:
    """By the stream, and by the slot function that fetches a backlog."""
    second = cascade(version)
    parameters = {"backlog_copy_threshold": backlog}
    with LocalNode(tmp_path / "node", spark, parameters) as node:
        node.subscribe("s", second, "p", "copy_data = false, origin = none")
        node.caught_up("s", second)
        node.node.sql("ALTER SUBSCRIPTION s DISABLE")
        node.no_worker()
        _change_both(cascade, second)
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        node.caught_up("s", second)
        assert _rows(node) == [(3, "here0")]
        node.node.sql("ALTER SUBSCRIPTION s SET (origin = 'Any')")
        assert node.node.sql("SELECT suborigin FROM pg_subscription").rows == (("Any",),)
        node.wait_for("s", "a stream", lambda status: status.state == "streaming")
        _change_both(cascade, second, 10)
        node.caught_up("s", second)
        assert _rows(node)[-2:] == [(12, "there10"), (13, "here10")]
        node.node.sql("DROP SUBSCRIPTION s")


def test_an_older_publisher_sends_all(cascade: Any, tmp_path: Path, spark: Any) -> None:
    """PostgreSQL's subscriber does not send it the option."""
    second = cascade(15)
    with LocalNode(tmp_path / "node", spark) as node:
        node.subscribe("s", second, "p", "copy_data = false, origin = none")
        _change_both(cascade, second)
        node.caught_up("s", second)
        assert _rows(node) == [(2, "there0"), (3, "here0")]
        node.node.sql("DROP SUBSCRIPTION s")


def _notices(connection: psycopg.Connection[Any], statement: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    connection.add_notice_handler(
        lambda d: found.append(
            (d.severity, d.sqlstate, d.message_primary, d.message_detail, d.message_hint)
        )
    )
    connection.execute(statement)
    return [notice for notice in found if notice[0] == "WARNING"]


_SUBSCRIBE = "CREATE SUBSCRIPTION s CONNECTION '{}' PUBLICATION {} WITH ({})"


@pytest.mark.parametrize(
    ("publication", "options", "warned"),
    [
        ("p", "origin = none", True),
        ("p", "origin = 'None'", True),
        ("p, q", "origin = NONE", True),
        ("q", "origin = none", False),
        ("p", "origin = any", False),
        ("p", "origin = none, copy_data = false", False),
    ],
)
@pytest.mark.parametrize("version", [in_make_faults(15), 18])
def test_the_warning_is_postgresqls(
    version: int,
    publication: str,
    options: str,
    warned: bool,
    cascade: Any,
    database_on: Callable[..., Database],
    tmp_path: Path,
) -> None:
    """CREATE, said to PostgreSQL 17 and to a node."""
    second, third = cascade(version), database_on(17)
    third.execute(
        "CREATE TABLE t (id integer PRIMARY KEY, v text); CREATE TABLE own (id integer PRIMARY KEY)"
    )
    options += ", slot_name = theirs"
    with third.connect() as session:
        theirs = _notices(session, _SUBSCRIBE.format(second.conninfo, publication, options))
        session.execute("DROP SUBSCRIPTION s")
    with LocalNode(tmp_path / "node", None) as node:
        ours = node.node.sql(_SUBSCRIBE.format(second.conninfo, publication, options)).notices
        node.node.sql("DROP SUBSCRIPTION s")
    found = [
        (n.severity, n.sqlstate, n.message, n.detail, n.hint)
        for n in ours
        if n.severity == "WARNING"
    ]
    assert found == theirs
    assert [message for _, _, message, _, _ in found] == [_MESSAGE] * warned


def test_refresh_and_new_publications_warn_of_new_tables(cascade: Any, tmp_path: Path) -> None:
    second = cascade(18)
    with LocalNode(tmp_path / "node", None) as node:

        def warnings(statement: str) -> list[str]:
            done = node.node.sql(statement)
            return [n.message for n in done.notices if n.severity == "WARNING"]

        node.subscribe("s", second, "q", "origin = none, enabled = false")
        node.node.sql("ALTER SUBSCRIPTION s ENABLE")
        assert warnings("ALTER SUBSCRIPTION s REFRESH PUBLICATION") == []
        quiet = "ALTER SUBSCRIPTION s ADD PUBLICATION p WITH (copy_data = false)"
        assert warnings(quiet) == []
        assert warnings("ALTER SUBSCRIPTION s SET PUBLICATION q") == []
        assert warnings("ALTER SUBSCRIPTION s SET (origin = any)") == []
        assert warnings("ALTER SUBSCRIPTION s ADD PUBLICATION p") == []
        assert warnings("ALTER SUBSCRIPTION s SET PUBLICATION q") == []
        assert warnings("ALTER SUBSCRIPTION s SET (origin = none)") == []
        assert warnings("ALTER SUBSCRIPTION s ADD PUBLICATION p") == [_MESSAGE]
        assert warnings("ALTER SUBSCRIPTION s REFRESH PUBLICATION") == []  # it is there already
        node.node.sql("DROP SUBSCRIPTION s")
