"""Upkeep beside the batches of a session: put in place, or thrown away, and never in their way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable as DeltaRs
from pyspark.sql import SparkSession

from penstock.catalog import Catalog, SubscriptionRelState
from penstock.errors import ApplierReplaced, CommitConflict, StateMismatch, StorageError
from penstock.lakehouse.log import list_log
from penstock.lakehouse.table import DeltaTable
from penstock.pipeline.compact import CompactOptions
from penstock.subscription.target import Target
from penstock.subscription.targets import Targets
from penstock.subscription.upkeep import Upkeep, UpkeepOptions
from pipeline.history import Publisher
from pipeline.lake import APP, Lake
from subscription.no_definitions import a_subscription, no_definitions

pytestmark = pytest.mark.spark

OPTIONS = UpkeepOptions(CompactOptions(small_files=2), checkpoint_commits=1000, cuts_kept=1000)


@dataclass
class Session:
    """One table of one subscription, with rows in several small files."""

    lake: Lake
    source: Publisher
    targets: Targets
    target: Target
    upkeep: Upkeep

    @property
    def table(self) -> DeltaTable:
        return self.target.table

    def batch(self) -> None:
        """As an applier does it, up to where upkeep follows."""
        self.lake.follow(self.table, self.source)
        self.targets.changed([self.target])

    def insert(self, *keys: int) -> None:
        """A batch."""
        for a in keys:
            self.source.insert({"a": a})
        self.batch()

    def put(self) -> None:
        """What was begun is done, and taken between two batches."""
        self.upkeep.wait()
        self.upkeep.between_batches()

    @property
    def unnamed(self) -> set[str]:
        """Data files that the table does not have."""
        return self.lake.data_files(self.table) - set(self.table.files)


@pytest.fixture
def session(spark: SparkSession, tmp_path: Path) -> Iterator[Session]:
    lake = Lake(spark, tmp_path / "warehouse")
    source = Publisher({"a": pa.int32()}, key=("a",))
    table = lake.create(source)
    for a in range(2):
        source.insert({"a": 2 * a})
        source.insert({"a": 2 * a + 1})
        lake.follow(table, source)
    with Catalog.create(f"sqlite:///{tmp_path / 'state.db'}") as catalog:
        with catalog.write() as t:
            oid = t.subscriptions.create("s", conninfo="", publications=("p",), slot_name="s").oid
            t.relations.add(oid, {("public", "t"): 1}, SubscriptionRelState.READY)
        targets = Targets(lake.warehouse, a_subscription(APP), catalog, no_definitions())
        target = targets.open(catalog.relations(oid)[0])
        assert target is not None
        upkeep = Upkeep(spark, targets, lake.warehouse.cuts, OPTIONS)
        yield Session(lake, source, targets, target, upkeep)
        upkeep.wait()


def test_a_lost_race_of_a_compaction(session: Session) -> None:
    """Upkeep that loses a race takes no commit of another applier for its own."""
    rival = session.lake.warehouse.open("public", "t")
    assert rival is not None
    upkeep, target = session.upkeep, session.target
    upkeep.after_cut()
    # Somebody else: the newest version is loaded, and the next round compacts it.
    rival.commit(app_id="other", version_marker=1, operation="WRITE")
    upkeep.wait()
    thrown_away = session.unnamed
    assert thrown_away
    upkeep.between_batches()  # the next round writes its own file beside what follows
    assert target.table.version == rival.version
    assert len(target.table.files) == 2
    assert not session.unnamed & thrown_away
    # The same subscription, further on.
    assert target.marker is not None
    upkeep.wait()
    rival.commit(app_id=APP, version_marker=target.marker + 1, operation="REPLICATION")
    with pytest.raises(ApplierReplaced, match="another applier"):
        upkeep.after_cut()


def test_a_table_that_is_restored_meanwhile(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch that meets it says so, which may park the table: upkeep leaves it alone."""
    session.upkeep.after_cut()
    DeltaRs(session.table.uri).restore(1)
    session.put()
    session.put()
    assert [r.getMessage() for r in caplog.records if "restored to an older state" in r.message]
    assert not session.unnamed
    session.source.insert({"a": 10})
    session.lake.stage((session.table, session.source))
    with pytest.raises(CommitConflict):
        session.lake.commit(session.table)
    with pytest.raises(StateMismatch, match="restored to an older state"):
        session.targets.load_again(session.target)


def test_batches_go_on_while_files_are_rewritten(session: Session) -> None:
    session.upkeep.after_cut()
    session.source.delete(1)
    session.insert(10)
    session.put()
    assert len(session.table.files) == 2  # the merged one, and that of the batch
    assert sum(file.deleted for file in session.table.files.values()) == 1
    session.lake.check(session.table, session.source)
    session.source.delete(0)
    session.batch()
    session.lake.check(session.table, session.source)


def test_a_table_that_is_parked_meanwhile(session: Session) -> None:
    session.upkeep.after_cut()
    session.upkeep.wait()
    version = session.table.version
    session.targets.close(session.target)
    session.put()
    session.table.reload()
    assert session.table.version == version
    assert not session.unnamed
    session.put()  # nothing is left to do


def test_a_table_that_is_copied_again_meanwhile(session: Session) -> None:
    session.upkeep.after_cut()
    session.upkeep.wait()
    rel = session.target.rel
    session.targets.close(session.target)
    session.lake.warehouse.remove("public", "t")
    table = session.lake.create(session.source)
    added = session.targets.add(replace(rel, relid=None, table_id=table.id), table)
    session.put()
    assert (added.table.version, added.table.files) == (0, {})
    assert not session.lake.data_files(table)


def test_the_end_of_the_session(session: Session) -> None:
    held = session.lake.data_files(session.table)
    session.upkeep.after_cut()
    session.upkeep.wait()
    assert session.unnamed
    session.upkeep.close()
    assert session.lake.data_files(session.table) == held
    session.insert(10)


def test_a_checkpoint_beside_commits(session: Session) -> None:
    none = CompactOptions(small_files=1000)
    session.upkeep.options = replace(OPTIONS, compact=none, checkpoint_commits=2)
    session.upkeep.after_cut()
    session.insert(10)
    session.put()
    session.insert(11)
    session.put()
    session.insert(12)
    session.upkeep.wait()
    found = list_log(session.table.storage, session.table.uri).checkpoints
    assert found
    reopened = session.lake.warehouse.open("public", "t")
    assert reopened is not None
    session.lake.check(reopened, session.source)


def test_what_fails_is_left_alone_for_a_while(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    lost = next(iter(session.table.files))
    Path(session.table.uri.removeprefix("file://"), lost).unlink()
    for _ in range(3):
        session.upkeep.after_cut()
        session.upkeep.wait()
    told = [each for each in caplog.records if each.levelname == "WARNING"]
    assert len(told) == 1
    assert lost in told[0].getMessage()
    assert not session.table.has_staged


def test_what_cannot_be_looked_at_is_left_alone_for_a_while(
    session: Session, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As what cannot be rewritten is: the other tables are looked at all the same."""

    def damaged(*_: object) -> None:
        raise StorageError("a damaged entry")

    monkeypatch.setattr("penstock.subscription.upkeep.due_files", damaged)
    for _ in range(3):
        session.upkeep.after_cut()
        session.upkeep.wait()
    assert caplog.text.count("upkeep: a damaged entry") == 1


def test_cuts_that_cannot_be_pruned_are_told_of(
    session: Session, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StorageError("no space left on device")

    monkeypatch.setattr(session.lake.warehouse.cuts, "prune", full)
    session.upkeep.options = replace(OPTIONS, checkpoint_commits=1)
    session.upkeep.after_cut()
    session.put()
    assert "upkeep of the cuts: no space left on device" in caplog.text


def test_only_what_has_changed_is_looked_at(session: Session) -> None:
    targets, target = session.targets, session.target
    assert list(targets.take_changed()) == [target]
    assert not targets.take_changed()
    targets.changed([target])
    targets.close(target)
    assert not targets.take_changed()
