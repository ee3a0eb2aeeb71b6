"""A PostgreSQL follows tables whose columns and files change meanwhile, and loses what is gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from faults.heavy import part_of_make_faults
from fix_postgres import Database
from penstock.embedded import wait_until
from pipeline.published import vacuum
from publishing.lake_node import PASSWORD, LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]


def made(lake: LakeNode, database: Database, schema: str) -> str:
    """A table of both sides with a subscription; where it lies."""
    lake.execute(
        f"CREATE SCHEMA {schema}",
        f"CREATE TABLE {schema}.t (id integer PRIMARY KEY, v text)",
        f"INSERT INTO {schema}.t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        f"CREATE PUBLICATION {schema} FOR TABLE {schema}.t",
    )
    database.execute(
        f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.t (id integer PRIMARY KEY, v text)"
    )
    lake.subscribe(database, schema, schema)
    return f"{lake.node.folder}/warehouse/{schema}/t"


def equal(lake: LakeNode, database: Database, schema: str) -> None:
    query = f"SELECT * FROM {schema}.t"
    wanted = Counter(lake.rows(query))
    wait_until(lambda: Counter(database.rows(query)) == wanted, f"{schema} like the lake's")


def stop(lake: LakeNode, database: Database, schema: str) -> None:
    """Disable the subscription, and wait until its slot is free."""
    database.execute(f"ALTER SUBSCRIPTION {schema} DISABLE")
    wait_until(
        lambda: (
            lake.rows(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{schema}'")
            == [(False,)]
        ),
        "the end of the stream",
    )


def test_a_marked_commit_is_truncate(
    lake: LakeNode, subscriber: Callable[..., Database], spark: Any
) -> None:
    """The subscriber's own row goes, too, which deletes would have left."""
    database = subscriber(18)
    uri = made(lake, database, "marked")
    database.execute("INSERT INTO marked.t VALUES (0, 'not of the lake')")
    spark.sql('SET spark.databricks.delta.commitInfo.userMetadata = {"penstock.truncate": true}')
    spark.sql(f"DELETE FROM delta.`{uri}`")
    spark.sql("RESET spark.databricks.delta.commitInfo.userMetadata")
    lake.execute("INSERT INTO marked.t VALUES (9, 'after')")
    equal(lake, database, "marked")
    database.execute("INSERT INTO marked.t VALUES (0, 'not of the lake')")
    spark.sql(f"DELETE FROM delta.`{uri}`")
    lake.caught_up("marked")
    assert database.rows("SELECT * FROM marked.t") == [(0, "not of the lake")]


@part_of_make_faults
def test_columns_and_files_change_while_a_subscriber_follows(
    lake: LakeNode, subscriber: Callable[..., Database], spark: Any
) -> None:
    database = subscriber(18)
    uri = made(lake, database, "evolving")
    lake.execute("INSERT INTO evolving.t VALUES (4, 'd')")
    equal(lake, database, "evolving")
    for statement in (
        "ALTER TABLE evolving.t ADD COLUMN n bigint",
        "ALTER TABLE evolving.t ADD COLUMN d date",
    ):
        database.execute(statement)
        lake.execute(statement)
    lake.execute(
        "INSERT INTO evolving.t VALUES (5, 'e', 50, '2020-02-29')",
        "UPDATE evolving.t SET n = id WHERE id < 3",
    )
    equal(lake, database, "evolving")
    stop(lake, database, "evolving")
    lake.execute("INSERT INTO evolving.t (id) VALUES (6)", "UPDATE evolving.t SET v = 'x'")
    spark.sql(f"OPTIMIZE delta.`{uri}`")
    lake.execute("DELETE FROM evolving.t WHERE id = 4")
    vacuum(spark, uri, hours=168)
    database.execute("ALTER SUBSCRIPTION evolving ENABLE")
    equal(lake, database, "evolving")


@part_of_make_faults
def test_a_vacuumed_slot_is_lost(
    lake: LakeNode, subscriber: Callable[..., Database], spark: Any
) -> None:
    database = subscriber(18)
    uri = made(lake, database, "lost")
    stop(lake, database, "lost")
    lake.execute("DELETE FROM lost.t WHERE id = 1")
    spark.sql(f"REORG TABLE delta.`{uri}` APPLY (PURGE)")
    vacuum(spark, uri, hours=0)
    database.execute("ALTER SUBSCRIPTION lost ENABLE")
    state = (
        "SELECT wal_status, invalidation_reason, restart_lsn FROM pg_replication_slots "
        "WHERE slot_name = 'lost'"
    )
    wait_until(lambda: lake.rows(state) == [("lost", "wal_removed", None)], "the loss of the slot")
    stop(lake, database, "lost")
    with (
        psycopg.connect(
            f"host=127.0.0.1 port={lake.port} dbname=lake user=lake password='{PASSWORD}'",
            replication="database",
            autocommit=True,
        ) as connection,
        pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as refused,
    ):
        connection.execute(
            "START_REPLICATION SLOT lost LOGICAL 0/0 (proto_version '1', publication_names 'lost')"
        )
    assert refused.value.diag.message_primary == 'can no longer access replication slot "lost"'
    assert refused.value.diag.message_detail == (
        'This replication slot has been invalidated due to "wal_removed".'
    )
    database.execute("DROP SUBSCRIPTION lost")
    database.execute("TRUNCATE lost.t")
    lake.subscribe(database, "lost", "lost")
    lake.execute("INSERT INTO lost.t VALUES (9, 'again')")
    equal(lake, database, "lost")
