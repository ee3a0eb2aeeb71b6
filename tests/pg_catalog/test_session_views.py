"""Sessions are shown, cancelled and ended as on a server, by whom a server lets do it."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from psycopg import pq

from backend.two_servers import PASSWORD, Node, Server, outcome, two_servers
from fix_postgres import Database
from penstock.embedded import wait_until
from penstock.stats.backend_status import shown_query

pytestmark = pytest.mark.postgres

_SETUP = [
    f"CREATE ROLE t_boss LOGIN SUPERUSER REPLICATION PASSWORD '{PASSWORD}'",
    f"CREATE ROLE t_reader LOGIN PASSWORD '{PASSWORD}'",
    f"CREATE ROLE t_other LOGIN PASSWORD '{PASSWORD}'",
    f"CREATE ROLE t_receiver LOGIN REPLICATION PASSWORD '{PASSWORD}'",
    "CREATE PUBLICATION everything FOR ALL TABLES",
]
_COLUMNS = (
    "usename, datname = current_database(), application_name, client_addr, client_hostname,"
    " client_port > 0, backend_start <= now(), xact_start IS NULL, query_start >= backend_start,"
    " state_change >= backend_start, state, query, backend_type"
)
_ENDS = (("pg_cancel_backend", "57014"), ("pg_terminate_backend", "57P01"))
_NO_SUCH_PID = 999_999_999
_START = b"START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1', publication_names 'everything')"


@pytest.fixture
def both(tmp_path: Path, database: Database) -> Iterator[list[Server]]:
    with two_servers(tmp_path, database, _SETUP) as servers:
        yield servers


def pid(session: Any) -> int:
    return int(session.info.backend_pid)


def shown(session: Any, columns: str = _COLUMNS, where: str = "usename LIKE 't!_%'") -> Any:
    where = where.replace("!", "\\")
    query = f"SELECT {columns} FROM pg_stat_activity WHERE {where} ORDER BY application_name"
    return session.execute(query).fetchall()


def stream(server: Server, user: str = "t_receiver") -> Any:
    """A walsender that streams."""
    session = server.connect(user, replication="database", application_name="stream")
    session.execute("CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput")
    session.pgconn.send_query(_START)
    assert result(session).status == pq.ExecStatus.COPY_BOTH
    return session


def result(session: Any) -> Any:
    """The next result, waited for outside libpq: a wait inside keeps the node's threads still."""
    while session.pgconn.is_busy():
        select.select([session.pgconn.socket], [], [], 20)
        session.pgconn.consume_input()
    return session.pgconn.get_result()


def last_words(session: Any) -> set[bytes]:
    """Severity, SQLSTATE and message of the error before the connection ends."""
    data = b""
    while select.select([session.pgconn.socket], [], [], 20)[0]:
        more = os.read(session.pgconn.socket, 1 << 16)
        if not more:
            break
        data += more
    fields = data[data.index(b"SFATAL") :].split(b"\0\0")[0].split(b"\0")
    return {field for field in fields if field[:1] in b"SCM"}


def end_of(session: Any) -> bytes:
    """What ends a stream."""
    raw = session.pgconn
    while (got := raw.get_copy_data(1))[0] >= 0:
        if got[0] == 0:
            select.select([raw.socket], [], [], 20)
            raw.consume_input()
    return bytes(result(session).error_message)


def _waiting(session: Any) -> list[Any]:
    """What the sessions a, b and c wait for, once each of them does: the server says that they are
    idle a moment before."""
    deadline = time.monotonic() + 20
    while True:
        waits = shown(session, "application_name, wait_event", "state LIKE 'idle%'")
        found = [row for row in waits if row[0] in "abc"]
        if all(event for _, event in found) or time.monotonic() > deadline:
            return found


def test_each_sees_its_own_and_superusers_see_all(both: list[Server]) -> None:
    seen = []
    for server in both:
        with ExitStack() as stack:
            boss, other = (
                stack.enter_context(server.connect(user, application_name=f"of {user}"))
                for user in ("t_boss", "t_other")
            )
            reader = stack.enter_context(server.connect("t_reader", application_name="a"))
            working = stack.enter_context(server.connect("t_reader", application_name="b"))
            failed = stack.enter_context(server.connect("t_other", application_name="c"))
            sender = stack.enter_context(closing(stream(server)))
            other.execute("SELECT 'last'")
            working.execute("BEGIN")
            working.execute("SELECT 'in a transaction'")
            failed.execute("BEGIN")
            assert outcome(failed, "SELECT nothing")[0] == "42703"
            found = [shown(session) for session in (boss, reader, other)]
            seen.append([*found, _waiting(boss)])
            assert shown(reader, "pid", f"pid = {pid(sender)}") == [(pid(sender),)]
    for ours, theirs in zip(seen[1], seen[0], strict=True):
        for mine, stock in zip(ours, theirs, strict=True):
            assert mine == stock
    assert len(seen[0][0]) == 6


def test_the_name_of_an_application_may_change(both: list[Server]) -> None:
    seen = []
    for server in both:
        with server.connect("t_reader", application_name="first") as session:
            found = []
            for statement in (
                "SET application_name = 'second'",
                "SELECT set_config('application_name', 'third', false)",
                "RESET application_name",
                "SET application_name = 'fourth'",
                "DISCARD ALL",
            ):
                session.execute(statement)
                found += shown(session, "application_name", "pid = pg_backend_pid()")
            session.execute("SELECT %s", ("prepared",), prepare=False)
            raw = session.pgconn
            raw.exec_params(b"SELECT $1::text", [b"x"])
            with server.connect("t_boss") as boss:
                found += shown(boss, "state, query", f"pid = {pid(session)}")
            seen.append(found)
    assert seen[1] == seen[0]


def notices(session: Any) -> list[tuple[str | None, ...]]:
    found: list[tuple[str | None, ...]] = []
    session.add_notice_handler(lambda d: found.append((d.severity, d.sqlstate, d.message_primary)))
    return found


@pytest.mark.parametrize("version", [14, 15, 16, 18])
@pytest.mark.parametrize("function", ["pg_cancel_backend", "pg_terminate_backend"])
def test_who_may_end_what(
    tmp_path: Path, database_on: Callable[..., Database], function: str, version: int
) -> None:
    with two_servers(tmp_path, database_on(version), _SETUP, version) as servers:
        theirs, ours = (told_about(server, function) for server in servers)
    assert ours == theirs


def told_about(server: Server, function: str) -> list[object]:
    """By a superuser, another role, its own, nobody, and a role that is gone."""
    with ExitStack() as stack:
        boss, reader, other, mine = (
            stack.enter_context(server.connect(user))
            for user in ("t_boss", "t_reader", "t_other", "t_reader")
        )
        told = notices(reader)
        found: list[object] = [
            outcome(reader, f"SELECT {function}({pid(boss)})"),
            outcome(reader, f"SELECT {function}({pid(other)})"),
            reader.execute(f"SELECT {function}({_NO_SUCH_PID})").fetchone(),
            reader.execute(f"SELECT {function}(NULL)").fetchone(),
            reader.execute(f"SELECT {function}({pid(mine)})").fetchone(),
            list(told),
        ]
        server.execute("DROP ROLE t_other")
        found += [
            boss.execute(f"SELECT {function}({pid(other)})").fetchone(),
            outcome(reader, f"SELECT {function}(pg_backend_pid())")[:2],
            boss.execute("SELECT 1").fetchone(),
        ]
        return found


def test_a_session_that_is_ended_is_told_so(both: list[Server]) -> None:
    seen = []
    for server in both:
        with server.connect("t_boss") as boss:
            with closing(server.connect("t_reader")) as idle:
                ended = f"SELECT pg_terminate_backend({pid(idle)}, 20000)"
                found = [boss.execute(ended).fetchone()]
                assert shown(boss, "pid", f"pid = {pid(idle)}") == []
                found.append(last_words(idle))
            found.append(outcome(boss, f"SELECT pg_terminate_backend({pid(boss)}, -1)"))
            seen.append(found)
    assert seen[1] == seen[0]


@pytest.mark.parametrize("function", ["pg_cancel_backend", "pg_terminate_backend"])
def test_a_stream_is_ended(both: list[Server], function: str) -> None:
    seen = []
    for server in both:
        with server.connect("t_boss") as boss, closing(stream(server)) as sender:
            assert boss.execute(f"SELECT {function}({pid(sender)})").fetchone() == (True,)
            found: list[object] = []
            if function == "pg_terminate_backend":
                found.append(last_words(sender))
                wait_until(lambda: not shown(boss, "pid", f"pid = {pid(sender)}"), "its end")
                wait_until(
                    lambda: not boss.execute("SELECT pid FROM pg_stat_replication").fetchall(),
                    "the end of the stream",
                )
            else:
                found.append(end_of(sender))
                assert result(sender) is None
                found.append(sender.execute("SELECT 1").fetchone())
            seen.append(found)
    assert seen[1] == seen[0]


def test_a_query_of_the_catalogs_is_cancelled(both: list[Server]) -> None:
    long = "SELECT count(*) FROM pg_type a, pg_type b, pg_type c, pg_type d, pg_type e"
    for server in both:
        for function, sqlstate in _ENDS:
            with server.connect("t_boss") as boss, closing(server.connect("t_reader")) as session:
                found: list[object] = []
                thread = threading.Thread(
                    target=lambda s=session, f=found: f.append(outcome(s, long)[0])
                )
                thread.start()
                wait_until(
                    lambda: (
                        shown(boss, "state, query", f"pid = {pid(session)}") == [("active", long)]
                    ),
                    "the query",
                )
                assert boss.execute(f"SELECT {function}({pid(session)})").fetchone() == (True,)
                thread.join(30)
                assert found == [sqlstate]


def test_one_who_does_not_read_is_ended(both: list[Server]) -> None:
    """Its rows do not fit into what is on the way, and it takes none."""
    rows = (
        b"SELECT repeat('x', 10000) FROM pg_type a, pg_type b LIMIT 5000"  # what a query may make
    )
    for server in both:
        if not isinstance(server, Node):
            continue
        with server.connect("t_boss") as boss, closing(server.connect("t_reader")) as session:
            session.pgconn.send_query(rows)
            session.pgconn.flush()
            state = f"pid = {pid(session)} AND state = 'active'"
            wait_until(lambda: bool(shown(boss, "pid", state)), "the query")  # noqa: B023
            ended = f"SELECT pg_terminate_backend({pid(session)}, 20000)"
            assert boss.execute(ended).fetchone() == (True,)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER ROLE t_reader PASSWORD 'tops3cret'",
        "SELECT 1; create role x PassWord $$tops3cret$$",
        "CREATE USER x PASWORD 'tops3cret'",
        "ALTER ROLE x PASSWORD tops3cret",
        "CREATE SUBSCRIPTION s CONNECTION 'host=h password=tops3cret' PUBLICATION p",
        "ALTER SUBSCRIPTION s CONNECTION tops3cret",
        "CREATE SUBSCRIPTION s 'postgresql://u:tops3cret@h/d'",
    ],
)
def test_a_password_is_not_shown(statement: str) -> None:
    assert "tops3cret" not in shown_query(statement)
    assert shown_query(statement).endswith("...")


def test_a_long_query_is_cut_at_a_character() -> None:
    assert shown_query("é" * 600) == "é" * 511
    assert shown_query("SELECT * FROM passengers WHERE a = 'x'").endswith("'x'")


def cancelled(server: Server, statement: str, waits: Callable[[], bool]) -> object:
    """What a statement comes to that is cancelled while it ``waits`` for somebody."""
    with server.connect("t_boss") as boss, closing(server.connect("t_boss")) as session:
        found: list[object] = []
        thread = threading.Thread(target=lambda: found.append(outcome(session, statement)))
        thread.start()
        wait_until(waits, "the statement's wait")
        assert boss.execute(f"SELECT pg_cancel_backend({pid(session)})").fetchone() == (True,)
        thread.join(30)
        assert session.execute("SELECT count(*) FROM pg_subscription").fetchone() == (0,)
        return found


def test_a_command_is_cancelled_that_waits_for_a_publisher(both: list[Server]) -> None:
    """One that takes the connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        seen = []
        for server in both:
            taken: list[socket.socket] = []
            thread = threading.Thread(target=lambda t=taken: t.append(silent.accept()[0]))
            thread.start()
            conninfo = f"host=127.0.0.1 port={silent.getsockname()[1]} password=x"
            create = f"CREATE SUBSCRIPTION s CONNECTION '{conninfo}' PUBLICATION p"
            seen.append(cancelled(server, create, lambda t=taken: bool(t)))  # type: ignore[misc]
            thread.join(20)
            taken[0].close()
    assert seen[1] == seen[0] == [("57014", "canceling statement due to user request", None)]


def test_a_command_is_cancelled_that_waits_for_a_slot(
    both: list[Server], database: Database
) -> None:
    """The publisher waits for a transaction before it gives one."""
    node = both[1]
    with database.connect(autocommit=False) as writer:
        writer.execute("CREATE TABLE t_new (id int)")
        create = (
            f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo}'"
            " PUBLICATION everything WITH (slot_name = t_waits)"
        )
        waits = (
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
            " AND query LIKE 'CREATE_REPLICATION_SLOT%%' AND wait_event_type = 'Lock'"
        )
        found = cancelled(node, create, lambda: database.value(waits) == 1)
        assert found == [("57014", "canceling statement due to user request", None)]
        writer.rollback()
    slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = 't_waits'"
    wait_until(lambda: database.value(slots) == 0, "the end of the slot")


def test_a_database_has_a_row_of_statistics(both: list[Server]) -> None:
    query = (
        "SELECT datid = (SELECT oid FROM pg_database WHERE datname = current_database()),"
        " numbackends > 0, deadlocks, conflicts FROM pg_stat_database"
        " WHERE datname = current_database()"
    )
    for server in both:
        with closing(server.connect("t_boss")) as session:
            assert session.execute(query).fetchall() == [(True, True, 0, 0)]
