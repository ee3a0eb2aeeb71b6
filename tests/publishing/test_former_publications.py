"""Publications are altered between commits: each commit is sent by those of its place in the log,
as by a server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import psycopg
import pytest

from faults.heavy import in_make_faults
from fix_postgres import Database
from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.pgoutput import messages as m
from penstock.pgoutput.decoder import Decoder
from publishing.lake_node import LakeNode, drop_subscriptions

pytestmark = [pytest.mark.postgres, pytest.mark.spark]

_TABLES = ("dropped", "filtered", "listed", "chosen", "renamed", "left_alone", "whole", "one.moved")
_BEGIN = (
    "CREATE SCHEMA one",
    "CREATE SCHEMA two",
    *(f"CREATE TABLE {table} (id int PRIMARY KEY, a int)" for table in _TABLES),
    "CREATE TABLE parted (id int PRIMARY KEY, a int) PARTITION BY RANGE (id)",
    "CREATE TABLE low PARTITION OF parted FOR VALUES FROM (0) TO (1000)",
    "ALTER TABLE whole REPLICA IDENTITY FULL",
    "CREATE PUBLICATION named FOR TABLE dropped, filtered, listed, whole",
    "CREATE PUBLICATION chosen FOR TABLE chosen",
    "CREATE PUBLICATION rooted FOR TABLE parted WITH (publish_via_partition_root)",
    "CREATE PUBLICATION schemas FOR TABLES IN SCHEMA one",
    "CREATE PUBLICATION was FOR TABLE renamed",
    "CREATE PUBLICATION gone FOR TABLE left_alone",
)
_PUBLICATIONS: Final = ("named", "chosen", "rooted", "schemas", "was", "gone")

_MEMBERS = (
    "INSERT INTO dropped VALUES (1, 1)",
    "ALTER PUBLICATION named DROP TABLE dropped",
    "INSERT INTO dropped VALUES (2, 9)",
    "ALTER PUBLICATION named ADD TABLE dropped WHERE (a > 5)",
    "INSERT INTO dropped VALUES (3, 3), (4, 9)",
    "UPDATE whole SET a = 0",
    "INSERT INTO whole VALUES (1, 1)",
    "UPDATE whole SET a = 2",
    "ALTER TABLE whole REPLICA IDENTITY DEFAULT",
    "UPDATE whole SET a = 3",
    "INSERT INTO filtered VALUES (1, 1), (2, 9)",
    "INSERT INTO listed VALUES (1, 1)",
    "ALTER PUBLICATION named SET TABLE filtered WHERE (a > 5), listed (id), dropped",
    "INSERT INTO filtered VALUES (3, 1), (4, 9)",
    "INSERT INTO listed VALUES (2, 2)",
    "INSERT INTO dropped VALUES (5, 1)",
    "INSERT INTO whole VALUES (2, 2)",
    "ALTER PUBLICATION named SET TABLE filtered WHERE (a < 5), listed, whole",
    "INSERT INTO filtered VALUES (5, 1), (6, 9)",
    "INSERT INTO listed VALUES (3, 3)",
    "INSERT INTO dropped VALUES (6, 1)",
    "UPDATE whole SET a = 4",
)
_OPTIONS = (
    "INSERT INTO chosen VALUES (1, 1), (2, 2), (3, 3)",
    "UPDATE chosen SET a = 10 WHERE id = 1",
    "DELETE FROM chosen WHERE id = 2",
    "ALTER PUBLICATION chosen SET (publish = 'insert')",
    "INSERT INTO chosen VALUES (4, 4)",
    "UPDATE chosen SET a = 11 WHERE id = 1",
    "DELETE FROM chosen WHERE id = 3",
    "ALTER PUBLICATION chosen SET (publish = 'update, truncate')",
    "INSERT INTO chosen VALUES (5, 5)",
    "UPDATE chosen SET a = 12 WHERE id = 1",
    "TRUNCATE chosen",
    "ALTER PUBLICATION chosen SET (publish = 'insert, delete')",
    "INSERT INTO chosen VALUES (6, 6), (7, 7)",
    "DELETE FROM chosen WHERE id = 6",
    "TRUNCATE chosen",
    "INSERT INTO parted VALUES (1, 1)",
    "ALTER PUBLICATION rooted SET (publish_via_partition_root = false)",
    "INSERT INTO parted VALUES (2, 2)",
    "ALTER PUBLICATION rooted SET TABLE low WHERE (a > 5)",
    "INSERT INTO parted VALUES (3, 3), (4, 9)",
    "ALTER PUBLICATION rooted SET (publish_via_partition_root)",
    "INSERT INTO parted VALUES (5, 5), (6, 9)",
    "ALTER PUBLICATION rooted SET TABLE parted WHERE (a < 5)",
    "INSERT INTO parted VALUES (7, 3), (8, 9)",
)
_NAMES = (
    "INSERT INTO one.moved VALUES (1, 1)",
    "ALTER TABLE one.moved SET SCHEMA two",
    "INSERT INTO two.moved VALUES (2, 2)",
    "ALTER PUBLICATION schemas ADD TABLES IN SCHEMA two",
    "INSERT INTO two.moved VALUES (3, 3)",
    "ALTER PUBLICATION schemas DROP TABLES IN SCHEMA two",
    "INSERT INTO two.moved VALUES (4, 4)",
    "ALTER TABLE two.moved SET SCHEMA one",
    "INSERT INTO one.moved VALUES (5, 5)",
    "INSERT INTO renamed VALUES (1, 1)",
    "ALTER PUBLICATION was RENAME TO is_now",
    "INSERT INTO renamed VALUES (2, 2)",
    "ALTER PUBLICATION is_now RENAME TO was",
    "INSERT INTO renamed VALUES (3, 3)",
    "INSERT INTO left_alone VALUES (1, 1)",
    "DROP PUBLICATION gone",
    "INSERT INTO left_alone VALUES (2, 2)",
    "CREATE PUBLICATION gone FOR ALL TABLES",
    "INSERT INTO left_alone VALUES (3, 3)",
    "INSERT INTO renamed VALUES (4, 4)",
    "DROP PUBLICATION gone",
    "CREATE PUBLICATION gone FOR TABLE left_alone",
    "INSERT INTO renamed VALUES (5, 5)",
    "INSERT INTO left_alone VALUES (5, 5)",
    "ALTER PUBLICATION gone DROP TABLE left_alone",
)
_SIMPLE: Final = (
    "INSERT INTO dropped VALUES (1, 1)",
    "ALTER PUBLICATION named DROP TABLE dropped",
    "INSERT INTO dropped VALUES (2, 9)",
    "ALTER PUBLICATION named ADD TABLE dropped WHERE (a > 5)",
    "INSERT INTO dropped VALUES (3, 3), (4, 9)",
    "ALTER PUBLICATION named SET TABLE dropped",
    "INSERT INTO dropped VALUES (5, 1)",
)
_STORY: Final = (*_MEMBERS, *_OPTIONS, *_NAMES)


def _sent(session: psycopg.Connection[Any], publications: Sequence[str]) -> list[list[str]]:
    """Changes of each transaction that has some, sorted, with names for OIDs."""
    call = (
        "pg_logical_slot_peek_binary_changes('former', NULL, NULL, 'proto_version', '1', "
        f"'publication_names', '{','.join(publications)}')"
    )
    decoder, names = Decoder(1), dict[int, str]()
    found: list[list[str]] = []
    for (data,) in session.execute(f"SELECT data FROM {call}".encode()):
        match decoder.decode(bytes(data)):
            case m.Begin():
                found.append([])
            case m.RelationMessage(relation=relation):
                names[relation.oid] = str(replace(relation, oid=0))
            case m.Truncate() as truncate:
                found[-1].append(f"TRUNCATE {[names[oid] for oid in truncate.relation_oids]}")
            case m.Insert() | m.Update() | m.Delete() as change:
                found[-1].append(f"{names[change.relation_oid]} {replace(change, relation_oid=0)}")
            case _:
                pass
    return [sorted(changes) for changes in found if changes]


def _play(session: psycopg.Connection[Any], statements: Sequence[str]) -> None:
    for statement in statements:
        session.execute(statement.encode())


def test_each_commit_is_sent_by_the_publications_of_its_place(
    tmp_path: Path, spark: Any, database_on: Callable[..., Database]
) -> None:
    with LakeNode(tmp_path / "node", spark) as lake, database_on(18).connect() as server:
        for session in (lake.connection, server):
            _play(session, _BEGIN)
            session.execute("SELECT pg_create_logical_replication_slot('former', 'pgoutput')")
            _play(session, _STORY)
        for publications in (*((name,) for name in _PUBLICATIONS), _PUBLICATIONS):
            expected = _sent(server, publications)
            assert expected, publications
            assert (publications, _sent(lake.connection, publications)) == (publications, expected)
        server.execute("SELECT pg_drop_replication_slot('former')")


def test_a_publication_that_there_was_not_yet(
    tmp_path: Path, spark: Any, database_on: Callable[..., Database]
) -> None:
    """An error up to version 17, and it stays one when the publication is made."""
    said: list[list[object]] = []
    node = LakeNode(tmp_path / "node", spark, server_version=17)
    with node as lake, database_on(17).connect() as server:
        for session in (lake.connection, server):
            said.append([])
            _play(session, ("CREATE TABLE early (id int PRIMARY KEY)", "CREATE PUBLICATION p"))
            session.execute("SELECT pg_create_logical_replication_slot('former', 'pgoutput')")
            for statement in (
                "ALTER PUBLICATION p ADD TABLE early",
                "INSERT INTO early VALUES (1)",
                "DROP PUBLICATION p",
                "SELECT 1",
                "INSERT INTO early VALUES (2)",
                "CREATE PUBLICATION p FOR TABLE early",
                "INSERT INTO early VALUES (3)",
            ):
                session.execute(statement.encode())
                said[-1].append(_sent_or_error(session))
        server.execute("SELECT pg_drop_replication_slot('former')")
    ours, theirs = said
    assert ours == theirs
    assert theirs[-1] == ("42704", 'publication "p" does not exist')


def _sent_or_error(session: psycopg.Connection[Any]) -> object:
    try:
        return _sent(session, ["p"])
    except psycopg.Error as error:
        return error.sqlstate, error.diag.message_primary


def test_what_is_prepared_is_sent_by_the_publications_of_its_prepare(
    tmp_path: Path, spark: Any, database_on: Callable[..., Database]
) -> None:
    prepared: dict[str, Any] = {"max_prepared_transactions": 8}
    said: list[list[list[str]]] = []
    with (
        EmbeddedPostgres(18, settings={"wal_level": "logical", **prepared}) as other,
        LakeNode(tmp_path / "node", spark, **prepared) as lake,
        database_on(other).connect() as server,
    ):
        for session in (lake.connection, server):
            _play(session, _BEGIN)
            session.execute("SELECT pg_create_logical_replication_slot('former', 'pgoutput')")
            for key, statement in (
                (1, "ALTER PUBLICATION named DROP TABLE dropped"),
                (2, "ALTER PUBLICATION named ADD TABLE dropped WHERE (id > 3)"),
                (3, "ALTER PUBLICATION named SET TABLE dropped"),
            ):
                insert = f"INSERT INTO dropped VALUES ({key}, 0)"
                _play(session, ("BEGIN", insert, f"PREPARE TRANSACTION 'of {key}'", statement))
                session.execute(f"COMMIT PREPARED 'of {key}'".encode())
            session.execute("INSERT INTO dropped VALUES (4, 0)")
            said.append(_sent(session, ["named"]))
        server.execute("SELECT pg_drop_replication_slot('former')")
    ours, theirs = said
    assert ours == theirs
    assert len(theirs) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "story", [in_make_faults(_SIMPLE, id="simple"), pytest.param(_STORY, id="long")]
)
@pytest.mark.parametrize(
    "away", [pytest.param(True, id="away"), in_make_faults(False, id="streaming")]
)
def test_a_subscriber_has_the_rows_that_the_one_of_a_server_has(
    tmp_path: Path,
    spark: Any,
    database_on: Callable[..., Database],
    away: bool,
    story: Sequence[str],
) -> None:
    publisher, ours, theirs = database_on(18), database_on(18), database_on(18)
    tables = (*_TABLES, "two.moved", "parted", "low")
    names = ", ".join(_PUBLICATIONS)
    with LakeNode(tmp_path / "node", spark) as lake, contextlib.ExitStack() as stack:
        for statement in _BEGIN:
            lake.execute(statement)
            publisher.execute(statement)
        for database in (ours, theirs):
            database.execute("CREATE SCHEMA one")
            database.execute("CREATE SCHEMA two")
            for table in tables:
                database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, a int)")
            stack.callback(drop_subscriptions, database)
        # By itself: CREATE SUBSCRIPTION would wait for its own transaction in the same cluster.
        publisher.execute("SELECT pg_create_logical_replication_slot('former', 'pgoutput')")
        theirs.execute(
            f"CREATE SUBSCRIPTION former CONNECTION '{publisher.conninfo}' PUBLICATION {names} "
            "WITH (create_slot = false)"
        )
        lake.copied(theirs, "former")
        lake.subscribe(ours, "former", names)
        for database in (ours, theirs):
            if away:
                database.execute("ALTER SUBSCRIPTION former DISABLE")
        for statement in story:
            lake.execute(statement)
            publisher.execute(statement)
        for database in (ours, theirs):
            if away:
                database.execute("ALTER SUBSCRIPTION former ENABLE")
        end = publisher.value("SELECT pg_current_wal_flush_lsn()::text")
        wait_until(lambda: _passed(publisher, end), "the server's subscriber")
        lake.caught_up("former")
        for table in tables:
            query = f"SELECT * FROM {table} ORDER BY id"
            assert (table, ours.rows(query)) == (table, theirs.rows(query))
        assert theirs.rows("SELECT * FROM dropped ORDER BY id") == [(1, 1), (4, 9), (5, 1)]


def _passed(publisher: Database, end: object) -> bool:
    passed = "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots"
    return bool(publisher.value(f"{passed} WHERE slot_name = 'former'", (end,)))
