"""What Spark's RESTORE takes away, what other writers may do, and tables that are made again."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable as DeltaRs
from deltalake import write_deltalake
from pyroaring import BitMap
from pyspark.sql import SparkSession

from faults.heavy import in_make_faults, part_of_make_faults
from lakehouse.tables import ACCOUNTS, APP, accounts, again, commit, spark_ids, write
from penstock.errors import CommitConflict, NotInPrerequisiteState, StateMismatch
from penstock.lakehouse.cuts import Cut, CutTable
from penstock.lakehouse.foreign import COPY
from penstock.lakehouse.identity import newest_table_id
from penstock.lakehouse.state import load_at
from penstock.lakehouse.storage import Storage, local_path
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.node import node

OURS = 2
"""The version of our last commit."""


@pytest.fixture
def followed(tmp_path: Path) -> DeltaTable:
    """Versions 1 and 2 are ours: rows 1, 2 and row 3."""
    table = accounts(tmp_path)
    for version, ids in ((1, (1, 2)), (2, (3,))):
        table.stage(written=write(table, ids))
        assert commit(table, version * 100) == version
    return table


@pytest.mark.spark
@pytest.mark.parametrize(
    ("statements", "taken"),
    [
        in_make_faults(["RESTORE TABLE {t} TO VERSION AS OF 1"], 3),
        (["DELETE FROM {t} WHERE id = 1", "RESTORE TABLE {t} TO VERSION AS OF 2"], None),
        in_make_faults(["DELETE FROM {t} WHERE id = 1", "RESTORE TABLE {t} TO VERSION AS OF 1"], 4),
        in_make_faults(
            ["RESTORE TABLE {t} TO VERSION AS OF 1", "RESTORE TABLE {t} TO VERSION AS OF 2"],
            None,
        ),
        in_make_faults(
            ["RESTORE TABLE {t} TO VERSION AS OF 1", "INSERT INTO {t} VALUES (9, 'x')"], 3
        ),
        (["INSERT INTO {t} VALUES (9, 'x')", "UPDATE {t} SET owner = 'y'"], None),
    ],
    ids=["ours", "theirs", "both", "and back", "then a write", "no restore"],
)
def test_restore(
    followed: DeltaTable, spark: SparkSession, statements: list[str], taken: int | None
) -> None:
    for statement in statements:
        spark.sql(statement.format(t=f"delta.`{followed.uri}`"))
    started = again(followed)
    assert started.transaction_version(APP) == 200, "the marker stays, whatever became of the rows"
    followed.stage(written=write(followed, [4]))
    with pytest.raises(CommitConflict):
        commit(followed, 300)
    if taken is None:
        started.check_restored(OURS)
        started.check_restored(-1)
        followed.reload()
        return
    looks: tuple[Callable[[], object], ...] = (
        lambda: started.check_restored(OURS),
        followed.reload,
    )
    for look in looks:
        with pytest.raises(StateMismatch, match=f"in version {taken}") as caught:
            look()
    hint = str(caught.value.hint)
    spark.sql(hint[hint.index("RESTORE") :].rstrip("."))
    followed.reload()
    assert {1, 2, 3} - {1 if "DELETE" in statements[0] else 0} <= set(spark_ids(spark, followed))


def test_a_compaction_of_a_file_as_it_was_before_rows_were_deleted(followed: DeltaTable) -> None:
    """The file is still there, with a newer deletion vector: the rows would be back."""
    path = next(path for path, file in followed.files.items() if file.rows == 2)
    followed.stage(deleted={path: BitMap([0])})
    assert commit(followed, 300) == 3
    folder = Path(local_path(followed.uri))
    shutil.copy(folder / path, folder / "moved.parquet")
    file = {"dataChange": False, "partitionValues": {}, "modificationTime": 1}
    entry = [
        {"commitInfo": {"operation": "OPTIMIZE"}},
        {"remove": {"path": path, "dataChange": False, "deletionTimestamp": 1}},
        {"add": {**file, "path": "moved.parquet", "size": (folder / path).stat().st_size}},
    ]
    lines = "\n".join(map(json.dumps, entry))
    (folder / "_delta_log" / f"{4:020}.json").write_text(lines, encoding="utf-8")
    with pytest.raises(StateMismatch, match="from an older state in version 4"):
        again(followed).check_restored(OURS)


@pytest.mark.spark
@pytest.mark.parametrize("late", [in_make_faults(False), True], ids=["in time", "late"])
def test_a_compaction_by_others(followed: DeltaTable, spark: SparkSession, late: bool) -> None:
    """delta-rs does not see that a compaction was first."""
    other = DeltaRs(local_path(followed.uri))
    rows = spark_ids(spark, followed)
    if late:
        moved = write(followed, rows)
        followed.stage(remove_all=True, written=moved)
        followed.commit(app_id=APP, version_marker=200, operation="OPTIMIZE", data_change=False)
    other.optimize.compact()
    followed.stage(written=write(followed, [4]))
    with pytest.raises(CommitConflict):
        commit(followed, 300)
    if not late:
        followed.reload()
        assert spark_ids(spark, followed) == rows
        return
    started = again(followed)
    looks: tuple[Callable[[], object], ...] = (
        lambda: started.check_restored(OURS),
        followed.reload,
    )
    for look in looks:
        with pytest.raises(StateMismatch, match="from an older state in version 4") as caught:
            look()
    restore = re.search(r"RESTORE TABLE \S+ TO VERSION AS OF \d+", str(caught.value.hint))
    assert restore is not None
    spark.sql(restore[0])
    followed.reload()
    again(followed).check_restored(OURS)
    assert spark_ids(spark, followed) == rows


def moved(table: DeltaTable, version: int, old: str, new: str, operation: str) -> None:
    """An entry of another writer, with one file in place of another one."""
    folder = Path(local_path(table.uri))
    if not (folder / new).exists():
        shutil.copy(folder / old, folder / new)
    file = {"dataChange": operation == "RESTORE", "partitionValues": {}, "modificationTime": 1}
    entry = [
        {"commitInfo": {"operation": operation}},
        {"remove": {"path": old, "dataChange": False, "deletionTimestamp": 1}},
        {"add": {**file, "path": new, "size": (folder / new).stat().st_size}},
    ]
    lines = "\n".join(map(json.dumps, entry))
    (folder / "_delta_log" / f"{version:020}.json").write_text(lines, encoding="utf-8")


@pytest.mark.parametrize("checkpoint", [None, 3, 4], ids=["none", "before", "between"])
def test_a_log_that_was_cleaned_still_tells_of_its_entries(
    followed: DeltaTable, checkpoint: int | None
) -> None:
    """A subscription was stopped for longer than entries are kept."""
    old = next(iter(followed.files))
    followed.stage(written=write(followed, [4]))
    assert commit(followed, 300) == 3
    if checkpoint == 3:
        followed.checkpoint()
    moved(followed, 4, old, "first.parquet", "OPTIMIZE")
    later = again(followed)
    if checkpoint == 4:
        later.checkpoint()
    moved(followed, 5, old, "late.parquet", "OPTIMIZE")
    now = again(followed)
    for version in range(3 if checkpoint is None else checkpoint):
        (Path(local_path(followed.uri)) / "_delta_log" / f"{version:020}.json").unlink()
    with pytest.raises(StateMismatch, match="from an older state in version 5"):
        now.check_restored(OURS)


def test_a_restore_after_harm_takes_what_we_have_committed_since(followed: DeltaTable) -> None:
    old = next(iter(followed.files))
    moved(followed, 3, old, "first.parquet", "OPTIMIZE")
    moved(followed, 4, old, "late.parquet", "OPTIMIZE")
    table = again(followed)
    table.stage(written=write(table, [4]))
    assert commit(table, 300) == 5
    with pytest.raises(StateMismatch, match="in version 4") as caught:
        again(followed).check_restored(OURS)
    assert "No version of it holds the right rows." in str(caught.value.detail)
    restore(followed, 6, to=3)
    with pytest.raises(StateMismatch, match="in version 4") as caught:
        again(followed).check_restored(OURS)
    assert caught.value.hint is None


def restore(table: DeltaTable, version: int, *, to: int) -> None:
    """As a RESTORE of Spark's, which takes seconds, writes it."""
    entry = [{"commitInfo": {"operation": "RESTORE"}}, *restored(table, to)]
    lines = "\n".join(map(json.dumps, entry))
    _entry(table, version).write_text(lines, encoding="utf-8")


def restored(table: DeltaTable, to: int) -> list[dict[str, dict[str, object]]]:
    """Actions of a RESTORE to a version."""
    wanted, have = load_at(table.storage, table.uri, to), again(table)
    size = {path: (Path(local_path(table.uri)) / path).stat().st_size for path in wanted.files}
    file = {"dataChange": True, "partitionValues": {}, "modificationTime": 1}
    return [
        *({"remove": {"path": p, "dataChange": True}} for p in have.files if p not in size),
        *({"add": {**file, "path": p, "size": size[p]}} for p in size if p not in have.files),
    ]


def _entry(table: DeltaTable, version: int) -> Path:
    return Path(local_path(table.uri)) / "_delta_log" / f"{version:020}.json"


@pytest.mark.spark
@part_of_make_faults
def test_a_restore_as_spark_writes_it(followed: DeltaTable, spark: SparkSession) -> None:
    for to, version in ((1, 3), (2, 4)):
        ours = restored(followed, to)
        spark.sql(f"RESTORE TABLE delta.`{followed.uri}` TO VERSION AS OF {to}")
        theirs = [json.loads(line) for line in _entry(followed, version).read_text().splitlines()]

        def changes(actions: list[dict[str, dict[str, object]]]) -> list[object]:
            return [
                (kind, action["path"], action["dataChange"], action.get("deletionVector"))
                for each in actions
                for kind, action in each.items()
                if kind in ("add", "remove")
            ]

        assert changes(theirs) == changes(ours) != []


@pytest.mark.parametrize(("version", "ids"), [(1, (7,)), (0, ())], ids=["rows", "none"])
def test_a_copy_after_a_restore_is_right(
    followed: DeltaTable, version: int, ids: tuple[int, ...]
) -> None:
    restore(followed, 3, to=version)
    with pytest.raises(StateMismatch):
        again(followed).check_restored(OURS)
    copy = again(followed)
    copy.replace(ACCOUNTS)
    copy.stage(written=write(copy, ids) if ids else ())
    copied = copy.commit(app_id=APP, version_marker=300, operation=COPY)
    for since in (OURS, -1):
        again(followed).check_restored(since)
    followed.reload()
    # What comes after it is looked at as before; no hint leads to before the copy.
    restore(followed, copied + 1, to=2)
    with pytest.raises(StateMismatch, match=f"in version {copied + 1}") as caught:
        again(followed).check_restored(OURS)
    assert f"VERSION AS OF {copied}." in str(caught.value.hint)
    late = again(followed)
    late.stage(written=write(late, [8]))
    commit(late, 400)
    with pytest.raises(StateMismatch, match=f"in version {copied + 1}") as caught:
        again(followed).check_restored(OURS)
    assert "RESTORE" not in str(caught.value.hint)


def test_a_restore_before_our_first_commit_takes_nothing(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    for number in (1, 2, 3):
        rows = pa.table({"id": pa.array([number]), "owner": ["theirs"]})
        write_deltalake(local_path(table.uri), rows, mode="append")
    table.reload()
    restore(table, 4, to=1)
    table.reload()
    table.stage(written=write(table, [4]))
    first = commit(table, 100)
    again(table).check_restored(2, APP)
    restore(table, first + 1, to=2)
    for since in (2, first):
        with pytest.raises(StateMismatch, match=f"in version {first + 1}"):
            again(table).check_restored(since, APP)


SHARD = "pg_16385"
"""Another subscription that fills the same table."""


def shard(table: DeltaTable, operation: str, *ids: int) -> int:
    other = again(table)
    if operation == COPY:
        other.replace(ACCOUNTS)
    other.stage(written=write(other, ids))
    return other.commit(app_id=SHARD, version_marker=7, operation=operation)


def test_who_has_filled_a_table_since_a_copy(followed: DeltaTable) -> None:
    assert followed.app_ids == {APP}
    shard(followed, "REPLICATION", 50)
    commit(again(followed), 300)
    table = again(followed)
    assert table.app_ids == {APP, SHARD}
    assert table.filled_by(APP, {SHARD}) == {SHARD}, "nothing was copied: from the first commit on"
    assert table.filled_by(SHARD, {APP}) == {APP}, "from before its own first commit too"
    table.replace(ACCOUNTS)
    table.commit(app_id=APP, version_marker=400, operation=COPY)
    assert not table.filled_by(APP, {SHARD})
    shard(table, "REPLICATION", 51)
    table = again(table)
    assert table.filled_by(APP, {SHARD}) == {SHARD}
    (Path(local_path(table.uri)) / "_delta_log" / f"{table.version:020}.json").unlink()
    assert table.filled_by(APP, {SHARD}) == {SHARD}, "where the log does not tell"


def test_a_copy_of_another_subscription_that_has_taken_rows(followed: DeltaTable) -> None:
    shard(followed, "REPLICATION", 50)
    again(followed).check_restored(OURS, APP)
    copied = shard(followed, COPY, 51)
    for since in (OURS, -1):
        with pytest.raises(StateMismatch, match=f"by another subscription in version {copied}"):
            again(followed).check_restored(since, APP)
    again(followed).check_restored(OURS, SHARD)
    again(followed).check_restored(copied, APP)


@pytest.mark.spark
def test_a_cut_is_of_the_tables_it_names(
    followed: DeltaTable, spark: SparkSession, tmp_path: Path
) -> None:
    followed.checkpoint()
    assert newest_table_id(followed.storage, followed.uri) == followed.id
    commit(followed, 300)
    assert newest_table_id(followed.storage, followed.uri) == followed.id
    pin = CutTable(followed.uri, 2, followed.id)
    now = datetime.now(UTC)
    name = ("public", "accounts")
    cut = Cut("s", Lsn(200), None, {name: pin}, now)
    assert node.read(spark, cut, name).count() == 3
    warehouse = Warehouse(str(tmp_path), False)
    warehouse.remove("public", "accounts")
    with pytest.raises(NotInPrerequisiteState, match="no longer there"):
        node.read(spark, cut, name)
    made_again = warehouse.create("public", "accounts", ACCOUNTS)
    for version in (1, 2):
        made_again.stage(written=write(made_again, [version + 50]))
        commit(made_again, version)
    with pytest.raises(NotInPrerequisiteState, match="no longer there"):
        node.register_views(spark, cut)
    with pytest.raises(StateMismatch, match="another one"):
        followed.reload()
    assert newest_table_id(warehouse.storage, warehouse.table_uri("public", "none")) is None


def test_a_checkpoint_that_was_read_and_is_another_one_now(tmp_path: Path) -> None:
    """Of a table that was removed, and made again with as many versions."""
    uri = str(tmp_path / "t")

    def made(first: int) -> set[str]:
        for number in range(3):
            write_deltalake(uri, pa.table({"id": [first + number]}), mode="append")
        DeltaRs(uri).create_checkpoint()
        state = load_at(Storage(str(tmp_path)), uri, 2)
        state.files["mine"] = next(iter(state.files.values()))  # no other reader's
        return {file.path for file in load_at(Storage(str(tmp_path)), uri, 2).files.values()}

    before = made(1)
    shutil.rmtree(uri)
    after = made(10)
    assert len(before) == len(after) == 3
    assert not before & after
    assert after == {Path(each).name for each in DeltaRs(uri).file_uris()}
