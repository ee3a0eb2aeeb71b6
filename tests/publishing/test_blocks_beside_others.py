"""Transaction blocks whose tables others change between the blocks' commits, or after a crash.

Without Spark: others write by ``DeltaTable``, or entries of a log themselves.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import deltalake
import psycopg
import pytest
from pyroaring import BitMap

from penstock import failpoint
from penstock.catalog import BlockCommit
from penstock.catalog.block_commits import BlockCommits
from penstock.errors import StorageError
from penstock.executor import block_commit, modify
from penstock.executor.block_commit import CommitBlocks
from penstock.lakehouse import xact
from penstock.lakehouse.change import StagedCommit
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.log import list_log
from penstock.lakehouse.log_store import LocalLogStore
from penstock.lakehouse.storage import Storage, local_path
from penstock.lakehouse.table import DeltaTable
from publishing.lake_node import LakeNode

Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeNode]:
    folder = tmp_path_factory.mktemp("beside") / "node"
    with LakeNode(folder, None, max_prepared_transactions=5) as started:
        yield started


def opened(lake: LakeNode, name: str) -> DeltaTable:
    assert lake.node.serving is not None
    table = lake.node.serving._warehouse.open("public", name)
    assert table is not None
    return table


def after_put(monkeypatch: Patch, table: str, act: Callable[[], None]) -> None:
    """Others act when a block has put its commit of a table."""
    put = StagedCommit.put

    def patched(commit: StagedCommit, *state: Any) -> int:
        version = put(commit, *state)
        if commit.change.name == f"public.{table}":
            act()
        return version

    monkeypatch.setattr(StagedCommit, "put", patched)


def delete_all(table: DeltaTable) -> None:
    gone = {path: BitMap(range(file.rows)) for path, file in table.files.items()}
    table.stage(deleted=gone)
    table.commit(app_id="somebody else", operation="DELETE")


def optimize(table: DeltaTable) -> None:
    """Every file of live rows alone is copied."""
    for path, file in list(table.files.items()):
        if file.deleted:
            continue
        copy = f"copy-{path}"
        content = table.storage.read(f"{table.uri}/{path}")
        table.storage.write(f"{table.uri}/{copy}", content)
        table.stage(rewritten={path: WrittenFile(copy, file.size, file.rows, file.stats)})
    table.commit(app_id="somebody else", operation="OPTIMIZE", data_change=False)


def set_property(table: DeltaTable, name: str, value: str) -> None:
    metadata = {**table.state.metadata, "configuration": {**table.properties, name: value}}
    table._store.put(table.uri, table.version + 1, [json.dumps({"metaData": metadata})])


def test_what_was_taken_back_can_be_read(lake: LakeNode, monkeypatch: Patch) -> None:
    """By who looks at an older version; and what others have copied of it is told to slots."""
    lake.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    lake.execute("INSERT INTO b VALUES (1)", "CREATE PUBLICATION ab FOR TABLE a, b")
    lake.execute("SELECT pg_create_logical_replication_slot('ab', 'test_decoding')")

    def others() -> None:
        optimize(opened(lake, "a"))
        delete_all(opened(lake, "b"))

    with monkeypatch.context() as patched:
        after_put(patched, "a", others)
        with pytest.raises(psycopg.errors.SerializationFailure):
            lake.execute("BEGIN; INSERT INTO a VALUES (7); DELETE FROM b; COMMIT")
    lake.execute("ROLLBACK")
    uri = opened(lake, "a").uri
    for version in range(opened(lake, "a").version + 1):
        for file in deltalake.DeltaTable(uri, version=version).file_uris():
            assert Path(unquote(urlparse(file).path)).exists(), version
    assert lake.rows("SELECT * FROM a") == [(7,)], "nobody can tell the copy from others' rows"
    told = lake.rows("SELECT data FROM pg_logical_slot_get_changes('ab', NULL, NULL)")
    assert ("table public.a: INSERT: id[integer]:7",) in told


@contextlib.contextmanager
def stopped(monkeypatch: Patch, place: str) -> Iterator[None]:
    """What stands for kill -9."""

    def stop(name: str) -> None:
        if name == place:
            raise RuntimeError(name)

    with monkeypatch.context() as patched:
        patched.setattr(block_commit, "failpoint", stop)
        yield


def test_a_table_that_may_not_be_written_after_a_crash(lake: LakeNode, monkeypatch: Patch) -> None:
    """The block is rolled back, the node starts, and other blocks go on meanwhile."""
    for table in "cde":
        lake.execute(f"CREATE TABLE {table} (id int)")
    lake.execute("INSERT INTO d VALUES (1)")
    with (
        stopped(monkeypatch, failpoint.BETWEEN_BLOCK_COMMITS),
        lake.connect() as session,
        pytest.raises(psycopg.Error),
    ):
        session.execute("BEGIN; INSERT INTO c VALUES (1); DELETE FROM d; COMMIT")
    set_property(opened(lake, "d"), "delta.appendOnly", "true")
    lake.execute("BEGIN; INSERT INTO e VALUES (1); INSERT INTO e VALUES (2); COMMIT")
    assert opened(lake, "c").rows == 1, "not taken back by others"
    assert lake.node.serving is not None
    lake.node.serving._blocks.finish()
    assert opened(lake, "c").rows == 0
    with lake.node._catalog.read() as t:
        assert t.block_commits.all() == ()
    assert lake.rows("SELECT count(*) FROM e") == [(2,)]
    lake.execute("BEGIN; INSERT INTO c VALUES (2); INSERT INTO e VALUES (3); COMMIT")
    assert lake.rows("SELECT * FROM c") == [(2,)]


def test_a_state_store_whose_answer_is_lost(lake: LakeNode, monkeypatch: Patch) -> None:
    """A block whose COMMIT has failed is not committed later; one that is there has not failed."""
    lake.execute("CREATE TABLE f (id int)", "CREATE TABLE g (id int)")
    put = BlockCommits.put

    def lost(commits: BlockCommits, block: BlockCommit) -> None:
        put(commits, block)
        commits.connection.commit()
        raise StorageError("no answer", sqlstate="58030")

    def failing(commits: CommitBlocks, block: BlockCommit) -> None:
        raise StorageError("no answer", sqlstate="58030")

    assert lake.node.serving is not None
    cases = ((False, True, "58030"), (True, True, "40003"), (True, False, None))
    for number, (forgetting_fails, noting_fails, sqlstate) in enumerate(cases, 1):
        with monkeypatch.context() as patched, contextlib.closing(lake.connect()) as session:
            if noting_fails:
                patched.setattr(BlockCommits, "put", lost)
            if forgetting_fails:
                patched.setattr(CommitBlocks, "_forget", failing)
            raised = None
            session.execute(
                f"BEGIN; INSERT INTO f VALUES ({number}); INSERT INTO g VALUES ({number})"
            )
            try:
                session.execute("COMMIT")
            except psycopg.Error as error:
                raised = error.sqlstate
        assert raised == sqlstate
        lake.node.serving._blocks.finish()
    lake.node.serving.sequencer.step()
    there = sorted(lake.rows("SELECT * FROM f"))
    assert there == sorted(lake.rows("SELECT * FROM g")) == [(2,), (3,)]


@pytest.mark.parametrize(
    ("done", "readable", "sqlstate"),
    [(True, True, None), (False, True, "58030"), (True, False, "40003"), (False, False, "40003")],
)
def test_one_table_whose_commit_is_not_answered(
    lake: LakeNode, monkeypatch: Patch, *, done: bool, readable: bool, sqlstate: str | None
) -> None:
    """The log is asked, and where it cannot be, the client is told so."""
    name = f"j{done:d}{readable:d}"
    lake.execute(f"CREATE TABLE {name} (id int)")
    put = LocalLogStore.put

    def lost(store: LocalLogStore, uri: str, version: int, lines: list[str]) -> None:
        if done:
            put(store, uri, version, lines)
        if not readable:
            patched.setattr(Storage, "exists", unread)
            patched.setattr(xact, "read_entry", unread)
        raise StorageError("no answer", sqlstate="58030")

    def unread(*_: object) -> None:
        raise StorageError("no answer again", sqlstate="58030")

    raised = None
    with monkeypatch.context() as patched, contextlib.closing(lake.connect()) as session:
        session.execute(f"BEGIN; INSERT INTO {name} VALUES (1), (2)")
        patched.setattr(LocalLogStore, "put", lost)
        try:
            session.execute("COMMIT")
        except psycopg.Error as error:
            raised = error
    assert (None if raised is None else raised.sqlstate) == sqlstate
    if sqlstate == "40003":
        assert raised is not None and "whether the table has its rows" in str(raised)
    assert opened(lake, name).rows == (2 if done else 0)
    assert lake.rows(f"SELECT count(*) FROM {name}") == [(2 * done,)], "its files are there"


@pytest.mark.parametrize("undoing_fails", [False, True])
def test_a_last_commit_whose_answer_is_lost(
    lake: LakeNode, monkeypatch: Patch, *, undoing_fails: bool
) -> None:
    """The log has the block: it is not taken back behind the back of those who were told."""
    h, i = f"h{undoing_fails:d}", f"i{undoing_fails:d}"
    lake.execute(f"CREATE TABLE {h} (id int)", f"CREATE TABLE {i} (id int)")

    def lost() -> None:
        raise StorageError("no answer", sqlstate="58030")

    with monkeypatch.context() as patched:
        after_put(patched, i, lost)
        if undoing_fails:
            patched.setattr(StagedCommit, "undo", lambda commit: lost())
        lake.execute(f"BEGIN; INSERT INTO {h} VALUES (1); INSERT INTO {i} VALUES (1); COMMIT")
    assert lake.node.serving is not None
    lake.node.serving._blocks.finish()
    for table in (h, i):
        assert lake.rows(f"SELECT * FROM {table}") == [(1,)] and opened(lake, table).rows == 1


@pytest.mark.parametrize("interval", ["0", "often", ""])
def test_a_checkpoint_interval_of_others(lake: LakeNode, interval: str) -> None:
    """delta-rs writes any text; what is committed is not told as failed."""
    name = f"every_{interval}"
    lake.execute(f"CREATE TABLE {name} (id int)")
    set_property(opened(lake, name), "delta.checkpointInterval", interval)
    for number in range(10):
        lake.execute(f"INSERT INTO {name} VALUES ({number})")
    assert lake.rows(f"SELECT count(*) FROM {name}") == [(10,)]
    table = opened(lake, name)
    assert list_log(table.storage, table.uri).checkpoints.keys() == {10}


def test_a_checkpoint_that_cannot_be_written(lake: LakeNode) -> None:
    lake.execute("CREATE TABLE every_one (id int)")
    table = opened(lake, "every_one")
    set_property(table, "delta.checkpointInterval", "1")
    Path(local_path(table.uri), "_delta_log", "._last_checkpoint.crc").mkdir()
    lake.execute("BEGIN; INSERT INTO every_one VALUES (1); COMMIT")
    assert lake.rows("SELECT * FROM every_one") == [(1,)]


@pytest.fixture
def halves(lake: LakeNode, request: pytest.FixtureRequest) -> Iterator[str]:
    """A table with two partitions, a row in each, and a slot."""
    name = f"halves_{abs(hash(request.node.name))}"
    lake.execute(
        f"CREATE TABLE {name} (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        f"CREATE TABLE {name}_1 PARTITION OF {name} FOR VALUES FROM (0) TO (10)",
        f"CREATE TABLE {name}_2 PARTITION OF {name} FOR VALUES FROM (10) TO (20)",
        f"INSERT INTO {name} VALUES (1), (11)",
        f"DELETE FROM {name} WHERE id = 1",
        f"INSERT INTO {name} VALUES (2), (3)",
        f"DELETE FROM {name} WHERE id = 2",
    )
    lake.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'test_decoding')")
    yield name
    lake.execute(f"SELECT pg_drop_replication_slot('{name}')", f"DROP TABLE {name}")


def told(lake: LakeNode, slot: str) -> list[str]:
    """What a slot gets, without BEGIN and COMMIT, and without the table's name."""
    options = "NULL, NULL, 'skip-empty-xacts', 'true'"
    found = lake.rows(f"SELECT data FROM pg_logical_slot_get_changes('{slot}', {options})")
    changes = (data for (data,) in found if data.startswith("table"))
    return [change.replace(f"public.{slot}", "") for change in changes]


def test_truncate_is_of_all_partitions_or_none(
    lake: LakeNode, halves: str, monkeypatch: Patch
) -> None:
    put = StagedCommit.put

    def failing(commit: StagedCommit, *state: Any) -> int:
        if commit.change.name == f"public.{halves}_2":
            raise StorageError("the disk is full", sqlstate="53100")
        return put(commit, *state)

    with monkeypatch.context() as patched:
        patched.setattr(StagedCommit, "put", failing)
        with pytest.raises(psycopg.errors.DiskFull):
            lake.execute(f"TRUNCATE {halves}")
    assert sorted(lake.rows(f"SELECT * FROM {halves}")) == [(3,), (11,)]
    assert opened(lake, f"{halves}_1").rows == opened(lake, f"{halves}_2").rows == 1
    assert told(lake, halves) == []
    lake.execute(f"TRUNCATE {halves}", f"INSERT INTO {halves} VALUES (5)")
    assert lake.rows(f"SELECT * FROM {halves}") == [(5,)]
    assert told(lake, halves) == [
        "table _1, _2: TRUNCATE: (no-flags)",
        "table _1: INSERT: id[integer]:5",
    ]


@pytest.mark.parametrize("others", [False, True], ids=["alone", "others"])
def test_truncate_that_stops_between_two_partitions(
    lake: LakeNode, halves: str, monkeypatch: Patch, *, others: bool
) -> None:
    """It goes on, unless others have added rows meanwhile: then it is taken back."""
    with (
        stopped(monkeypatch, failpoint.BETWEEN_BLOCK_COMMITS),
        lake.connect() as session,
        pytest.raises(psycopg.Error),
    ):
        session.execute(f"TRUNCATE {halves}")
    assert opened(lake, f"{halves}_1").rows == 0 and told(lake, halves) == []
    if others:
        lake.execute(f"INSERT INTO {halves}_2 VALUES (12)", f"INSERT INTO {halves}_1 VALUES (5)")
    assert lake.node.serving is not None
    lake.node.serving._blocks.finish()
    found = sorted(lake.rows(f"SELECT * FROM {halves}"))
    assert found == ([(3,), (5,), (11,), (12,)] if others else [])
    inserts = ["table _1: INSERT: id[integer]:5", "table _2: INSERT: id[integer]:12"]
    truncate = ["table _1, _2: TRUNCATE: (no-flags)"]
    assert sorted(told(lake, halves)) == (inserts if others else truncate)


@pytest.mark.parametrize("end", ["COMMIT", "PREPARE TRANSACTION 'late'"])
def test_rules_that_come_while_a_block_is_open(lake: LakeNode, end: str) -> None:
    """A server's ALTER TABLE would wait for the block."""
    cases = (
        ("INSERT INTO r1 VALUES (100)", "ALTER TABLE r ATTACH PARTITION r1 FOR VALUES IN (1)"),
        ("INSERT INTO r VALUES (25)", "CREATE TABLE r2 PARTITION OF r FOR VALUES IN (25)"),
        ("INSERT INTO r VALUES (7)", "ALTER TABLE r DETACH PARTITION rd"),
        ("INSERT INTO r1 VALUES (1), (1)", "CREATE UNIQUE INDEX ON r1 (id)"),
        ("INSERT INTO r1 VALUES (0); UPDATE r1 SET id = 5", "CREATE UNIQUE INDEX ON r1 (id)"),
    )
    for change, command in cases:
        lake.execute("CREATE TABLE r (id int) PARTITION BY LIST (id)", "CREATE TABLE r1 (id int)")
        lake.execute("CREATE TABLE rd PARTITION OF r DEFAULT", "INSERT INTO r1 VALUES (1)")
        with contextlib.closing(lake.connect()) as session:
            session.execute(f"BEGIN; SELECT 1; {change}")
            lake.execute(command)
            with pytest.raises(psycopg.errors.SerializationFailure, match="was altered"):
                session.execute(end)
        lake.execute("INSERT INTO rd VALUES (50)")
        assert sorted(lake.rows("SELECT id FROM r1")) == [(1,)]
        assert sorted(lake.rows("SELECT id FROM rd")) == [(50,)]
        for table in ("r", "r1", "r2", "rd"):
            lake.execute(f"DROP TABLE IF EXISTS {table}")


def test_a_partition_of_a_subscription_that_cannot_be_written(
    lake: LakeNode, halves: str, monkeypatch: Patch
) -> None:
    """The client is told what has happened, and in which partitions."""
    put = StagedCommit.put

    def failing(commit: StagedCommit, *state: Any) -> int:
        if commit.change.name == f"public.{halves}_2":
            raise StorageError("the disk is full", sqlstate="53100")
        return put(commit, *state)

    with monkeypatch.context() as patched:
        patched.setattr(modify, "_is_filled", lambda *_: True)
        patched.setattr(StagedCommit, "put", failing)
        with pytest.raises(psycopg.errors.StatementCompletionUnknown) as raised:
            lake.execute(f"TRUNCATE {halves}")
    assert raised.value.diag.message_primary == "the disk is full"
    assert f'"public.{halves}_1"' in (raised.value.diag.message_hint or "")
    assert lake.rows(f"SELECT * FROM {halves}") == [(11,)]
    assert told(lake, halves) == ["table _1: TRUNCATE: (no-flags)"]
