"""What rewrites of files publish: OPTIMIZE, REORG, RESTORE, CLONE, CREATE OR REPLACE, VACUUM."""

from __future__ import annotations

import pytest

from faults.heavy import part_of_make_faults
from penstock.errors import RequiredChangesRemoved
from penstock.pipeline.compact import CompactOptions, TableAt, due_files, put_in_place, rewrite
from pipeline.published import PublishedTable, PublishingLake, vacuum

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_names = iter(range(1000))


def items(lake: PublishingLake, **properties: str) -> PublishedTable:
    """Rows in several small files, one of them with a deletion vector."""
    table = lake.table(
        f"layout_{next(_names)}", "id INT, v STRING", enableDeletionVectors="true", **properties
    )
    table.run(
        "INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, 'a' FROM range(10)",
        "INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, 'b' FROM range(10, 14)",
        "DELETE FROM {t} WHERE id IN (1, 11)",
    )
    return table


@part_of_make_faults
def test_moved_rows_are_not_sent(published: PublishingLake) -> None:
    table = items(published)
    subscriber = table.follow()
    table.run("OPTIMIZE {t}")
    assert subscriber.catch_up() == []
    table.run("INSERT INTO {t} VALUES (20, 'n')", "OPTIMIZE {t} ZORDER BY (id)")
    assert subscriber.catch_up() == ["I 20,n"]
    table.run("DELETE FROM {t} WHERE id = 3", "REORG TABLE {t} APPLY (PURGE)")
    assert subscriber.catch_up() == ["D 3,"]
    table.run("ALTER TABLE {t} SET TBLPROPERTIES (x = 'y')")
    assert subscriber.catch_up() == []


@part_of_make_faults
def test_a_range_with_compactions_in_between(published: PublishingLake) -> None:
    """What a subscription of the node publishes: all from cut to cut is one transaction."""
    table = items(published)
    subscriber = table.follow()
    table.run(
        "INSERT INTO {t} VALUES (20, 'n'), (21, 'n')",
        "OPTIMIZE {t}",
        "UPDATE {t} SET v = 'u' WHERE id IN (2, 20)",
        "DELETE FROM {t} WHERE id IN (3, 21)",
        "REORG TABLE {t} APPLY (PURGE)",
        "INSERT INTO {t} VALUES (3, 'back'), (1, 'a')",
    )
    sent = subscriber.catch_up_at_once()
    assert sorted(sent) == ["I 1,a", "I 20,u", "U 2,u", "U 3,back"]
    table.run(
        "DELETE FROM {t} WHERE id = 5",
        "OPTIMIZE {t}",
        "INSERT INTO {t} VALUES (5, 'a')",
        "DELETE FROM {t} WHERE id = 6",
        "OPTIMIZE {t}",
    )
    assert subscriber.catch_up_at_once() == ["D 6,"]


@part_of_make_faults
def test_the_node_compacts_while_rows_are_deleted(published: PublishingLake) -> None:
    """The new file has rows that are deleted, from the commit on that names it."""
    table = items(published)
    subscriber = table.follow()
    at_once = table.again(subscriber)
    table.run("INSERT INTO {t} VALUES (20, 'n'), (21, 'n'), (22, 'n')")
    opened = published.warehouse.open("public", table.name)
    assert opened is not None
    merge = CompactOptions(small_files=2)
    at = TableAt.now(opened)
    done = rewrite(published.spark, at, due_files(at, merge), merge)
    table.run("DELETE FROM {t} WHERE id IN (2, 12, 21)")
    opened.reload()
    assert put_in_place(opened, done)
    assert [file.deleted for file in opened.files.values()] == [3]
    table.run("DELETE FROM {t} WHERE id IN (3, 22)")
    sent = sorted(["I 20,n", "I 21,n", "I 22,n", "D 2,", "D 12,", "D 21,", "D 3,", "D 22,"])
    assert sorted(subscriber.catch_up()) == sent
    assert sorted(at_once.catch_up_at_once()) == ["D 12,", "D 2,", "D 3,", "I 20,n"]


@part_of_make_faults
def test_restore_sends_the_way_back(published: PublishingLake) -> None:
    table = items(published)
    subscriber = table.follow()
    there = subscriber.version
    table.run(
        "DELETE FROM {t} WHERE id = 2",
        "UPDATE {t} SET v = 'u' WHERE id = 3",
        "OPTIMIZE {t}",
        "INSERT INTO {t} VALUES (30, 'n')",
    )
    assert len(subscriber.catch_up()) == 3
    table.run("RESTORE TABLE {t} TO VERSION AS OF {version}", version=str(there))
    assert sorted(subscriber.catch_up()) == ["D 30,", "I 2,a", "U 3,a"]
    back = subscriber.version
    table.run("DELETE FROM {t} WHERE id = 4")
    table.run("RESTORE TABLE {t} TO VERSION AS OF {version}", version=str(back))
    assert subscriber.catch_up_at_once() == []
    table.run("RESTORE TABLE {t} TO VERSION AS OF 1")
    assert sorted(subscriber.catch_up()) == [
        *(f"D {i}," for i in (10, 12, 13)),
        "I 1,a",
    ]


@part_of_make_faults
def test_a_clone_into_a_published_table(published: PublishingLake) -> None:
    table, source = items(published), items(published)
    subscriber = table.follow()
    source.run("UPDATE {t} SET v = 'u' WHERE id = 2", "DELETE FROM {t} WHERE id = 12")
    # Delta clones into empty tables only; both commits at once are the difference
    table.run("DELETE FROM {t}")
    table.run("CREATE OR REPLACE TABLE {t} SHALLOW CLONE delta.`{source}`", source=source.uri)
    assert sorted(subscriber.catch_up_at_once()) == ["D 12,", "U 2,u"]
    table.run("DELETE FROM {t} WHERE id = 3", "UPDATE {t} SET v = 'w' WHERE id = 4")
    assert subscriber.catch_up() == ["D 3,", "U 4,w"]
    table.run("OPTIMIZE {t}")
    assert subscriber.catch_up() == []


def test_create_or_replace_sends_the_difference(published: PublishingLake) -> None:
    table = items(published)
    subscriber = table.follow()
    table.run(
        "CREATE OR REPLACE TABLE {t} USING delta AS "
        "SELECT CAST(id AS INT) id, if(id = 2, 'u', 'a') v FROM range(3)"
    )
    sent = sorted(subscriber.catch_up())
    gone = sorted(f"D {i}," for i in (3, 4, 5, 6, 7, 8, 9, 10, 12, 13))
    assert sent == [*gone, "I 1,a", "U 2,u"]


@part_of_make_faults
def test_vacuum_of_what_nobody_needs_sends_nothing(published: PublishingLake) -> None:
    table = items(published)
    table.run("OPTIMIZE {t}")
    subscriber = table.follow()
    vacuum(published.spark, table.uri)
    table.run("INSERT INTO {t} VALUES (40, 'n')")
    assert subscriber.catch_up() == ["I 40,n"]


@part_of_make_faults
def test_vacuum_of_what_is_needed_loses_the_slot(published: PublishingLake) -> None:
    table = items(published)
    subscriber = table.follow()
    table.run("DELETE FROM {t} WHERE id < 5", "REORG TABLE {t} APPLY (PURGE)")
    vacuum(published.spark, table.uri)
    with pytest.raises(RequiredChangesRemoved) as lost:
        subscriber.catch_up()
    assert lost.value.sqlstate == "55000"
    assert "VACUUM has removed it" in (lost.value.detail or "")


def test_a_removed_log_entry_loses_the_slot(published: PublishingLake) -> None:
    table = items(published)
    subscriber = table.follow()
    table.run("INSERT INTO {t} VALUES (50, 'n')")
    published.sequencer.step()
    published.warehouse.storage.remove(f"{table.uri}/_delta_log/{4:020d}.json")
    with pytest.raises(RequiredChangesRemoved):
        subscriber.catch_up()
