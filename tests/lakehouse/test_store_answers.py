"""Answers of object stores that come seldom: refusals that name the token, races without a winner,
stores without conditional writes."""

from __future__ import annotations

import traceback

import pytest

from lakehouse.answering_store import answering, error
from penstock.errors import StorageError
from penstock.lakehouse.log_store import ObjectLogStore
from penstock.lakehouse.object_store import without_secrets
from penstock.lakehouse.storage import Storage

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
