"""Places in S3 and Azure: URIs, the environment, settings without secrets; puts, leftovers, errors
of a real S3."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from pyroaring import BitMap

from fix_azurite import KEY
from fix_object_store import SECRET, ObjectStore
from lakehouse.tables import accounts, again, commit, delta_rs_ids, write
from penstock.errors import CommitConflict, ConfigurationError, StorageError
from penstock.lakehouse.deletion_vectors import VectorFile
from penstock.lakehouse.files import open_parquet
from penstock.lakehouse.log import entry_uri, list_log, read_entry
from penstock.lakehouse.log_store import ObjectLogStore, Unguarded, log_store, put_if_absent
from penstock.lakehouse.object_store import (
    Place,
    azure_settings,
    delta_rs_options,
    place_of,
    s3_settings,
    spark_conf,
)
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lakehouse.xact import Commit, TableLog
from penstock.pipeline.payload import remove_leftovers

_AZURE = "abfss://lake@acme.dfs.core.windows.net/wh"


@pytest.fixture
def s3_uri(s3: ObjectStore) -> str:
    """A place in a bucket of its own."""
    return f"s3://{s3.bucket()}/lake"


@pytest.mark.parametrize(
    ("uri", "place"),
    [
        ("s3://b/p/q/", Place("s3", "b", "p/q")),
        ("S3A://b", Place("s3a", "b", "")),
        (_AZURE, Place("abfss", "lake", "wh", "acme")),
    ],
)
def test_places(uri: str, place: Place) -> None:
    assert place_of(uri) == place


@pytest.mark.parametrize("uri", ["s3:///p", "abfss://container/p"])
def test_no_place(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="names no place"):
        place_of(uri)


def test_the_more_special_variable_wins() -> None:
    environment = {
        "AWS_ENDPOINT_URL": "https://all",
        "AWS_ENDPOINT_URL_S3": "http://s3",
        "AWS_DEFAULT_REGION": "r",
    }
    found = s3_settings(environment)
    assert (found.endpoint, found.region, found.plain) == ("http://s3", "r", True)


def test_settings_have_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ACCESS_KEY_ID": "AKIA",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": SECRET,
        "AZURE_STORAGE_ACCOUNT_KEY": KEY,
    }.items():
        monkeypatch.setenv(name, value)
    for uri in ("s3://b/p", _AZURE):
        shown = str(spark_conf(uri))
        assert SECRET not in shown and KEY not in shown and "AKIA" not in shown
    assert spark_conf(_AZURE) == {
        "spark.hadoop.fs.azure.account.key.acme.dfs.core.windows.net": (
            "${env.AZURE_STORAGE_ACCOUNT_KEY}"
        ),
        "spark.executorEnv.AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    }
    assert KEY not in repr(azure_settings("acme"))
    assert SECRET not in str(delta_rs_options("s3://b/p"))
    assert spark_conf("/local") == {}


def test_object_stores_need_no_session() -> None:
    assert isinstance(log_store(Storage("s3://b/wh"), None), ObjectLogStore)
    with pytest.raises(ConfigurationError, match="Spark session"):
        Warehouse("hdfs://name/wh").open("public", "t")


def test_an_object_is_put_once(s3_uri: str) -> None:
    put_if_absent(f"{s3_uri}/x", b"one")
    with pytest.raises(FileExistsError):
        put_if_absent(f"{s3_uri}/x", b"two")
    assert Storage(s3_uri).read(f"{s3_uri}/x") == b"one"


def test_an_entry_is_put_once_and_ours_is_not_lost(s3_uri: str) -> None:
    store = ObjectLogStore(Storage(s3_uri))
    store.put(s3_uri, 0, ["a"])
    store.put(s3_uri, 1, ["b"])
    store.put(s3_uri, 1, ["b"])  # asked again after an answer that was lost
    with pytest.raises(CommitConflict):
        store.put(s3_uri, 1, ["c"])
    with pytest.raises(StorageError, match=r"version 2 .* is gone"):
        store.put(s3_uri, 3, ["d"])
    assert Storage(s3_uri).read(entry_uri(s3_uri, 1)) == b"b\n"


def test_a_table_by_the_other_name_of_its_store(s3_uri: str) -> None:
    uri = s3_uri.replace("s3:", "s3a:")
    table = accounts(uri)
    for start in range(0, 50, 10):
        (file,) = write(table, range(start, start + 10))
        table.stage(written=[file])
        table.stage(deleted={file.path: BitMap([0])})
    commit(table, 1)
    seen = again(table)
    assert (seen.rows, len(seen.files)) == (45, 5)
    with open_parquet(table.uri, next(iter(seen.files))) as parquet:
        assert parquet.metadata.num_rows == 10
    assert delta_rs_ids(accounts_at(s3_uri)) == [i for i in range(50) if i % 10]


def accounts_at(uri: str) -> DeltaTable:
    """The table of a warehouse."""
    found = Warehouse(uri).open("public", "accounts")
    assert found is not None
    return found


def test_checkpoints_and_clean_up(s3_uri: str) -> None:
    table = accounts(s3_uri)
    for number in range(3):
        table.stage(written=write(table, [number]))
        commit(table, number + 1)
    everything = {"delta.logRetentionDuration": "interval 0 seconds"}
    ObjectLogStore(table.storage).checkpoint(table.uri, everything)
    listing = list_log(table.storage, table.uri)
    assert (listing.entries, list(listing.checkpoints)) == ((3,), [3])
    seen = again(table)
    assert (seen.version, delta_rs_ids(seen)) == (3, [0, 1, 2])
    table.stage(written=write(table, [3]))
    commit(table, 4)
    assert delta_rs_ids(again(table)) == [0, 1, 2, 3]


def test_what_a_killed_job_left_goes(s3_uri: str) -> None:
    storage, staging = Storage(s3_uri), f"{s3_uri}/_penstock/staging"
    storage.write(f"{staging}/batch.arrow", b"x")
    storage.write(f"{staging}/job/part.arrow", b"x")
    now = datetime.now(UTC)
    assert remove_leftovers(storage, now - timedelta(hours=1)) == 0
    assert remove_leftovers(storage, now + timedelta(hours=1)) == 2
    assert storage.list(staging) == []


def test_wrong_credentials_are_told(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = f"s3://{s3.bucket()}/lake"  # a bucket that no client of this process has opened yet
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    for refused in (
        lambda: Storage(uri).read(f"{uri}/x"),
        lambda: Storage(uri).list(uri),
        lambda: ObjectLogStore(Storage(uri)).put(uri, 0, [json.dumps({})]),
    ):
        with pytest.raises(StorageError) as caught:
            refused()
        assert caught.value.sqlstate == "42501"
        assert "AWS_ACCESS_KEY_ID" in (caught.value.hint or "")


@dataclass
class _Unanswered(Unguarded):
    """A log store whose answers are lost. ``does``: it puts the entry, all the same."""

    store: ObjectLogStore
    does: bool
    lost: int = 1

    def put(self, table_uri: str, version: int, lines: Sequence[str]) -> None:
        if self.does or not self.lost:
            self.store.put(table_uri, version, lines)
        if self.lost:
            self.lost -= 1
            raise StorageError("no answer")

    def checkpoint(self, table_uri: str, properties: Mapping[str, str]) -> None:
        """No test asks for it."""


@pytest.mark.parametrize("winner", [None, ['{"commitInfo":{}}']])
@pytest.mark.parametrize("does", [True, False])
def test_a_put_that_was_not_answered(s3_uri: str, does: bool, winner: list[str] | None) -> None:
    """The entry is there, or it comes with a second put, or another writer's has its place."""
    storage = Storage(s3_uri)
    store = ObjectLogStore(storage)
    log = TableLog(storage, _Unanswered(store, does), s3_uri)
    store.put(s3_uri, 0, ["{}"])
    vectors = VectorFile()
    vectors.add(BitMap([1]))
    with pytest.raises(StorageError, match="no answer"):
        log.put(0, Commit("WRITE"), vectors)
    assert log.is_open and storage.exists(f"{s3_uri}/{vectors.name}")
    if winner is not None and not does:
        store.put(s3_uri, 1, winner)
        assert log.settle() is None
    else:
        assert log.settle() == 1
        (info,) = read_entry(storage, s3_uri, 1) or []
        assert info["commitInfo"]["operation"] == "WRITE"
    assert not log.is_open and log.settle() is None


def test_a_lost_race_leaves_nothing(s3_uri: str) -> None:
    storage = Storage(s3_uri)
    store = ObjectLogStore(storage)
    log = TableLog(storage, store, s3_uri)
    log.create(["{}"])
    store.put(s3_uri, 1, ["{}"])
    vectors = VectorFile()
    vectors.add(BitMap([1]))
    with pytest.raises(CommitConflict):
        log.put(0, Commit("WRITE"), vectors)
    assert not log.is_open and not storage.exists(f"{s3_uri}/{vectors.name}")
