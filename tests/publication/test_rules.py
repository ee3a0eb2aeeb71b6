"""Rules about identities and lists: the same statements to PostgreSQL 18 and to us."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest

from fix_postgres import Database
from penstock.attribute import AttGenerated, Attribute
from penstock.errors import PenstockError
from penstock.publication.members import Members, Operation
from penstock.publication.rules import check_identity, check_row_filter_allowed, column_list
from publication.test_relation_sync import Publication, Rel, Table

COLUMNS = (Attribute("a", 23), Attribute("b", 25), Attribute("c", 23))
IDENTITIES: dict[str, tuple[str, ...] | None] = {"DEFAULT": ("a",), "FULL": (), "NOTHING": None}


@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("published", ["insert", "insert, update", "delete", "update, delete"])
def test_updates_and_deletes_are_refused_as_on_the_server(
    identity: str, published: str, database: Database
) -> None:
    table = Table(1, "t", identity=IDENTITIES[identity])
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (a int PRIMARY KEY, b text, c int)")
        connection.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
        for names, where in [
            (None, None), (None, "a > 1"), (None, "c > 1"), (("a", "b"), None), (("b",), None),
            (("b",), "c > 1"), (("a", "b", "c"), None),
        ]:  # fmt: skip
            listed = f" ({', '.join(names)})" if names else ""
            filtered = f" WHERE ({where})" if where else ""
            connection.execute("DROP PUBLICATION IF EXISTS p")
            connection.execute(
                f"CREATE PUBLICATION p FOR TABLE t{listed}{filtered} WITH (publish = '{published}')"
            )
            actions = {action: action in published for action in ("insert", "update", "delete")}
            publication = Publication(1, **actions)  # type: ignore[arg-type]
            members = Members([publication], [Rel(1, 1, names, where)], [], [table])
            for action, sql in [
                (Operation.UPDATE, "UPDATE t SET c = 1"),
                (Operation.DELETE, "DELETE FROM t"),
            ]:
                assert ours(members, table, action) == theirs(connection, sql), (names, where)


@pytest.mark.parametrize("options", ["", " WITH (publish_generated_columns = stored)"])
@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
@pytest.mark.parametrize("where", [None, "v > 2", "w > 2"])
def test_virtual_columns_in_identities_and_filters(
    identity: str, where: str | None, options: str, database: Database
) -> None:
    virtual = (
        Attribute("v", 23, generated=AttGenerated.VIRTUAL, generation="c * 2"),
        Attribute("w", 23, generated=AttGenerated.VIRTUAL, generation="a * 2"),
    )
    filtered = f" WHERE ({where})" if where else ""
    database.execute(
        "CREATE TABLE t (a int PRIMARY KEY, b text, c int,"
        " v int GENERATED ALWAYS AS (c * 2), w int GENERATED ALWAYS AS (a * 2));"
        f"ALTER TABLE t REPLICA IDENTITY {identity}; CREATE PUBLICATION p FOR TABLE t{filtered}"
        + options
    )
    table = Table(1, "t", identity=IDENTITIES[identity])
    publication = Publication(1, generated_columns="s" if options else "n")
    members = Members([publication], [Rel(1, 1, None, where)], [], [table])
    with database.connect() as connection:
        wanted = theirs(connection, "UPDATE t SET c = 1")
    assert ours(members, table, Operation.UPDATE, (*COLUMNS, *virtual)) == wanted


def ours(
    members: Members, table: Table, action: Operation, columns: Sequence[Attribute] = COLUMNS
) -> tuple[str | None, ...] | None:
    try:
        check_identity(members, table, columns, action)
    except PenstockError as error:
        return error.sqlstate, error.message, error.detail, error.hint
    return None


def theirs(connection: psycopg.Connection[object], sql: str) -> tuple[str | None, ...] | None:
    try:
        connection.execute(sql)
    except psycopg.Error as error:
        diag = error.diag
        return diag.sqlstate, diag.message_primary, diag.message_detail, diag.message_hint
    return None


def test_column_lists_are_checked_as_on_the_server(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(
            "CREATE TABLE t (a int PRIMARY KEY, b text, c int, v int GENERATED ALWAYS AS (a * 2))"
        )
        columns = (*COLUMNS, Attribute("v", 23, generated=AttGenerated.VIRTUAL))
        for names in [
            ("a",), ("c", "a"), ("nope",), ("a", "a"), ("ctid",), ("a", "xmin"), ("a", "v"),
        ]:  # fmt: skip
            sql = f"CREATE PUBLICATION p{'_'.join(names)} FOR TABLE t ({', '.join(names)})"
            expected = theirs(connection, sql)
            try:
                column_list(names, columns, table="t")
                got = None
            except PenstockError as error:
                got = error.sqlstate, error.message, error.detail, error.hint
            assert got == expected, names


def test_a_filter_of_a_partitioned_table_needs_the_root() -> None:
    root = Table(1, "t", partition_key="RANGE (a)")
    check_row_filter_allowed(Publication(1, via_root=True), root)
    with pytest.raises(PenstockError, match='cannot use publication WHERE clause for relation "t"'):
        check_row_filter_allowed(Publication(1), root)
