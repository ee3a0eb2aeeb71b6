"""A role without rights tries everything, and so do sessions that had rights once.

Each statement of ``trials.txt`` is done on a stock server, too: what the node does, the server does
with the same rows; what it refuses has the server's SQLSTATE, or says that there is no such thing.
No answer and no message holds anything secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from backend.two_servers import PASSWORD, Node, Server, two_servers
from fix_postgres import Database
from penstock.protocol.scram import SALT_SIZE, ScramVerifier

pytestmark = pytest.mark.postgres

_TRIALS = [
    line
    for line in Path(__file__).with_name("trials.txt").read_text().splitlines()
    if line and not line.startswith("--")
]
_VERIFIER = str(ScramVerifier.of_password("v3rified", bytes(range(SALT_SIZE))))
_SECRETS = ("under the oak", "s3cret conninfo", "s3cret query", *_VERIFIER.split("$")[2].split(":"))
_NOT_THERE = {"0A000", "42601", "42883", "42P01", "42703", "3F000", "42704"}
"""Not supported; no such syntax, function, relation, column, schema, parameter: nothing is read."""
_SETUP = [
    "CREATE TABLE shown (id int PRIMARY KEY, note text)",
    "CREATE PUBLICATION all_tables FOR ALL TABLES",
    "CREATE SUBSCRIPTION kept CONNECTION 'host=nowhere password=''s3cret conninfo'''"
    " PUBLICATION p WITH (connect = false, slot_name = NONE)",
    f"CREATE ROLE t_plain LOGIN PASSWORD '{PASSWORD}'",
    f"CREATE ROLE t_once LOGIN SUPERUSER REPLICATION PASSWORD '{PASSWORD}'",
    f"CREATE ROLE t_gone LOGIN SUPERUSER REPLICATION PASSWORD '{PASSWORD}'",
    f"CREATE ROLE t_root LOGIN SUPERUSER PASSWORD '{PASSWORD}'",
    f"CREATE ROLE t_victim LOGIN PASSWORD '{_VERIFIER}'",
    "GRANT SELECT ON shown TO PUBLIC",
]
_TAKEN = {
    "t_plain": "SELECT 1",
    "t_once": "ALTER ROLE t_once NOSUPERUSER NOREPLICATION",
    "t_gone": "DROP ROLE t_gone",
}
_STATE = (
    "SELECT relname FROM pg_class WHERE relname IN ('secret', 'shown') OR relname LIKE 't\\_%'"
    " ORDER BY 1",
    "SELECT rolname, rolsuper, rolcanlogin, rolreplication FROM pg_roles"
    " WHERE rolname LIKE 't\\_%' ORDER BY 1",
    "SELECT pubname, pubinsert, pubdelete FROM pg_publication",
    "SELECT subname, subenabled FROM pg_subscription",
    "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()",
    "SELECT nspname FROM pg_namespace WHERE nspname LIKE 't\\_%' OR nspname = 'public'",
)


@pytest.fixture
def both(tmp_path: Path, database: Database) -> Iterator[list[Server]]:
    with two_servers(tmp_path, database, _SETUP) as servers:
        try:
            for server in servers:
                _hide(server)
            yield servers
        finally:
            database.execute("DROP SUBSCRIPTION kept")


def _hide(server: Server) -> None:
    """A row that nobody is to see. A node without Spark gets it from another writer."""
    if isinstance(server, Node):
        uri = server.lake.warehouse.table_uri("public", "secret")
        write_deltalake(uri, pa.table({"id": [1], "note": ["under the oak"]}))
        server.lake.sequencer.step(discover=True)
    else:
        server.execute("CREATE TABLE secret (id bigint, note text)")
        server.execute("INSERT INTO secret VALUES (1, 'under the oak')")
    server.execute("SELECT pg_create_logical_replication_slot('kept_slot', 'pgoutput')")


def tried(session: Any, statement: str) -> tuple[str | None, str, object]:
    """SQLSTATE, every word of the answer, the rows."""
    try:
        if statement.startswith("COPY") and "STDOUT" in statement:
            with session.cursor() as cursor, cursor.copy(statement) as copy:
                rows: Any = [bytes(row) for row in copy]
        else:
            cursor = session.execute(statement)
            rows = cursor.fetchall() if cursor.description else None
    except psycopg.Error as error:
        assert not session.closed, (statement, error)
        diag = error.diag
        words = (diag.message_primary, diag.message_detail, diag.message_hint, diag.context)
        return diag.sqlstate, " ".join(word or "" for word in words), None
    return None, repr(rows), rows


@pytest.mark.parametrize("user", list(_TAKEN))
def test_nothing_is_done_or_seen_without_a_right_to_it(both: list[Server], user: str) -> None:
    seen = []
    with ExitStack() as stack:
        for server in both:
            root = stack.enter_context(server.connect("t_root"))
            root.execute("SELECT 's3cret query'")
            session = stack.enter_context(server.connect(user))
            root_pid = str(root.info.backend_pid)
            server.execute(_TAKEN[user])
            before = [stack.enter_context(server.connect()).execute(q).fetchall() for q in _STATE]
            answers = {}
            for trial in _TRIALS:
                session.execute("ROLLBACK")
                answers[trial] = tried(session, trial.replace("{root}", root_pid))
            with server.connect() as owner:
                after = [owner.execute(q).fetchall() for q in _STATE]
            if isinstance(server, Node):
                assert after == before
                assert root.execute("SELECT 1").fetchone() == (1,), "it was not ended"
            seen.append(answers)
    theirs, ours = seen
    wrong = [
        f"{trial}\n  {theirs[trial]}\n  {ours[trial]}"
        for trial in _TRIALS
        if not _right(theirs[trial], ours[trial])
    ]
    assert not wrong, "\n".join(wrong)
    told = [trial for trial in _TRIALS for s in _SECRETS if s in ours[trial][1]]
    assert not told, told
    assert len(_TRIALS) >= 150


def _right(theirs: tuple[str | None, str, object], ours: tuple[str | None, str, object]) -> bool:
    if ours[0] is None:
        return theirs[0] is None and theirs[2] == ours[2]
    return ours[0] == theirs[0] or ours[0] in _NOT_THERE


def test_what_is_not_for_all_is_what_a_server_keeps_from_all(both: list[Server]) -> None:
    stock, node = both
    catalogs = (
        "SELECT relname FROM pg_class WHERE relnamespace = 'pg_catalog'::regnamespace"
        " AND relkind IN ('r', 'v') ORDER BY 1"
    )
    with stock.connect("t_plain") as theirs, node.connect("t_plain") as ours:
        names = [name for (name,) in theirs.execute(catalogs).fetchall()]
        wrong = []
        for name in names:
            query = f"SELECT count(*) FROM {name}"
            expected, found = tried(theirs, query), tried(ours, query)
            if found[0] not in (expected[0], *_NOT_THERE) or (
                found[0] == "42501" and found[1] != expected[1]
            ):
                wrong.append((name, expected, found))
    assert len(names) > 100
    assert not wrong, wrong
