"""What ``penstock verify`` cannot do it says, and whatever becomes of it, the node goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from typer.testing import CliRunner

from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults, part_of_make_faults
from fix_postgres import Database
from penstock.catalog.pg_subscription import CutRequest
from penstock.cli.main import app
from penstock.embedded import wait_until
from penstock.errors import NotInPrerequisiteState, PenstockError, UndefinedObject
from penstock.lsn import Lsn
from penstock.node.verify import VerifyOptions, VerifyProgress
from penstock.subscription import cut_requests

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

LocalNodes = Callable[..., LocalNode]


def subscribed(node: LocalNode, database: Database, rows: int = 1000) -> None:
    database.execute(
        "CREATE TABLE t (a integer PRIMARY KEY, b text); CREATE TABLE u (a integer PRIMARY KEY);"
        f"INSERT INTO t SELECT i, 'b' FROM generate_series(1, {rows}) i;"
        "CREATE PUBLICATION p FOR TABLE t, u"
    )
    node.subscribe("s", database, "p")
    node.caught_up("s", database)


def position(database: Database) -> Lsn:
    return Lsn(int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'")))


def ask(node: LocalNode, lsn: Lsn) -> CutRequest:
    """What a ``penstock verify`` leaves that is killed."""
    (subscription,) = node.node._catalog.subscriptions()
    with node.node._catalog.write() as transaction:
        return transaction.cut_requests.ask(subscription.oid, lsn)


def requests(node: LocalNode) -> tuple[CutRequest, ...]:
    (subscription,) = node.node._catalog.subscriptions()
    return node.node._catalog.cut_requests(subscription.oid)


def error_of(node: LocalNode, *tables: str, **options: Any) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        node.node.verify(tables, options=VerifyOptions(**options))
    assert requests(node) == ()
    return caught.value


def test_who_cannot_be_compared_hears_why(local_node: LocalNodes, database: Database) -> None:
    node = local_node()
    subscribed(node, database)
    assert error_of(node, "nothing").report() == (
        'ERROR:  table "public.nothing" is not part of subscription "s"'
    )
    with pytest.raises(UndefinedObject, match='subscription "x" does not exist'):
        node.node.verify(subscription="x")
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    disabled = error_of(node)
    assert disabled.message == 'subscription "s" is disabled'
    assert disabled.hint == "ALTER SUBSCRIPTION s ENABLE"
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    node.node.stop()
    stopped = error_of(node)
    assert (stopped.message, stopped.sqlstate) == ("the node does not run", "55000")
    assert stopped.hint is not None
    assert "penstock start" in stopped.hint


def test_a_table_that_cannot_be_compared_costs_the_others_nothing(
    local_node: LocalNodes, database: Database
) -> None:
    node = local_node()
    database.execute(
        "CREATE ROLE reader LOGIN REPLICATION; CREATE TABLE taken (a integer PRIMARY KEY);"
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader"
    )
    try:
        database.execute("CREATE TABLE gone (a integer PRIMARY KEY)")
        database.execute("GRANT SELECT ON gone TO reader")
        conninfo = make_conninfo(database.conninfo, user="reader")
        database.execute("CREATE PUBLICATION q FOR TABLE taken, gone")
        subscribed_as(node, database, conninfo)
        database.execute("REVOKE SELECT ON taken FROM reader; ALTER PUBLICATION q DROP TABLE gone")
        found = node.node.verify(subscription="s")
        reasons = {table.name: table.reason for table in found.tables}
        assert reasons["public.gone"] == "the publications do not have it (any more)"
        assert "permission denied" in (reasons["public.taken"] or "")
        assert reasons["public.t"] is None
        assert not found.equal
        assert [t.equal for t in found.tables if t.name == "public.t"] == [True]
    finally:
        node.node.sql("DROP SUBSCRIPTION s")
        database.execute("DROP OWNED BY reader; DROP ROLE reader")


def subscribed_as(node: LocalNode, database: Database, conninfo: str) -> None:
    database.execute(
        "CREATE TABLE t (a integer PRIMARY KEY); GRANT SELECT ON t TO reader;"
        "INSERT INTO t SELECT generate_series(1, 100); CREATE PUBLICATION p FOR TABLE t"
    )
    node.node.sql(f"CREATE SUBSCRIPTION s CONNECTION '{conninfo}' PUBLICATION p, q")
    node.caught_up("s", database)


def test_while_a_request_stands_nothing_beyond_it_is_applied(
    local_node: LocalNodes, database: Database
) -> None:
    node = local_node()
    subscribed(node, database)
    request = ask(node, position(database))
    database.execute("INSERT INTO t VALUES (5000, 'beyond')")
    beyond = position(database)
    node.wait_for("s", "a cut at the request", lambda status: status.cut_lsn == request.lsn)
    # a new session of the worker, and a node that is started again, know of it too
    database.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 's'"
    )
    node.wait_for("s", "the stream", lambda s: (s.received_lsn or 0) >= beyond, fails=False)
    node.node.stop()
    node.node.start()
    node.wait_for("s", "the stream", lambda s: (s.received_lsn or 0) >= beyond, fails=False)
    assert node.cut().lsn == request.lsn
    assert len(node.rows("t")) == 1000
    node.node._catalog.forget_cut_request(request.id)
    node.caught_up("s", database)
    assert len(node.rows("t")) == 1001


@part_of_make_faults
def test_a_command_that_was_killed_holds_the_node_for_a_while_only(
    local_node: LocalNodes,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(cut_requests, "LONGEST_HOLD_S", 1.0)
    node = local_node()
    subscribed(node, database)
    with database.connect(autocommit=False) as writing:
        writing.execute("INSERT INTO u VALUES (1)")  # the slot waits for it
        command = [sys.executable, "-m", "penstock.cli.main", "verify", "-D", str(node.folder)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE '%verify%'"
            wait_until(lambda: bool(requests(node)) and database.value(slots), "the slot", 60)
            process.kill()
        database.execute("INSERT INTO t VALUES (5000, 'beyond')")
        node.caught_up("s", database)
    assert requests(node) == ()
    assert "is held no longer: nobody has come for it" in caplog.text
    assert len(node.rows("t")) == 1001


@pytest.mark.parametrize("state", ["sqlite", in_make_faults("postgresql")])
def test_several_at_the_same_time(
    local_node: LocalNodes, database_on: Callable[..., Database], state: str
) -> None:
    database, store = database_on(18), database_on(18)
    given = conninfo_to_dict(store.conninfo)
    url = f"postgresql://{given['user']}@{given['host']}:{given['port']}/{given['dbname']}"
    node = local_node(**({"state": url} if state == "postgresql" else {}))
    subscribed(node, database)
    stop = threading.Event()
    writer = threading.Thread(target=_insert_until, args=(database, stop))
    writer.start()
    try:
        with ThreadPoolExecutor(3) as pool:
            found = [pool.submit(node.node.verify) for _ in range(3)]
            verified = [one.result() for one in found]
    finally:
        stop.set()
        writer.join()
    assert all(one.equal for one in verified), verified
    assert requests(node) == ()


def test_a_dropped_subscription_leaves_no_request(
    local_node: LocalNodes, database: Database
) -> None:
    node = local_node()
    subscribed(node, database)
    request = ask(node, Lsn(0))
    node.node.sql("DROP SUBSCRIPTION s")
    assert node.node._catalog.cut_requests(request.subid) == ()


def test_a_worker_that_has_gone_on_is_noticed(local_node: LocalNodes, database: Database) -> None:
    node = local_node()
    subscribed(node, database)

    def forget(now: VerifyProgress) -> None:
        if now.doing.startswith("waiting for a cut"):
            for request in requests(node):
                node.node._catalog.forget_cut_request(request.id)
            database.execute("INSERT INTO t VALUES (5000, 'beyond')")
            node.caught_up("s", database)

    error = error_of(node, progress=forget)
    assert isinstance(error, NotInPrerequisiteState)
    assert "has no cut at" in error.message
    assert error.hint == "Run penstock verify again."
    assert node.node.verify().equal


def test_a_publisher_that_makes_no_slot_is_not_waited_for_for_ever(
    local_node: LocalNodes, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.node.verify._SLOT_S", 1.0)
    node = local_node()
    subscribed(node, database)
    with database.connect(autocommit=False) as writing:
        writing.execute("INSERT INTO u VALUES (1)")
        error = error_of(node)
        assert "the publisher has made no slot within 1 s" in error.message
        writing.commit()
    node.caught_up("s", database)
    slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name LIKE '%verify%'"
    wait_until(lambda: database.value(slots) == 0, "the temporary slot to go", 30)
    assert node.node.verify().equal


def test_a_table_makes_way_for_who_wants_to_change_it(
    local_node: LocalNodes, database: Database
) -> None:
    """TRUNCATE would take the rows from the snapshot; who reads the table waits behind it."""
    node = local_node()
    subscribed(node, database)
    threads: list[threading.Thread] = []

    def truncate(now: VerifyProgress) -> None:
        if now.doing != "comparing" or threads:
            return
        thread = threading.Thread(target=lambda: database.execute("TRUNCATE t"))
        threads.append(thread)
        thread.start()
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 't'::regclass"
        wait_until(lambda: database.value(waits) == 1, "TRUNCATE to wait", 30)

    t, u = node.node.verify(options=VerifyOptions(progress=truncate)).tables
    threads[0].join()
    assert t.reason == 'the comparison of table "public.t" makes way'
    assert u.equal
    again = node.node.verify()
    assert again.equal, again
    assert again.tables[0].difference is not None
    assert again.tables[0].difference.publisher_rows == 0


@pytest.mark.parametrize("threshold", [in_make_faults("64kB"), 0])
def test_a_node_that_fetches_a_backlog_is_compared_in_the_middle_of_it(
    local_node: LocalNodes, database: Database, threshold: str | int
) -> None:
    node = local_node(
        backlog_copy_threshold=threshold, logical_decoding_work_mem="1MB", apply_queue_mem="2MB"
    )
    subscribed(node, database)
    node.node.stop()
    for number in range(200):
        database.execute("UPDATE t SET b = b || 'x' WHERE a %% 97 = %s", (number % 97,))
    database.execute("INSERT INTO t SELECT i, 'b' FROM generate_series(5001, 30000) i")
    node.node.start()
    stop = threading.Event()
    writer = threading.Thread(target=_insert_until, args=(database, stop))
    writer.start()
    try:
        for _ in range(2):
            found = node.node.verify()
            assert found.equal, found
    finally:
        stop.set()
        writer.join()
    node.caught_up("s", database)
    assert node.node.verify().equal


def _insert_until(database: Database, stop: threading.Event) -> None:
    with database.connect() as connection:
        number = 0
        while not stop.is_set():
            number += 1
            connection.execute("INSERT INTO u VALUES (%s)", (number,))


def run(node: LocalNode, *arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["verify", "-D", str(node.folder), *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout


@part_of_make_faults
def test_equal_is_said_only_of_tables_that_were_compared_whole(
    local_node: LocalNodes, database: Database, spark: Any
) -> None:
    node = local_node()
    subscribed(node, database)
    database.execute("ALTER TABLE t ADD COLUMN c integer DEFAULT 5")
    status, text = run(node)
    assert status == 3
    assert text.splitlines()[1:] == [
        "  public.t: equal in part, 1,000 rows, without columns c",
        "  public.u: equal, 0 rows",
        "1 of 2 tables equal, 1 in part",
    ]
    (told,) = json.loads(run(node, "--json")[1])
    assert told["equal"] is False
    assert [(table["equal"], table["result"]) for table in told["tables"]] == [
        (False, "partial"),
        (True, "equal"),
    ]
    assert run(node, "u")[0] == 0
    # a column that the node's table had, and has no more
    node.node.sql("ALTER TABLE t DROP COLUMN b")
    status, text = run(node, "t")
    assert (status, text.splitlines()[1:]) == (
        3,
        [
            "  public.t: equal in part, 1,000 rows, without columns b, c",
            "0 of 1 tables equal, 1 in part",
        ],
    )
    spark.sql(f"DELETE FROM delta.`{node.cut().tables['public', 't'].uri}` WHERE a < 4")
    status, text = run(node, "t")
    assert status == 1
    assert "DIFFERENT" in text


def test_a_published_table_that_the_subscription_does_not_have_is_told(
    local_node: LocalNodes, database: Database
) -> None:
    node = local_node()
    subscribed(node, database)
    database.execute("CREATE TABLE v (a integer PRIMARY KEY); ALTER PUBLICATION p ADD TABLE v")
    status, text = run(node)
    assert (status, text.splitlines()[-2:]) == (
        1,
        [
            "  public.v: not compared: the subscription does not have it yet",
            "2 of 3 tables equal, 1 not compared",
        ],
    )
    assert run(node, "t")[0] == 0
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION")
    node.caught_up("s", database)
    assert run(node)[0] == 0


def test_the_command_line(local_node: LocalNodes, database: Database, spark: Any) -> None:
    node = local_node()
    subscribed(node, database)
    status, text = run(node)
    lsn = text.split()[3]
    assert (status, text) == (
        0,
        f"subscription s at {lsn}\n  public.t: equal, 1,000 rows\n"
        "  public.u: equal, 0 rows\n2 of 2 tables equal\n",
    )
    spark.sql(f"DELETE FROM delta.`{node.cut().tables['public', 't'].uri}` WHERE a < 4")
    status, text = run(node, "public.t", "--examples", "2")
    assert status == 1
    assert text.splitlines()[1:] == [
        "  public.t: DIFFERENT, 1,000 rows at the publisher, 997 at the node",
        "    3 missing at the node, the first 2:",
        "      a = '1'",
        "      a = '2'",
        "0 of 1 tables equal, 1 different",
    ]
    status, text = run(node, "--json", "--subscription", "s")
    assert status == 1
    (told,) = json.loads(text)
    assert (told["subscription"], told["equal"]) == ("s", False)
    assert told["tables"][0] == {
        "name": "public.t",
        "equal": False,
        "result": "different",
        "not_compared": None,
        "lacking_columns": [],
        "publisher_rows": 1000,
        "node_rows": 997,
        "differences": {"missing": 3},
        "all_differences_counted": True,
        "examples": [
            {"kind": "missing", "key": {"a": str(key)}, "columns": [], "count": 1}
            for key in (1, 2, 3)
        ],
    }
    assert run(node, "--examples", "-1")[0] == 2
    assert run(node, "--connections", "0")[0] == 2
