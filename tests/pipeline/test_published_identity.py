"""Replica identities, row filters and column lists, and what writers do against them."""

from __future__ import annotations

import psycopg
import pytest

from faults.heavy import in_make_faults, part_of_make_faults
from fix_postgres import Database
from penstock.errors import NotInPrerequisiteState, PenstockError
from pipeline.published import PublishedTable, PublishingLake

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_ROWS = "INSERT INTO {t} VALUES (1, 'a', 10), (2, 'b', 20), (3, 'c', 30)"


def table_of(lake: PublishingLake, name: str, identity: str, *, key: str | None) -> PublishedTable:
    table = lake.table(name, "id INT, v STRING, n INT", key=key, enableDeletionVectors="true")
    if identity:
        lake.sql(f"ALTER TABLE {name} REPLICA IDENTITY {identity}")
    return table


@pytest.mark.parametrize("binary", [False, in_make_faults(True)])
def test_full_without_a_key_keeps_equal_rows_apart(published: PublishingLake, binary: bool) -> None:
    table = table_of(published, f"full_{binary}".lower(), "FULL", key=None)
    table.run("INSERT INTO {t} VALUES (1, 'a', NULL), (1, 'a', NULL), (1, 'a', NULL), (2, 'b', 0)")
    subscriber = table.follow(binary=binary)
    table.run("INSERT INTO {t} VALUES (1, 'a', NULL), (NULL, NULL, NULL)")
    assert len(subscriber.catch_up()) == 2
    table.run("DELETE FROM {t} WHERE id = 1", "INSERT INTO {t} VALUES (1, 'a', NULL)")
    assert [change[0] for change in subscriber.catch_up_at_once()] == ["D", "D", "D"]
    table.run("UPDATE {t} SET v = 'x' WHERE v IS NULL OR id = 2")
    assert [change[0] for change in subscriber.catch_up()] == ["D", "D", "I", "I"]


@part_of_make_faults
def test_full_with_a_key_sends_old_rows(published: PublishingLake) -> None:
    table = table_of(published, "full_keyed", "FULL", key="id")
    table.run(_ROWS)
    subscriber = table.follow()
    table.run("UPDATE {t} SET v = NULL WHERE id = 2", "DELETE FROM {t} WHERE id = 1")
    assert subscriber.catch_up() == ["U 2,,20 was 2,b,20", "D 1,a,10"]
    table.run("UPDATE {t} SET id = 9 WHERE id = 3")
    assert subscriber.catch_up() == ["D 3,c,30", "I 9,c,30"]


@part_of_make_faults
def test_identity_by_other_columns_than_the_primary_key(published: PublishingLake) -> None:
    table = table_of(published, "using_key", "USING KEY (v, n)", key="id")
    table.run(_ROWS)
    subscriber = table.follow()
    table.run("UPDATE {t} SET id = 7 WHERE id = 1", "DELETE FROM {t} WHERE id = 2")
    assert subscriber.catch_up() == ["U 7,a,10", "D ,b,20"]
    table.run("UPDATE {t} SET v = 'z' WHERE id = 3")
    assert subscriber.catch_up() == ["D ,c,30", "I 3,z,30"]


@pytest.mark.parametrize(
    ("identity", "key"),
    [("NOTHING", "id"), in_make_faults("NOTHING", None), in_make_faults("", None)],
    ids=str,
)
def test_without_an_identity_the_stream_stops(
    published: PublishingLake, identity: str, key: str | None
) -> None:
    name = f"bare_{identity}_{key}".lower()
    table = table_of(published, name, identity, key=key)
    table.run(_ROWS)
    subscriber = table.follow()
    table.run("INSERT INTO {t} VALUES (4, 'd', 40)")
    assert subscriber.catch_up() == ["I 4,d,40"]
    table.run("DELETE FROM {t} WHERE id = 1")
    with pytest.raises(NotInPrerequisiteState) as refused:
        subscriber.catch_up()
    assert refused.value.message == (
        f'cannot delete from table "{name}" because it does not have a replica identity and '
        "publishes deletes"
    )
    assert refused.value.hint == (
        "To enable deleting from the table, set REPLICA IDENTITY using ALTER TABLE."
    )
    published.sql(f"ALTER PUBLICATION p_{name} SET (publish = 'insert, update')")
    subscriber = table.again(subscriber)
    table.run("UPDATE {t} SET v = 'x' WHERE id = 2")
    with pytest.raises(NotInPrerequisiteState) as refused:
        subscriber.catch_up()
    assert refused.value.message == (
        f'cannot update table "{name}" because it does not have a replica identity and '
        "publishes updates"
    )
    assert refused.value.hint == (
        "To enable updating the table, set REPLICA IDENTITY using ALTER TABLE."
    )


def test_duplicate_keys_stop_the_stream(published: PublishingLake) -> None:
    table = table_of(published, "twice", "", key="id")
    table.run("INSERT INTO {t} VALUES (1, 'a', 1), (1, 'b', 2), (2, 'c', 3), (NULL, 'd', 4)")
    subscriber = table.follow()
    table.run("UPDATE {t} SET n = 0 WHERE id < 3")
    with pytest.raises(PenstockError) as refused:
        subscriber.catch_up()
    assert refused.value.sqlstate == "23505"
    assert refused.value.message == 'key of table "public.twice" is not unique'
    assert refused.value.detail == "There are several rows with the same (id): 1."
    subscriber = table.again(subscriber)
    table.run("DELETE FROM {t} WHERE id IS NULL")
    with pytest.raises(PenstockError) as refused:
        subscriber.catch_up()
    assert refused.value.sqlstate == "23502"
    assert refused.value.message == (
        'null value in column "id" of relation "twice" violates not-null constraint'
    )


@part_of_make_faults
def test_duplicates_that_a_writer_only_moves_stop_nothing(published: PublishingLake) -> None:
    """They cancel as often as they are there; Spark writes the whole file again for each update."""
    table = published.table("moved", "id INT, v STRING, n INT", enableDeletionVectors="false")
    equal, alike, without = "(1, 'a', 1), (1, 'a', 1)", "(1, 'b', 2)", "(NULL, 'd', 4)"
    table.run(f"INSERT INTO {{t}} VALUES {equal}, {alike}, {without}, {without}, (2, 'c', 3)")
    table.run("OPTIMIZE {t}")
    subscriber = table.follow()
    table.run("UPDATE {t} SET n = 0 WHERE id = 2")
    assert subscriber.catch_up() == ["U 2,c,0"]
    table.run("DELETE FROM {t} WHERE id = 2")
    assert subscriber.catch_up() == ["D 2,,"]
    table.run("UPDATE {t} SET n = 0 WHERE v = 'a'")
    with pytest.raises(PenstockError, match=r'key of table "public\.moved" is not unique'):
        subscriber.catch_up()


def test_duplicates_that_a_row_filter_leaves_out_stop_nothing(published: PublishingLake) -> None:
    table = published.table("left_out", "id INT, v STRING, n INT", enableDeletionVectors="false")
    published.sql("ALTER TABLE left_out REPLICA IDENTITY USING KEY (id, n)")
    table.run("INSERT INTO {t} VALUES (1, 'a', 1), (1, 'b', 1), (2, 'c', 20), (3, 'd', 30)")
    table.run("OPTIMIZE {t}")
    subscriber = table.follow("left_out WHERE (n > 15)", where="n > 15")
    table.run("UPDATE {t} SET v = concat(v, 'x')")
    assert sorted(subscriber.catch_up()) == ["U 2,cx,20", "U 3,dx,30"]
    table.run("DELETE FROM {t} WHERE id < 3")
    assert subscriber.catch_up() == ["D 2,,20"]


@part_of_make_faults
def test_row_filters_turn_updates_into_inserts_and_deletes(published: PublishingLake) -> None:
    table = table_of(published, "filtered", "USING KEY (id, n)", key=None)
    published.sql("ALTER TABLE filtered REPLICA IDENTITY FULL")
    published.sql("ALTER TABLE filtered ADD PRIMARY KEY (id)")
    table.run(_ROWS)
    subscriber = table.follow("filtered WHERE (n > 15)", where="n > 15")
    table.run("INSERT INTO {t} VALUES (4, 'd', 5), (5, 'e', 50), (6, 'f', NULL)")
    assert subscriber.catch_up() == ["I 5,e,50"]
    table.run("UPDATE {t} SET n = n + 10 WHERE id IN (1, 2, 4, 6)")
    assert subscriber.catch_up() == ["U 2,b,30 was 2,b,20", "I 1,a,20"]
    table.run("UPDATE {t} SET n = if(id = 5, NULL, 0) WHERE id IN (3, 5, 4)")
    assert sorted(subscriber.catch_up()) == ["D 3,c,30", "D 5,e,50"]
    table.run("DELETE FROM {t} WHERE id < 4")
    assert sorted(subscriber.catch_up()) == ["D 1,a,20", "D 2,b,30"]


@part_of_make_faults
def test_column_lists_leave_columns_out(published: PublishingLake) -> None:
    table = table_of(published, "listed", "", key="id")
    table.run(_ROWS)
    subscriber = table.follow("listed (n, id)", columns=("id", "n"))
    table.run("INSERT INTO {t} VALUES (4, 'd', 40)", "UPDATE {t} SET n = 21 WHERE id = 2")
    assert subscriber.catch_up() == ["I 4,40", "U 2,21"]
    table.run("DELETE FROM {t} WHERE id = 1")
    assert subscriber.catch_up() == ["D 1,"]
    published.sql("ALTER TABLE listed REPLICA IDENTITY USING KEY (v)")
    table.run("DELETE FROM {t} WHERE id = 2")
    with pytest.raises(PenstockError) as refused:
        subscriber.catch_up()
    assert refused.value.sqlstate == "42P10"
    assert refused.value.message == 'cannot delete from table "listed"'


@pytest.mark.parametrize(
    ("name", "generated", "identity", "published_as"),
    [
        ("all_listed", "", "FULL", "(id, n)"),
        in_make_faults("not_filtered_by_key", "", "DEFAULT", "WHERE (n > 15)"),
        in_make_faults("unpublished", ", g INT GENERATED ALWAYS AS (n * 2)", "FULL", ""),
    ],
)
def test_what_a_server_refuses_stops_the_stream(
    name: str,
    generated: str,
    identity: str,
    published_as: str,
    published: PublishingLake,
    database: Database,
) -> None:
    """Other writers did it all the same; the error is the one that they would have got there."""
    stored = generated and f"{generated} STORED"
    database.execute(
        f"CREATE TABLE {name} (id int PRIMARY KEY, n int{stored});"
        f"ALTER TABLE {name} REPLICA IDENTITY {identity};"
        f"CREATE PUBLICATION p FOR TABLE {name} {published_as}"
    )
    table = published.table(name, f"id INT, n INT{generated}")
    published.sql(f"ALTER TABLE {name} REPLICA IDENTITY {identity}")
    table.run("INSERT INTO {t} (id, n) VALUES (1, 10), (2, 20), (3, 30)")
    subscriber = table.follow(f"{name} {published_as}", columns=("id", "n"))
    for statement in ("UPDATE {t} SET n = 40 WHERE id = 2", "DELETE FROM {t} WHERE id = 3"):
        with database.connect() as connection, pytest.raises(psycopg.Error) as theirs:
            connection.execute(statement.format(t=name))
        table.run(statement)
        with pytest.raises(PenstockError) as ours:
            subscriber.catch_up()
        error = ours.value
        assert (error.sqlstate, error.message, error.detail) == (
            theirs.value.sqlstate,
            theirs.value.diag.message_primary,
            theirs.value.diag.message_detail,
        )
        subscriber = table.again(subscriber)
