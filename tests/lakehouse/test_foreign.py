"""What Spark's RESTORE takes away, what other writers may do, and tables that are made again."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.tables import ACCOUNTS, APP, accounts, again, commit, spark_ids, write
from penstock.errors import CommitConflict, NotInPrerequisiteState, StateMismatch
from penstock.lakehouse.cuts import Cut, CutTable
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.table_id import table_id
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.node import reading

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
        (["RESTORE TABLE {t} TO VERSION AS OF 1"], 3),
        (["DELETE FROM {t} WHERE id = 1", "RESTORE TABLE {t} TO VERSION AS OF 2"], None),
        (["DELETE FROM {t} WHERE id = 1", "RESTORE TABLE {t} TO VERSION AS OF 1"], 4),
        (
            ["RESTORE TABLE {t} TO VERSION AS OF 1", "RESTORE TABLE {t} TO VERSION AS OF 2"],
            None,
        ),
        (["RESTORE TABLE {t} TO VERSION AS OF 1", "INSERT INTO {t} VALUES (9, 'x')"], 3),
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
    for look in (lambda: started.check_restored(OURS), followed.reload):
        with pytest.raises(StateMismatch, match=f"in version {taken}") as caught:
            look()
    hint = str(caught.value.hint)
    spark.sql(hint[hint.index("RESTORE") : hint.index(", then")])
    followed.reload()
    assert {1, 2, 3} - {1 if "DELETE" in statements[0] else 0} <= set(spark_ids(spark, followed))


@pytest.mark.spark
def test_a_cut_is_of_the_tables_it_names(
    followed: DeltaTable, spark: SparkSession, tmp_path: Path
) -> None:
    followed.checkpoint()
    assert table_id(followed.storage, followed.uri) == followed.id
    commit(followed, 300)
    assert table_id(followed.storage, followed.uri) == followed.id
    pin = CutTable(followed.uri, 2, followed.id)
    now = datetime.now(UTC)
    name = ("public", "accounts")
    cut = Cut("s", Lsn(200), None, {name: pin}, now)
    assert reading.read(spark, cut, name).count() == 3
    warehouse = Warehouse(str(tmp_path), False)
    warehouse.remove("public", "accounts")
    with pytest.raises(NotInPrerequisiteState, match="no longer there"):
        reading.read(spark, cut, name)
    made_again = warehouse.create("public", "accounts", ACCOUNTS)
    for version in (1, 2):
        made_again.stage(written=write(made_again, [version + 50]))
        commit(made_again, version)
    with pytest.raises(NotInPrerequisiteState, match="no longer there"):
        reading.register_views(spark, cut)
    with pytest.raises(StateMismatch, match="another one"):
        followed.reload()
    assert table_id(warehouse.storage, warehouse.table_uri("public", "none")) is None
