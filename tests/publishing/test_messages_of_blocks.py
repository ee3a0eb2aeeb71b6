"""pg_logical_emit_message(true, ...) in a transaction block: a part of its transaction, as a stock
server's test_decoding has it. Without Spark: what a block stages is written by files."""

from __future__ import annotations

import psycopg
import pytest

from penstock.executor import block
from penstock.lsn import Lsn
from penstock.walsender.two_phase import waiting_for_commits
from publishing.lake_node import LakeNode
from publishing.test_two_phase_slots import Side, database, insert, lake, side

pytestmark = [pytest.mark.postgres]
__all__ = ["database", "lake", "side"]

_PEEK = "SELECT lsn, xid, data FROM pg_logical_slot_{}_changes('{}', NULL, NULL{})"
_OPTIONS = ", 'include-xids', '0', 'skip-empty-xacts', '1'"


def emit(prefix: str, content: str = "c", *, transactional: bool = True) -> str:
    return f"SELECT pg_logical_emit_message({str(transactional).lower()}, '{prefix}', '{content}')"


def told(name: str, *, transactional: int = 1) -> str:
    return f"message: transactional: {transactional} prefix: {name}, sz: 1 content:c"


def test_a_message_is_a_part_of_its_block(side: Side) -> None:
    side.run("CREATE TABLE m1 (id int PRIMARY KEY)", "CREATE TABLE m2 (id int PRIMARY KEY)")
    side.slot("m_plain", two_phase=False)
    side.run(
        "BEGIN",
        emit("before"),
        "INSERT INTO m1 VALUES (1)",
        emit("between"),
        "INSERT INTO m2 VALUES (1)",
        emit("after"),
        "COMMIT",
    )
    side.run("BEGIN", emit("alone"), emit("a second"), "COMMIT")
    side.run("BEGIN", "INSERT INTO m1 VALUES (2)", emit("gone"), "ROLLBACK")
    side.run("BEGIN", emit("gone"), emit("at once", transactional=False), "ROLLBACK")
    side.run(
        "BEGIN",
        "INSERT INTO m1 VALUES (3)",
        "SAVEPOINT s",
        emit("gone"),
        "INSERT INTO m2 VALUES (3)",
        "ROLLBACK TO SAVEPOINT s",
        emit("kept"),
        "COMMIT",
    )
    side.run(emit("outside"))
    rows = side.rows(_PEEK.format("get", "m_plain", _OPTIONS))
    assert [data for _, _, data in rows] == [
        "BEGIN",
        told("before"),
        insert("m1", 1),
        told("between"),
        insert("m2", 1),
        told("after"),
        "COMMIT",
        "BEGIN",
        told("alone"),
        told("a second"),
        "COMMIT",
        told("at once", transactional=0),
        "BEGIN",
        insert("m1", 3),
        told("kept"),
        "COMMIT",
        "BEGIN",
        told("outside"),
        "COMMIT",
    ]
    assert len({xid for _, xid, _ in rows[:7]}) == 1
    messages = [Lsn.parse(lsn) for lsn, _, data in rows[:7] if data.startswith("message")]
    assert messages == sorted(set(messages))
    assert messages[-1] < Lsn.parse(rows[6][0]), "its record ends before the commit's"


def test_prepared_messages(side: Side) -> None:
    side.run("CREATE TABLE m3 (id int PRIMARY KEY)")
    for name, two_phase in (("m_one", False), ("m_two", True)):
        side.slot(name, two_phase=two_phase)
    got = []
    for with_rows in (True, False):
        changing = ["INSERT INTO m3 VALUES (1)"] if with_rows else []
        for gid, end in ((f"c{with_rows}", "COMMIT"), (f"r{with_rows}", "ROLLBACK")):
            side.run("BEGIN", *changing, emit(gid), f"PREPARE TRANSACTION '{gid}'")
            for name in ("m_one", "m_two"):
                got.append([d for *_, d in side.rows(_PEEK.format("get", name, _OPTIONS))])
            side.run(f"{end} PREPARED '{gid}'")
            for name in ("m_one", "m_two"):
                got.append([d for *_, d in side.rows(_PEEK.format("get", name, _OPTIONS))])
            if with_rows and end == "COMMIT":
                changing = ["INSERT INTO m3 VALUES (2)"]
    expected = []
    for rows, gid, end in (
        ([insert("m3", 1)], "cTrue", "COMMIT"),
        ([insert("m3", 2)], "rTrue", "ROLLBACK"),
        ([], "cFalse", "COMMIT"),
        ([], "rFalse", "ROLLBACK"),
    ):
        changes = [*rows, told(gid)]
        once = ["BEGIN", *changes, "COMMIT"] if end == "COMMIT" else []
        expected += [
            [],
            ["BEGIN", *changes, f"PREPARE TRANSACTION '{gid}'"],
            once,
            [f"{end} PREPARED '{gid}'"],
        ]
    assert got == expected


def test_what_fails_leaves_no_message(side: Side) -> None:
    side.run("CREATE TABLE m4 (id int PRIMARY KEY)")
    side.slot("m_failed", two_phase=False)
    with pytest.raises(psycopg.errors.UndefinedTable):
        side.run("BEGIN", emit("gone"), "SELECT * FROM missing")
    side.run("BEGIN READ ONLY", emit("read only"), "COMMIT")
    side.run("BEGIN ISOLATION LEVEL SERIALIZABLE", emit("serializable"), "COMMIT")
    side.run("BEGIN", emit("a", ""), "CREATE TABLE m5 (id int PRIMARY KEY)", "COMMIT")
    rows = [data for *_, data in side.rows(_PEEK.format("get", "m_failed", _OPTIONS))]
    empty = "message: transactional: 1 prefix: a, sz: 0 content:"
    assert [data for data in rows if data.startswith("message")] == [
        told("read only"),
        told("serializable"),
        empty,
    ]


@pytest.mark.parametrize("tables", [("d1",), ("d2", "d3")])
def test_tables_that_are_dropped_before_their_commits_are_found(
    lake: LakeNode, tables: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The messages are in the log, once, and nothing is left of them beside it."""
    node = Side(lake.connect)
    node.run(*(f"CREATE TABLE {table} (id int PRIMARY KEY)" for table in (*tables, "stays")))
    slot = f"m_{tables[0]}"
    node.slot(slot, two_phase=False)
    serving = lake.node.serving
    assert serving is not None
    with monkeypatch.context() as patched:
        patched.setattr(serving.sequencer, "step", lambda **_: None)
        node.run(
            "BEGIN",
            *(f"INSERT INTO {table} VALUES (1)" for table in tables),
            emit("one"),
            emit("two"),
            "COMMIT",
            *(f"DROP TABLE {table}" for table in tables),
        )
    node.run("BEGIN", "INSERT INTO stays VALUES (1)", emit("later"), "COMMIT", "DROP TABLE stays")
    for _ in range(2):
        serving._keep_up()
    rows = node.rows(_PEEK.format("get", slot, _OPTIONS))
    messages = [data for *_, data in rows if data.startswith("message")]
    assert sorted(messages) == sorted(map(told, ("one", "two", "later")))
    with serving.sequencer._catalog.read() as t:
        assert not waiting_for_commits(t)


def test_messages_have_a_limit(lake: LakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a savepoint takes back does not count."""
    monkeypatch.setattr(block, "_MAX_MESSAGE_BYTES", 10)
    node = Side(lake.connect)
    node.slot("m_limit", two_phase=False)
    taken_back = ("SAVEPOINT s", emit("p", "12345"), "ROLLBACK TO SAVEPOINT s")
    node.run("BEGIN", *taken_back, *taken_back, emit("p", "123456789"), "COMMIT")
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="messages of a transaction"):
        node.run("BEGIN", emit("gone", "1234"), emit("gone", "1"), "COMMIT")
    rows = [data for *_, data in node.rows(_PEEK.format("get", "m_limit", _OPTIONS))]
    assert rows == [
        "BEGIN",
        "message: transactional: 1 prefix: p, sz: 9 content:123456789",
        "COMMIT",
    ]


def test_no_message_beside_commands(lake: LakeNode) -> None:
    create = "CREATE SUBSCRIPTION m6 CONNECTION 'dbname=x' PUBLICATION m6 WITH (connect = false)"
    for statements in ((create, emit("p")), (emit("p"), create)):
        with lake.connect() as session:
            session.execute("BEGIN")
            session.execute(statements[0])
            with pytest.raises(psycopg.errors.FeatureNotSupported, match="not supported"):
                session.execute(statements[1])
