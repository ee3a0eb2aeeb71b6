"""What statements on rows publish: INSERT, UPDATE, DELETE, MERGE, overwrites, deletes of all."""

from __future__ import annotations

import pytest

from faults.heavy import in_make_faults, part_of_make_faults
from pipeline.published import PublishedTable, PublishingLake

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_VECTORS = [in_make_faults(False), True]
_names = iter(range(1000))


def items(lake: PublishingLake, *, vectors: bool = True, clauses: str = "") -> PublishedTable:
    """Five rows in two files."""
    table = lake.table(
        f"items_{next(_names)}",
        "id INT, v STRING, part INT",
        clauses=clauses,
        enableDeletionVectors=str(vectors).lower(),
    )
    table.run(
        "INSERT INTO {t} SELECT /*+ COALESCE(1) */ * FROM "
        "VALUES (1, 'a', 0), (2, 'b', 0), (3, 'c', 1)",
        "INSERT INTO {t} SELECT /*+ COALESCE(1) */ * FROM VALUES (4, 'd', 1), (5, NULL, 0)",
    )
    return table


@pytest.mark.parametrize("vectors", _VECTORS)
@pytest.mark.parametrize("binary", [False, in_make_faults(True)])
def test_rows_come_change_and_go(published: PublishingLake, vectors: bool, binary: bool) -> None:
    table = items(published, vectors=vectors)
    subscriber = table.follow(binary=binary)
    table.run("INSERT INTO {t} VALUES (6, 'f', 0), (7, 'g', 1)")
    assert len(subscriber.catch_up()) == 2
    table.run("UPDATE {t} SET v = 'x' WHERE id IN (1, 6)")
    assert [change[0] for change in subscriber.catch_up()] == ["U", "U"]
    table.run("DELETE FROM {t} WHERE id = 2")
    (change,) = subscriber.catch_up()
    assert change.startswith("D") and (binary or change == "D 2,,")
    table.run("DELETE FROM {t} WHERE id IN (4, 5)")
    assert [change[0] for change in subscriber.catch_up()] == ["D", "D"]


@pytest.mark.parametrize("vectors", [in_make_faults(False), True])
def test_an_update_that_changes_nothing_sends_nothing(
    published: PublishingLake, vectors: bool
) -> None:
    table = items(published, vectors=vectors)
    subscriber = table.follow()
    table.run("UPDATE {t} SET v = v")
    assert subscriber.catch_up() == []
    table.run("UPDATE {t} SET v = 'b'")
    assert sorted(subscriber.catch_up()) == ["U 1,b,0", "U 3,b,1", "U 4,b,1", "U 5,b,0"]


@pytest.mark.parametrize("vectors", [in_make_faults(False), True])
def test_a_changed_key_is_a_delete_and_an_insert(published: PublishingLake, vectors: bool) -> None:
    table = items(published, vectors=vectors)
    subscriber = table.follow()
    table.run("UPDATE {t} SET id = id + 1 WHERE id > 3")
    assert subscriber.catch_up() == ["D 4,,", "U 5,d,1", "I 6,,0"]


@pytest.mark.parametrize("vectors", [in_make_faults(False), True])
def test_merge_inserts_updates_and_deletes(published: PublishingLake, vectors: bool) -> None:
    table = items(published, vectors=vectors)
    subscriber = table.follow()
    table.run(
        "MERGE INTO {t} t USING (SELECT * FROM VALUES (1, 'new'), (3, NULL), (5, 'e'), (9, 'i') "
        "AS s(id, v)) s ON t.id = s.id "
        "WHEN MATCHED AND s.v IS NULL THEN DELETE "
        "WHEN MATCHED THEN UPDATE SET v = s.v "
        "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, s.v) "
        "WHEN NOT MATCHED BY SOURCE AND t.id = 2 THEN DELETE"
    )
    sent = subscriber.catch_up()
    assert sorted(sent) == ["D 2,,", "D 3,,", "I 9,i,", "U 1,new,0", "U 5,e,0"]


@pytest.mark.parametrize("vectors", [in_make_faults(False), True])
def test_everything_is_deleted(published: PublishingLake, vectors: bool) -> None:
    table = items(published, vectors=vectors)
    subscriber = table.follow()
    table.run("DELETE FROM {t}")
    assert sorted(subscriber.catch_up()) == [f"D {i},," for i in range(1, 6)]
    table.run("DELETE FROM {t}")
    assert subscriber.catch_up() == []
    table.run("INSERT INTO {t} VALUES (1, 'again', 0)", "TRUNCATE TABLE {t}")
    assert subscriber.catch_up() == ["I 1,again,0", "D 1,,"]


@pytest.mark.parametrize("clauses", [in_make_faults(""), "PARTITIONED BY (part)"])
def test_overwrites_send_the_difference(published: PublishingLake, clauses: str) -> None:
    table = items(published, clauses=clauses)
    subscriber = table.follow()
    table.run("INSERT OVERWRITE {t} VALUES (1, 'a', 0), (2, 'changed', 0), (6, 'f', 2)")
    sent = sorted(subscriber.catch_up())
    assert sent == ["D 3,,", "D 4,,", "D 5,,", "I 6,f,2", "U 2,changed,0"]
    spark = published.spark
    rows = spark.createDataFrame([(2, "b", 0), (7, "g", 0)], "id INT, v STRING, part INT")
    writer = rows.coalesce(1).write.format("delta").mode("overwrite")
    writer.option("replaceWhere", "part = 0").save(table.uri)
    assert sorted(subscriber.catch_up()) == ["D 1,,", "I 7,g,0", "U 2,b,0"]
    rows.coalesce(1).write.format("delta").mode("overwrite").save(table.uri)
    assert subscriber.catch_up() == ["D 6,,"]


@part_of_make_faults
def test_dynamic_partition_overwrite(published: PublishingLake) -> None:
    table = items(published, clauses="PARTITIONED BY (part)")
    subscriber = table.follow()
    rows = published.spark.createDataFrame([(3, "c", 1)], "id INT, v STRING, part INT")
    writer = rows.write.format("delta").mode("overwrite")
    writer.option("partitionOverwriteMode", "dynamic").save(table.uri)
    assert subscriber.catch_up() == ["D 4,,"]
    table.run("DELETE FROM {t} WHERE part = 0")
    assert sorted(subscriber.catch_up()) == ["D 1,,", "D 2,,", "D 5,,"]


@part_of_make_faults
def test_a_row_moves_to_another_partition(published: PublishingLake) -> None:
    table = items(published, clauses="PARTITIONED BY (part)")
    subscriber = table.follow()
    table.run("UPDATE {t} SET part = 7 WHERE id = 2")
    assert subscriber.catch_up() == ["U 2,b,7"]
    table.run("UPDATE {t} SET part = NULL WHERE id = 2")
    assert subscriber.catch_up() == ["U 2,b,"]


@part_of_make_faults
def test_more_than_comes_back_with_the_result(published: PublishingLake) -> None:
    """Megabytes of one task go through the staging area, which is empty afterwards."""
    table = published.table("large", "id BIGINT, v STRING", key=None, enableDeletionVectors="true")
    published.sql("ALTER TABLE large REPLICA IDENTITY FULL")
    subscriber = table.follow()
    table.run("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, repeat('x', 200) FROM range(20000)")
    assert len(subscriber.catch_up()) == 20000
    table.run("DELETE FROM {t} WHERE id % 2 = 0")
    assert len(subscriber.catch_up()) == 10000
    staging = f"{published.warehouse.uri}/_penstock/staging"
    assert published.warehouse.storage.list(staging) == []
