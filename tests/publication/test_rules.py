"""Rules about identities and lists: the same statements to PostgreSQL 18 and to us."""

from __future__ import annotations

import psycopg
import pytest

from fix_postgres import Database
from penstock.errors import PenstockError
from penstock.publication.members import Action, Members
from penstock.publication.row_filter import FilterColumn
from penstock.publication.rules import check_identity, check_row_filter_allowed, column_list
from publication.test_publish import Publication, Rel, Table

COLUMNS = (FilterColumn("a", 23), FilterColumn("b", 25), FilterColumn("c", 23))
IDENTITIES: dict[str, tuple[str, ...] | None] = {"DEFAULT": ("a",), "FULL": (), "NOTHING": None}


@pytest.mark.parametrize("identity", IDENTITIES)
@pytest.mark.parametrize("published", ["insert", "insert, update", "delete", "update, delete"])
def test_updates_and_deletes_are_refused_as_on_the_server(
    identity: str, published: str, database: Database
) -> None:
    table = Table(1, "t", identity=IDENTITIES[identity])
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (a int PRIMARY KEY, b text, c int)")
        connection.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")  # type: ignore[call-overload]
        for names, where in [
            (None, None), (None, "a > 1"), (None, "c > 1"), (("a", "b"), None), (("b",), None),
            (("b",), "c > 1"), (("a", "b", "c"), None),
        ]:  # fmt: skip
            listed = f" ({', '.join(names)})" if names else ""
            filtered = f" WHERE ({where})" if where else ""
            connection.execute("DROP PUBLICATION IF EXISTS p")
            connection.execute(
                f"CREATE PUBLICATION p FOR TABLE t{listed}{filtered} WITH (publish = '{published}')"  # type: ignore[call-overload]
            )
            actions = {action: action in published for action in ("insert", "update", "delete")}
            members = Members([Publication(1, **actions)], [Rel(1, 1, names, where)], [], [table])
            for action, sql in [
                (Action.UPDATE, "UPDATE t SET c = 1"),
                (Action.DELETE, "DELETE FROM t"),
            ]:
                assert ours(members, table, action) == theirs(connection, sql), (names, where)


def ours(members: Members, table: Table, action: Action) -> tuple[str | None, ...] | None:
    try:
        check_identity(members, table, COLUMNS, action)
    except PenstockError as error:
        return error.sqlstate, error.message, error.detail, error.hint
    return None


def theirs(connection: psycopg.Connection[object], sql: str) -> tuple[str | None, ...] | None:
    try:
        connection.execute(sql)  # type: ignore[call-overload]
    except psycopg.Error as error:
        diag = error.diag
        return diag.sqlstate, diag.message_primary, diag.message_detail, diag.message_hint
    return None


def test_column_lists_are_checked_as_on_the_server(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TABLE t (a int PRIMARY KEY, b text, c int)")
        for names in [("a",), ("c", "a"), ("nope",), ("a", "a"), ("ctid",), ("a", "xmin")]:
            sql = f"CREATE PUBLICATION p{'_'.join(names)} FOR TABLE t ({', '.join(names)})"
            expected = theirs(connection, sql)
            try:
                column_list(names, COLUMNS, table="t")
                got = None
            except PenstockError as error:
                got = error.sqlstate, error.message, error.detail, error.hint
            assert got == expected, names


def test_a_filter_of_a_partitioned_table_needs_the_root() -> None:
    root = Table(1, "t", partition_key="RANGE (a)")
    check_row_filter_allowed(Publication(1, via_root=True), root)
    with pytest.raises(PenstockError, match='cannot use publication WHERE clause for relation "t"'):
        check_row_filter_allowed(Publication(1), root)
