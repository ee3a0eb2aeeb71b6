"""Paths, filesystems and errors of the warehouse."""

from __future__ import annotations

import errno
import pickle
from pathlib import Path

import pytest

from lakehouse.tables import ACCOUNTS
from penstock.errors import StorageError
from penstock.lakehouse.storage import Storage, storage_errors
from penstock.lakehouse.warehouse import Warehouse


@pytest.mark.parametrize(
    ("given", "uri"),
    [
        ("/data/wh/", "file:///data/wh"),
        ("file:/data/wh", "file:///data/wh"),
        ("file:///data/a b/../wh", "file:///data/wh"),
        ("s3a://bucket/wh/", "s3a://bucket/wh"),
    ],
)
def test_uris(given: str, uri: str) -> None:
    assert Storage(given).uri == uri
    assert Storage(given).is_local == uri.startswith("file:")


def test_relative_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Storage("wh").uri == f"file://{tmp_path}/wh"


def test_table_folders(tmp_path: Path) -> None:
    warehouse = Warehouse(str(tmp_path / "a b"), False)
    assert warehouse.table_uri("public", "accounts") == f"file://{tmp_path}/a b/public/accounts"
    odd = warehouse.table_uri("public", "order items/1")
    assert odd.startswith(f"file://{tmp_path}/a b/public/order_items_1-")
    table = warehouse.create("public", "order items/1", ACCOUNTS)
    assert table.uri == odd and warehouse.open("public", "order items/1") is not None
    staged = f"{warehouse.staging}/batch.arrow"
    warehouse.storage.create_folder(warehouse.staging)
    warehouse.storage.write(staged, b"x")
    assert warehouse.storage.read(staged) == b"x"


@pytest.mark.parametrize(
    ("number", "sqlstate", "hint"),
    [
        (errno.ENOSPC, "53100", "disk space"),
        (errno.EDQUOT, "53100", "disk space"),
        (errno.EACCES, "42501", "permission"),
        (errno.EMFILE, "53000", "ulimit"),
        (errno.EIO, "58030", None),
        (errno.ESTALE, "58030", None),
    ],
)
def test_errors_as_postgresql_classes_them(number: int, sqlstate: str, hint: str | None) -> None:
    with pytest.raises(StorageError) as caught, storage_errors("write file", "/x"):
        raise OSError(number, "Couldn't deserialize thrift, or corrupt")
    assert caught.value.sqlstate == sqlstate
    assert 'could not write file "/x": ' in caught.value.message
    assert (hint or "") in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("told", "sqlstate"),
    [
        ("AWS Error NETWORK_CONNECTION during GetObject for key 'lake/corrupt_orders/x'", "58030"),
        ("no answer for bucket/lake/Malformed schema/Unexpected end of stream", "58030"),
        ("Corrupt snappy compressed data.", "XX001"),
        ("Couldn't deserialize thrift: No more data to read.\n", "XX001"),
        ("could not verify page integrity, CRC checksum verification failed for page 1", "XX001"),
        ("LZ4 decompress failed: ERROR_decompressionFailed", "XX001"),
        ("Page didn't decompress to expected size, expected: 32021, but got:32000", "XX001"),
        ("Invalid page header (negative number of values)", "XX001"),
    ],
)
def test_a_damaged_file_is_told_from_one_out_of_reach(told: str, sqlstate: str) -> None:
    """By the words of the reader: those of the file's name mean nothing."""
    uri = "s3://bucket/lake/Malformed schema/Unexpected end of stream"
    with pytest.raises(StorageError) as caught, storage_errors("read file", uri):
        raise OSError(told)
    assert caught.value.sqlstate == sqlstate


def test_removing_what_is_gone_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Storage(str(tmp_path)).remove(f"file://{tmp_path}/gone")
    assert not caplog.records


def test_crosses_to_executors() -> None:
    storage = Storage("s3a://bucket/wh", fsync=False)
    assert pickle.loads(pickle.dumps(storage)) == storage
