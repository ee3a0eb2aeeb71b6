"""Messages of a real PostgreSQL 18: both decoders agree on them, and they say what was done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from fix_postgres import Database
from penstock.embedded import EmbeddedPostgres
from penstock.pgoutput import messages as m
from penstock.pgoutput.columnar import ColumnarDecoder
from penstock.pgoutput.decoder import Decoder
from penstock.pgoutput.encoder import encode
from penstock.pgoutput.options import PgoutputOptions
from penstock.pgtypes import find
from pgoutput.strategies import chunk_of
from pgoutput.test_columnar import NOTHING, read_one_by_one, rows_of, same

SCHEMA = """
    CREATE TABLE item (id int PRIMARY KEY, big text STORAGE EXTERNAL, small text);
    CREATE TABLE full_row (id int, big text STORAGE EXTERNAL, at timestamptz);
    ALTER TABLE full_row REPLICA IDENTITY FULL;
    CREATE TABLE other (id int PRIMARY KEY);
    CREATE TABLE no_column ();
    ALTER TABLE no_column REPLICA IDENTITY FULL;
    CREATE PUBLICATION p FOR ALL TABLES;
"""
SLOT = "SELECT pg_create_logical_replication_slot('s', 'pgoutput', false, true)"

BIG = "repeat('x', 9000)"

WORK = [
    f"INSERT INTO item VALUES (1, {BIG}, 'a'), (2, NULL, 'b')",
    "UPDATE item SET small = 'c' WHERE id = 1",
    "UPDATE item SET id = 10 WHERE id = 1",
    f"INSERT INTO full_row VALUES (1, {BIG}, '2024-01-01 00:00:00+00'), (1, NULL, NULL)",
    "UPDATE full_row SET at = '2024-06-01 00:00:00+00' WHERE at IS NOT NULL",
    "DELETE FROM full_row WHERE at IS NULL",
    "DELETE FROM item WHERE id = 2",
    "INSERT INTO no_column DEFAULT VALUES",
    "DELETE FROM no_column",
    "BEGIN; INSERT INTO other VALUES (5); ALTER TABLE other ADD n numeric(9,2);"
    " INSERT INTO other VALUES (6, 1.5); COMMIT",
    "TRUNCATE item, other CASCADE",
    "TRUNCATE full_row RESTART IDENTITY",
    "SELECT pg_replication_origin_create('east'), pg_replication_origin_session_setup('east')",
    "INSERT INTO other VALUES (7, 2)",
    "SELECT pg_replication_origin_session_reset()",
]


def peek(connection: psycopg.Connection[Any], options: PgoutputOptions) -> list[bytes]:
    rows = connection.execute(
        "SELECT data FROM pg_logical_slot_peek_binary_changes('s', NULL, NULL,"
        " VARIADIC %s::text[])",
        (list(options.arguments()),),
        binary=True,
    ).fetchall()
    return [data for (data,) in rows]


@pytest.mark.parametrize("binary", [False, True])
def test_both_decoders_agree_on_real_messages(database: Database, binary: bool) -> None:
    connection = database.connect(options="-c timezone=UTC")
    for sql in (SCHEMA, SLOT, *WORK):
        connection.execute(sql)
    payloads = peek(connection, PgoutputOptions(1, ("p",), binary=binary))
    connection.execute("SELECT pg_replication_origin_drop('east')")
    relations: dict[int, Any] = {}
    wanted = read_one_by_one(payloads, relations)
    decoder = ColumnarDecoder(find)
    got = rows_of(decoder.decode(chunk_of(payloads)))
    assert same(got.changes, wanted.changes)
    assert (got.truncates, got.commits) == (wanted.truncates, wanted.commits)
    assert decoder.relations == relations

    big = "x" * 9000
    item = [c for c in got.changes if c.relation.name == "item"]
    assert [(c.operation, c.new, c.old, c.old_kind) for c in item] == [
        ("I", [1, big, "a"], None, None),
        ("I", [2, None, "b"], None, None),
        ("U", [1, NOTHING, "c"], None, None),
        ("U", [10, NOTHING, "c"], [1, None, None], "K"),
        ("D", [None, None, None], [2, None, None], "K"),
    ]
    update, delete = [c for c in got.changes if c.relation.name == "full_row"][2:]
    assert update.new[1] is NOTHING
    assert update.old is not None
    assert (update.old[:2], update.old_kind) == ([1, big], "O")
    assert (delete.old, delete.old_kind) == ([1, None, None], "O")
    assert [len(c.new) for c in got.changes if c.relation.name == "no_column"] == [0, 0]
    assert [len(c.new) for c in got.changes if c.relation.name == "other"] == [1, 2, 2]
    names = [[relations[oid].name for oid in oids] for _, oids, _, _ in got.truncates]
    assert names == [["item", "other"], ["full_row"]]
    assert [t[2:] for t in got.truncates] == [(True, False), (False, True)]
    assert len(got.commits) == len(WORK) - 2
    assert sum(payload.startswith(b"O") for payload in payloads) == 1


@pytest.fixture(scope="module")
def preparing() -> Iterator[EmbeddedPostgres]:
    settings: dict[str, str | int | bool] = {
        "max_prepared_transactions": 5,
        "logical_decoding_work_mem": "64kB",
    }
    with EmbeddedPostgres(18, settings=settings) as server:
        yield server


def decoded(payloads: list[bytes], options: PgoutputOptions) -> list[m.Message]:
    decoder = Decoder(options.proto_version, parallel=options.streaming == "parallel")
    messages = [decoder.decode(payload) for payload in payloads]
    assert [encode(message) for message in messages] == payloads
    return messages


@pytest.mark.postgres
@pytest.mark.parametrize("streaming", [None, "on", "parallel"])
def test_messages_of_later_versions(
    preparing: EmbeddedPostgres, database_on: Callable[..., Database], streaming: str | None
) -> None:
    """Streamed and prepared transactions, subtransactions, aborts and emitted messages."""
    connection = database_on(preparing).connect()
    connection.execute(SCHEMA)
    connection.execute(SLOT)
    fill = "INSERT INTO item SELECT g, 'y', repeat('z', 200) FROM generate_series({}) g"
    for sql in (
        f"BEGIN; {fill.format('1, 2000')}; SAVEPOINT one; {fill.format('2001, 4000')};"
        f" ROLLBACK TO one; {fill.format('4001, 6000')};"
        " SELECT pg_logical_emit_message(true, 'note', 'inside'); COMMIT",
        "SELECT pg_logical_emit_message(false, 'note', 'outside')",
        "BEGIN; INSERT INTO other VALUES (1); PREPARE TRANSACTION 'first'",
        "COMMIT PREPARED 'first'",
        f"BEGIN; {fill.format('10001, 12000')}; PREPARE TRANSACTION 'second'",
        "ROLLBACK PREPARED 'second'",
        f"BEGIN; {fill.format('20001, 22000')}; PREPARE TRANSACTION 'third'",
        "COMMIT PREPARED 'third'",
    ):
        connection.execute(sql)
    options = PgoutputOptions(
        4, ("p",), streaming=streaming, two_phase=False, origin="any", messages=True
    )
    messages = decoded(peek(connection, options), options)
    kinds = {type(message) for message in messages}
    assert {m.BeginPrepare, m.Prepare, m.CommitPrepared} <= kinds
    assert {m.RollbackPrepared, m.LogicalMessage, m.Insert} <= kinds
    streamed = {m.StreamStart, m.StreamStop, m.StreamCommit, m.StreamPrepare}
    assert kinds & streamed == (streamed if streaming else set())
    outside = [x for x in messages if isinstance(x, m.LogicalMessage) and not x.transactional]
    assert [(x.prefix, x.content, x.xid) for x in outside] == [("note", b"outside", None)]
    for abort in messages:
        if isinstance(abort, m.StreamAbort):
            assert (abort.abort_lsn is not None) == (streaming == "parallel")
