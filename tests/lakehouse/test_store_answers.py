"""Answers of object stores that come seldom: refusals that name the token, races without a winner,
stores without conditional writes."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from faults.heavy import in_make_faults
from fix_object_store import SECRET, ObjectStore
from lakehouse.answering_store import Answer, answering, error, found
from penstock.catalog import Catalog
from penstock.errors import (
    CommitConflict,
    ConfigurationError,
    ObjectInUse,
    PenstockError,
    StorageError,
)
from penstock.lakehouse import log_store
from penstock.lakehouse.jars import client_jars
from penstock.lakehouse.log_store import (
    GuardedLogStore,
    ObjectLogStore,
    check_conditional_puts,
)
from penstock.lakehouse.object_store import LOG_STORE_CLASS, without_secrets
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.warehouse import Warehouse
from penstock.lakehouse.xact import Commit, TableLog
from penstock.node.claims import take_warehouse

_SIGNATURE = "kept%2Fout%2Bof%3Devery"
_TOKEN = f"sv=2022-11-02&sp=rwdl&sig={_SIGNATURE}"


def test_a_refused_put_is_not_in_doubt() -> None:
    """Nothing was sent, so nothing may arrive."""

    def refuse() -> None:
        raise StorageError("the lease cannot be renewed")

    storage = Storage("s3://nowhere/wh")
    log = TableLog(storage, GuardedLogStore(ObjectLogStore(storage), refuse), storage.uri)
    with pytest.raises(StorageError, match="lease"):
        log.put(0, Commit("WRITE"))
    assert not log.is_open and log.settle() is None


def test_each_try_of_a_put_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node may have taken the lease between two of them."""
    checks = iter([None])

    def check() -> None:
        if next(checks, "lost") == "lost":
            raise ObjectInUse("lost")

    monkeypatch.setattr(log_store, "put_if_absent", _conflict)
    monkeypatch.setattr(Storage, "read_if_there", lambda storage, uri: None)
    storage = Storage("s3://nowhere/wh")
    with pytest.raises(ObjectInUse):
        ObjectLogStore(storage, check).put(storage.uri, 0, ["x"])


def _conflict(uri: str, content: bytes) -> None:
    raise FileExistsError(uri)


def test_no_error_names_the_token(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    with answering(lambda *_: error(403, "AuthenticationFailed")) as url:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", url)
        monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", _TOKEN)
        storage = Storage("abfs://refused@acme.dfs.core.windows.net/wh")
        uri = f"{storage.uri}/x"
        for refused in (
            lambda: storage.read(uri),
            lambda: storage.exists(uri),
            lambda: storage.list(storage.uri),
            lambda: storage.write(uri, b"x"),
            lambda: ObjectLogStore(storage).put(storage.uri, 0, ["x"]),
        ):
            with pytest.raises(StorageError) as caught:
                refused()
            assert caught.value.sqlstate == "42501"
            logged = "".join(traceback.format_exception(caught.value))
            assert _SIGNATURE not in logged and "sig=" not in logged
        storage.remove(uri)
        storage.discard_folder(storage.uri)
    assert len(caplog.records) == 2
    assert "sig=" not in caplog.text and _SIGNATURE not in caplog.text


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("GET 'https://a/b?sp=r&sig=x%2F' failed", "GET 'https://a/b' failed"),
        ("(http://a/b?c=d) and sp=r&sig=x, then", "(http://a/b) and sp=r&sig=..., then"),
        (f"token {_TOKEN} is bad", "token ... is bad"),
        ("what is it? https://a/b", "what is it? https://a/b"),
    ],
)
def test_what_is_left_of_a_message(said: str, told: str) -> None:
    assert without_secrets(said, {"AZURE_STORAGE_SAS_TOKEN": f"?{_TOKEN}"}) == told


@dataclass
class _Busy:
    """An S3 in which another put of the same name is under way for a while (409).

    ``winner``: what that put leaves there; None when it comes to nothing.
    """

    conflicts: int
    winner: bytes | None = None
    objects: dict[str, bytes] = field(default_factory=dict)

    def answer(self, method: str, path: str, sent: bytes) -> Answer:
        if method != "PUT":
            content = self.objects.get(path)
            return error(404, "NoSuchKey") if content is None else found(content)
        if self.conflicts:
            self.conflicts -= 1
            if not self.conflicts and self.winner is not None:
                self.objects[path] = self.winner
            return error(409, "ConditionalRequestConflict")
        if path in self.objects:
            return error(412, "PreconditionFailed")
        self.objects[path] = sent
        return found(b"")


@pytest.mark.parametrize(
    ("busy", "lost"),
    [
        in_make_faults(_Busy(2), None),  # the other put came to nothing
        (_Busy(2, b"theirs"), CommitConflict),
        (_Busy(2, b"ours\n"), None),  # it was an attempt of our own
        (_Busy(1000), StorageError),  # nobody knows yet whose entry will be there
    ],
)
def test_an_entry_that_another_one_is_putting(
    s3: ObjectStore, monkeypatch: pytest.MonkeyPatch, busy: _Busy, lost: type[PenstockError] | None
) -> None:
    with answering(busy.answer) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        # clients are kept by bucket: one for each server
        uri = f"s3://busy-{url.rpartition(':')[2]}/t"
        store = ObjectLogStore(Storage(uri))
        if lost is not None:
            with pytest.raises(lost):
                store.put(uri, 0, ["ours"])
        else:
            store.put(uri, 0, ["ours"])
    assert not lost or b"ours\n" not in busy.objects.values()
    assert lost or list(busy.objects.values()) == [b"ours\n"]


@pytest.fixture(scope="module")
def conditional_log_store(spark: SparkSession) -> Any:
    """The class that Spark commits by, with S3's client, in class loaders of their own."""
    jvm: Any = spark._jvm
    files = client_jars("s3://any/place")
    urls = new_array(
        spark, jvm.java.net.URL, [jvm.java.io.File(str(f)).toURI().toURL() for f in files]
    )
    parent = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.net.URLClassLoader(urls, parent))
    source = resources.files("penstock.lakehouse").joinpath("ConditionalLogStore.java")
    compiler.cook(source.read_text("utf-8"))
    return compiler.getClassLoader().loadClass(LOG_STORE_CLASS)


def new_array(spark: SparkSession, kind: Any, items: Sequence[Any]) -> Any:
    gateway: Any = spark._sc._gateway
    array = gateway.new_array(kind, len(items))
    for number, item in enumerate(items):
        array[number] = item
    return array


@pytest.mark.spark
@pytest.mark.parametrize(
    ("busy", "error"),
    [
        in_make_faults(_Busy(2), ""),  # the other put came to nothing
        (_Busy(2, b"theirs"), "FileAlreadyExistsException"),
        (_Busy(2, b"ours\n"), ""),  # it was an attempt of our own
        (_Busy(1000), "Status Code: 409"),
    ],
)
def test_an_entry_of_spark_that_another_one_is_putting(
    spark: SparkSession, conditional_log_store: Any, busy: _Busy, error: str
) -> None:
    jvm: Any = spark._jvm
    conf = jvm.org.apache.hadoop.conf.Configuration()
    conf.setClassLoader(conditional_log_store.getClassLoader())
    with answering(busy.answer) as url:
        for name, value in {
            "endpoint": url,
            "endpoint.region": "eu-central-7",
            "path.style.access": "true",
            "connection.ssl.enabled": "false",
            "access.key": "a",
            "secret.key": SECRET,
        }.items():
            conf.set(f"fs.s3a.{name}", value)
        maker = conditional_log_store.getConstructors()[0]
        store = maker.newInstance(new_array(spark, jvm.java.lang.Object, [conf]))
        lines = jvm.java.util.ArrayList()
        lines.add("ours")
        # file systems are kept by bucket: one for each server
        path = jvm.org.apache.hadoop.fs.Path(f"s3a://busy-{url.rpartition(':')[2]}/t/0.json")
        outcome = nullcontext() if not error else pytest.raises(Py4JJavaError, match=error)
        with outcome:
            store.write(path, lines.iterator(), False, conf)
    # the body of S3A's puts comes in chunks that are signed
    assert any(b"ours\n" in content for content in busy.objects.values()) == (not error)


def test_a_store_must_put_conditionally(
    s3: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Storage(f"s3://{s3.bucket()}/lake")
    check_conditional_puts(real)
    assert real.list(f"{real.uri}/_penstock/staging") == []
    with (
        answering(lambda *_: found(b"")) as url,
        Catalog.create(f"sqlite:///{tmp_path / 'state.db'}") as catalog,
    ):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        warehouse = Warehouse(f"s3://any-{url.rpartition(':')[2]}/lake")
        with pytest.raises(ConfigurationError, match="no conditional writes") as caught:
            take_warehouse(catalog, warehouse)
        assert catalog.warehouse() is None
    assert "412" in (caught.value.hint or "")
