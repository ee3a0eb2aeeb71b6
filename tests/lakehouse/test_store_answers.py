"""Answers of object stores that come seldom: refusals that name the token, races without a winner,
stores without conditional writes."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fix_object_store import ObjectStore
from lakehouse.answering_store import Answer, answering, error, found
from penstock.catalog import Catalog
from penstock.errors import CommitConflict, ConfigurationError, StorageError
from penstock.lakehouse.log_store import ObjectLogStore, check_conditional_puts
from penstock.lakehouse.object_store import without_secrets
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.warehouse import Warehouse
from penstock.node.warehouse_owner import take_warehouse

_SIGNATURE = "kept%2Fout%2Bof%3Devery"
_TOKEN = f"sv=2022-11-02&sp=rwdl&sig={_SIGNATURE}"


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
        (_Busy(2), False),  # the other put came to nothing
        (_Busy(2, b"theirs"), True),
        (_Busy(2, b"ours\n"), False),  # it was an attempt of our own
        (_Busy(1000), True),
    ],
)
def test_an_entry_that_another_one_is_putting(
    s3: ObjectStore, monkeypatch: pytest.MonkeyPatch, busy: _Busy, lost: bool
) -> None:
    with answering(busy.answer) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        # clients are kept by bucket: one for each server
        uri = f"s3://busy-{url.rpartition(':')[2]}/t"
        store = ObjectLogStore(Storage(uri))
        if lost:
            with pytest.raises(CommitConflict):
                store.put(uri, 0, ["ours"])
        else:
            store.put(uri, 0, ["ours"])
    assert not lost or b"ours\n" not in busy.objects.values()
    assert lost or list(busy.objects.values()) == [b"ours\n"]


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
