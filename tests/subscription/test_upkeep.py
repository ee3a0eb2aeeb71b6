"""Upkeep that loses a race takes no commit of another applier for its own."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.catalog import Catalog, SubscriptionRelState
from penstock.errors import ApplierReplaced
from penstock.pipeline.compact_choice import CompactOptions
from penstock.subscription.targets import Targets
from penstock.subscription.upkeep import Upkeep, UpkeepOptions
from pipeline.history import Publisher
from pipeline.lake import APP, Lake

OPTIONS = UpkeepOptions(CompactOptions(small_files=2), checkpoint_commits=1000, cuts_kept=1000)


@pytest.mark.spark
def test_a_lost_race_of_a_compaction(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(spark, tmp_path / "warehouse")
    source = Publisher({"a": pa.int32()}, key=("a",))
    table = lake.create(source)
    for a in range(2):
        source.insert({"a": a})
        lake.follow(table, source)
    with Catalog.create(f"sqlite:///{tmp_path / 'state.db'}") as catalog:
        with catalog.write() as t:
            oid = t.subscriptions.create("s", conninfo="", publications=("p",), slot_name="s").oid
            t.relations.add(oid, {("public", "t"): 1}, SubscriptionRelState.READY)
        targets = Targets(lake.warehouse, APP, "s", catalog, lambda oid, names: ())
        target = targets.open(catalog.relations(oid)[0])
        assert target is not None
        upkeep = Upkeep(spark, targets, lake.warehouse.cuts, OPTIONS)
        rival = lake.warehouse.open("public", "t")
        assert rival is not None
        # Somebody else: the newest version is loaded, and the next round compacts it.
        upkeep.after_cut()
        rival.commit(app_id="other", version_marker=1, operation="WRITE")
        upkeep.wait()
        upkeep.after_cut()
        assert target.table.version == rival.version
        assert len(target.table.files) == 2
        # The same subscription, further on.
        assert target.marker is not None
        upkeep.wait()
        rival.commit(app_id=APP, version_marker=target.marker + 1, operation="REPLICATION")
        with pytest.raises(ApplierReplaced, match="another applier"):
            upkeep.after_cut()
