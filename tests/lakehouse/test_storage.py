"""Paths, filesystems and errors of the warehouse; the way of object stores on a stand-in."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import fs
from pyroaring import BitMap

from lakehouse.tables import ACCOUNTS, commit, rows_of
from penstock.errors import CommitConflict, ConfigurationError, StorageError
from penstock.lakehouse import storage as storage_module
from penstock.lakehouse.files import FileWriter, open_parquet
from penstock.lakehouse.log import entry_uri
from penstock.lakehouse.storage import Storage, local_path, storage_errors
from penstock.lakehouse.table import DeltaTable
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
    staged = warehouse.staging_path("batch.arrow")
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
    ],
)
def test_errors_as_postgresql_classes_them(number: int, sqlstate: str, hint: str | None) -> None:
    with pytest.raises(StorageError) as caught, storage_errors("write file", "/x"):
        raise OSError(number, "ignored")
    assert caught.value.sqlstate == sqlstate
    assert 'could not write file "/x": ' in caught.value.message
    assert (hint or "") in (caught.value.hint or "")


def test_removing_what_is_gone_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Storage(str(tmp_path)).remove(f"file://{tmp_path}/gone")
    assert not caplog.records


def test_object_stores_need_a_session() -> None:
    with pytest.raises(ConfigurationError, match="Spark session"):
        Warehouse("s3://bucket/wh").open("public", "t")


@dataclass
class PutIfAbsent:
    """What an object store's LogStore does, in a folder."""

    folder: Path

    def put(self, table_uri: str, version: int, lines: Sequence[str]) -> None:
        path = self.folder / entry_uri(table_uri, version).removeprefix("s3a://bucket/")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x") as sink:
                sink.write("\n".join(lines))
        except FileExistsError:
            raise CommitConflict("lost") from None

    def checkpoint(self, table_uri: str, properties: object) -> None:
        raise NotImplementedError


def test_table_in_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All reading and writing goes through pyarrow's filesystem of the URI."""
    roots = []

    def bucket(root: str) -> tuple[fs.FileSystem, str]:
        roots.append(root)
        return fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), ""

    monkeypatch.setattr(storage_module, "_remote", bucket)
    storage, uri = Storage("s3a://bucket/wh"), "s3a://bucket/wh/public/t"
    store = PutIfAbsent(tmp_path)
    table = DeltaTable.create(storage, store, uri, "public.t", ACCOUNTS)
    for start in range(0, 50, 10):
        writer = FileWriter(storage, uri, pa.schema(ACCOUNTS.arrow()))
        (file,) = writer.write([rows_of(range(start, start + 10))])
        table.stage(written=[file])
        table.stage(deleted={file.path: BitMap([0])})
    commit(table, 1)
    seen = DeltaTable.load(storage, store, uri, "public.t")
    assert seen is not None and (seen.rows, len(seen.files)) == (45, 5)
    with open_parquet(uri, next(iter(seen.files))) as parquet:
        assert parquet.metadata.num_rows == 10
    assert set(roots) == {"s3://bucket/"}
    assert not Path(local_path("s3a:")).exists()


def test_crosses_to_executors() -> None:
    storage = Storage("s3a://bucket/wh", fsync=False)
    assert pickle.loads(pickle.dumps(storage)) == storage
