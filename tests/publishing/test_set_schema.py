"""A published table is moved to another schema while stock servers subscribe."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fix_postgres import Database
from penstock.embedded import wait_until
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark]


def test_a_schema_loses_it_and_its_own_publication_does_not(
    lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    lake.execute(
        "CREATE SCHEMA mine",
        "CREATE SCHEMA other",
        "CREATE TABLE mine.t (a int)",
        "INSERT INTO mine.t VALUES (1)",
        "CREATE PUBLICATION by_schema FOR TABLES IN SCHEMA mine",
        "CREATE PUBLICATION by_table FOR TABLE mine.t",
    )
    named, schema = subscriber(18), subscriber(17)
    for database in (named, schema):
        database.execute(
            "CREATE SCHEMA mine; CREATE TABLE mine.t (a int);"
            "CREATE SCHEMA other; CREATE TABLE other.t (a int)"
        )
    lake.subscribe(schema, "moved_schema", "by_schema")
    lake.subscribe(named, "moved_table", "by_table")
    lake.execute("ALTER TABLE mine.t SET SCHEMA other", "INSERT INTO other.t VALUES (2)")
    assert lake.rows("SELECT a FROM other.t ORDER BY a") == [(1,), (2,)]
    assert lake.rows("SELECT pubname, schemaname FROM pg_publication_tables") == [
        ("by_table", "other")
    ]
    named.execute("ALTER SUBSCRIPTION moved_table REFRESH PUBLICATION WITH (copy_data = false)")
    lake.copied(named, "moved_table")
    lake.execute("INSERT INTO other.t VALUES (3)")
    wait_until(lambda: (3,) in named.rows("SELECT a FROM other.t"), "the row of the moved table")
    lake.caught_up("moved_schema")
    assert schema.rows("SELECT a FROM mine.t") == [(1,)]
    assert schema.rows("SELECT a FROM other.t") == []
