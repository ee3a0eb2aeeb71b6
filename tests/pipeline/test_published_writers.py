"""Tables of other writers and kinds: delta-rs, change data feeds; random series of operations."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults.heavy import in_make_faults, part_of_make_faults
from pipeline.published import PublishedTable, PublishingLake

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_names = iter(range(1000))


def rows(*values: tuple[int, str | None]) -> pa.Table:
    ids, texts = zip(*values, strict=True)
    return pa.table({"id": pa.array(ids, pa.int32()), "v": pa.array(texts, pa.string())})


@pytest.mark.parametrize("partitioned", [False, True])
def test_tables_of_delta_rs(published: PublishingLake, partitioned: bool) -> None:
    table = PublishedTable(published, f"rs_{partitioned}".lower())
    path = table.uri.removeprefix("file://")
    by = ["v"] if partitioned else None
    write_deltalake(path, rows((1, "a b/ü%=:"), (2, "b"), (3, None)), partition_by=by)
    published.sequencer.step(discover=True)
    published.sql(f"ALTER TABLE {table.name} ADD PRIMARY KEY (id)")
    subscriber = table.follow()
    write_deltalake(path, rows((4, "d"), (5, "a b/ü%=:")), mode="append")
    assert sorted(subscriber.catch_up()) == ["I 4,d", "I 5,a b/ü%=:"]
    DeltaTable(path).delete("id = 5")
    assert subscriber.catch_up() == ["D 5,"]
    DeltaTable(path).update(predicate="id = 1", updates={"v": "'x'"})
    assert subscriber.catch_up() == ["U 1,x"]
    merge = DeltaTable(path).merge(rows((2, "bb"), (9, "n")), "t.id = s.id", "s", "t")
    merge = merge.when_matched_update_all().when_not_matched_insert_all()
    merge.when_not_matched_by_source_delete("t.id = 3").execute()
    assert sorted(subscriber.catch_up()) == ["D 3,", "I 9,n", "U 2,bb"]
    DeltaTable(path).optimize.compact()
    DeltaTable(path).create_checkpoint()
    assert subscriber.catch_up() == []
    write_deltalake(path, rows((2, "bb"), (1, "over")), mode="overwrite")
    assert sorted(subscriber.catch_up()) == ["D 4,", "D 9,", "U 1,over"]
    DeltaTable(path).restore(0)
    assert sorted(subscriber.catch_up()) == ["I 3,", "U 1,a b/ü%=:", "U 2,b"]


@part_of_make_faults
def test_views_that_delta_rs_has_written(published: PublishingLake) -> None:
    """What delta-rs rewrites has its engine's layout; a vector of Spark's makes us filter it."""
    table = PublishedTable(published, "rs_views")
    path = table.uri.removeprefix("file://")
    write_deltalake(path, rows(*((i, f"v{i}") for i in range(10))))
    DeltaTable(path).update(predicate="id < 8", updates={"v": "'x'"})
    files = DeltaTable(path).file_uris()
    assert pa.string_view() in {t for f in files for t in pq.read_schema(f).types}
    published.sequencer.step(discover=True)
    published.sql(f"ALTER TABLE {table.name} ADD PRIMARY KEY (id)")
    subscriber = table.follow()
    table.run("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    table.run("DELETE FROM {t} WHERE id IN (2, 9)")
    assert sorted(subscriber.catch_up()) == ["D 2,", "D 9,"]
    table.run("UPDATE {t} SET v = 'y' WHERE id = 3", "REORG TABLE {t} APPLY (PURGE)")
    assert subscriber.catch_up() == ["U 3,y"]


@pytest.mark.parametrize("vectors", [*map(in_make_faults, ("false", "true"))])
def test_change_data_files_are_not_sent_twice(published: PublishingLake, vectors: str) -> None:
    table = published.table(
        f"cdf_{vectors}",
        "id INT, v STRING",
        enableChangeDataFeed="true",
        enableDeletionVectors=vectors,
    )
    table.run("INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, 'a' FROM range(1, 6)")
    subscriber = table.follow()
    table.run("UPDATE {t} SET v = 'u' WHERE id = 1")
    assert "_change_data" in json.dumps(written(table)) or vectors == "true"
    table.run(
        "DELETE FROM {t} WHERE id = 2",
        "MERGE INTO {t} t USING (SELECT * FROM VALUES (3, 'm'), (7, 'n') AS s(id, v)) s "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *",
    )
    assert subscriber.catch_up() == ["U 1,u", "D 2,", "U 3,m", "I 7,n"]


def written(table: PublishedTable) -> list[str]:
    storage = table.lake.warehouse.storage
    return [
        line
        for version in range(10)
        if storage.exists(uri := f"{table.uri}/_delta_log/{version:020d}.json")
        for line in storage.read(uri).decode().splitlines()
    ]


_ID = st.integers(1, 6)
_OPERATION = st.one_of(
    st.tuples(st.just("UPDATE {{t}} SET v = '{0}' WHERE id % 3 = {1}"), _ID, st.integers(0, 2)),
    st.tuples(st.just("DELETE FROM {{t}} WHERE id = {0}"), _ID),
    st.tuples(st.just("UPDATE {{t}} SET id = id + 10 WHERE id = {0}"), _ID),
    st.tuples(
        st.just(
            "MERGE INTO {{t}} t USING (SELECT CAST({0} AS INT) id) s ON t.id = s.id "
            "WHEN NOT MATCHED THEN INSERT (id, v) VALUES (s.id, 'merged')"
        ),
        _ID,
    ),
    st.tuples(
        st.just("INSERT OVERWRITE {{t}} SELECT /*+ COALESCE(1) */ id, v FROM {{t}} WHERE id > {0}"),
        _ID,
    ),
    st.tuples(st.just("OPTIMIZE {{t}}")),
    st.tuples(st.just("REORG TABLE {{t}} APPLY (PURGE)")),
    st.tuples(st.just("RESTORE TABLE {{t}} TO VERSION AS OF {0}"), _ID),
)


@part_of_make_faults
@settings(
    max_examples=3,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    operations=st.lists(_OPERATION, min_size=3, max_size=6),
    vectors=st.booleans(),
    keyed=st.booleans(),
)
def test_any_series_of_operations(
    published: PublishingLake, operations: list[tuple[object, ...]], vectors: bool, keyed: bool
) -> None:
    """Commit by commit, and all at once as between two cuts."""
    table = published.table(
        f"series_{next(_names)}",
        "id INT, v STRING",
        key="id" if keyed else None,
        enableDeletionVectors=str(vectors).lower(),
    )
    if not keyed:
        published.sql(f"ALTER TABLE {table.name} REPLICA IDENTITY FULL")
    for first in (1, 3, 5):
        table.run(
            "INSERT INTO {t} SELECT /*+ COALESCE(1) */ id, 'a' FROM range({first}, {last})",
            first=str(first),
            last=str(first + 2),
        )
    table.run("DELETE FROM {t} WHERE id = 5", "INSERT INTO {t} VALUES (5, 'again')", "OPTIMIZE {t}")
    by_commit = table.follow()
    at_once = table.again(by_commit)
    for text, *values in operations:
        table.run(str(text).format(*values))
    by_commit.catch_up()
    published.work_mem = 250  # several tasks, by the key's hash
    at_once.catch_up_at_once()
    published.work_mem = 1 << 40
