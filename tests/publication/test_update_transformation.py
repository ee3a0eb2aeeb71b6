"""What an UPDATE becomes that a row filter divides: PostgreSQL 18 publishes it, and so do we."""

from __future__ import annotations

import itertools

import duckdb

from fix_postgres import Database
from penstock.attribute import Attribute
from penstock.pgoutput.messages import Delete, Insert, Update
from penstock.publication.row_filter import compile_row_filter, matches, published_as

VALUES = (True, False, None)
_SENT = (
    "SELECT chr(get_byte(data, 0)) FROM pg_logical_slot_get_binary_changes('{}', NULL, NULL,"
    " 'proto_version', '1', 'publication_names', 'p')"
)


def theirs(database: Database, slot: str) -> dict[tuple[bool | None, bool | None], str]:
    """The messages of one row's UPDATE, '' for none."""
    sent = {}
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (f bool); ALTER TABLE t REPLICA IDENTITY FULL")
        connection.execute("CREATE PUBLICATION p FOR TABLE t WHERE (f)")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])
        for old, new in itertools.product(VALUES, repeat=2):
            connection.execute("TRUNCATE t")
            connection.execute("INSERT INTO t VALUES (%s)", [old])
            connection.execute(_SENT.format(slot))
            connection.execute("UPDATE t SET f = %s", [new])
            kinds = [str(row[0]) for row in connection.execute(_SENT.format(slot))]
            sent[old, new] = "".join(kind for kind in kinds if kind in "IUD")
        connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    return sent


def test_an_update_becomes_what_the_server_makes_of_it(database: Database) -> None:
    row_filter = compile_row_filter("f", [Attribute("f", 16)], table="t")
    match = matches(row_filter.predicate)
    duck = duckdb.connect()
    duck.execute("CREATE TABLE rows (f boolean)")
    duck.executemany("INSERT INTO rows VALUES (?)", [[value] for value in VALUES])
    duck.execute(f"CREATE VIEW sides AS SELECT f, {match} AS matches FROM rows")
    conditions = ", ".join(
        published_as(action, "o.matches", "n.matches") for action in (Insert, Update, Delete)
    )
    found = duck.execute(f"SELECT o.f, n.f, {conditions} FROM sides o, sides n").fetchall()
    ours = {
        (old, new): "".join(kind for kind, yes in zip("IUD", answers, strict=True) if yes)
        for old, new, *answers in found
    }
    assert ours == theirs(database, "update_transformation")


def test_all_rows_match_without_a_filter() -> None:
    assert duckdb.execute(f"SELECT {matches(None)}").fetchall() == [(True,)]
