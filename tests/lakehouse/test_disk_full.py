"""A warehouse that takes no more: one clear error, nothing committed, nothing left behind."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from pyroaring import BitMap

from lakehouse.tables import accounts, again, commit, delta_rs_ids, write
from penstock.errors import StorageError
from penstock.lakehouse.cuts import CutOwner, CutTable
from penstock.lakehouse.files import FileWriter
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.table import DeltaTable
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writes beyond ``size`` bytes of a file fail with EFBIG."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def noise(rows: int) -> pa.Table:
    """Rows that do not compress."""
    values = [os.urandom(100).hex() for _ in range(rows)]
    return pa.table({"id": pa.array(range(rows), pa.int64()), "owner": values})


def files(table: DeltaTable) -> set[str]:
    return {p.name for p in Path(local_path(table.uri)).rglob("*") if p.is_file()}


def check_full(error: StorageError) -> None:
    assert error.sqlstate == "53100" and "could not" in error.message
    assert error.hint is not None and "disk space" in error.hint


def test_data_files(small_disk: Path) -> None:
    table = accounts(small_disk)
    before = files(table)
    writer = FileWriter(table.storage, table.uri, table.schema.arrow(), target_file_bytes=100_000)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        writer.write(noise(1000) for _ in range(20))
    check_full(caught.value)
    assert files(table) == before, "finished files of the same task are removed too"
    table.stage(written=write(table, range(10)))
    commit(table, 1)
    assert delta_rs_ids(table) == list(range(10))


def test_log_entry(small_disk: Path) -> None:
    """The disk fills up between the data and the log; with room again the same table goes on."""
    table = accounts(small_disk)
    table.stage(written=write(table, range(10)))
    commit(table, 1)
    (new,) = write(table, range(10, 20))
    table.stage(written=[new], deleted={next(iter(table.files)): BitMap([0])})
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as sink, pytest.raises(OSError):
        while True:
            sink.write(bytes(4096))
    with pytest.raises(StorageError) as caught:
        commit(table, 2)
    check_full(caught.value)
    assert again(table).version == 1 and again(table).transaction_version("pg_16384") == 1
    table.discard()
    assert new.path not in files(table)
    ballast.unlink()
    table.stage(written=write(table, range(10, 20)))
    assert commit(table, 2) == 2
    assert delta_rs_ids(table) == list(range(20))


def test_largest_file_size(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    before = files(table)
    with largest_file(50_000), pytest.raises(StorageError) as caught:
        FileWriter(table.storage, table.uri, table.schema.arrow()).write([noise(5000)])
    check_full(caught.value)
    assert files(table) == before


def test_log_entry_that_could_not_be_written_may_be_put_again(tmp_path: Path) -> None:
    table = accounts(tmp_path)
    table.stage(written=write(table, range(10)))
    with largest_file(100), pytest.raises(StorageError):
        commit(table, 1)
    assert commit(table, 1) == 1
    assert delta_rs_ids(table) == list(range(10))


def test_cut(small_disk: Path) -> None:
    cuts = Warehouse(str(small_disk), False).cuts
    tables = {("public", "t"): CutTable("file:///t", 1)}
    cuts.append(CutOwner("s", "id"), Lsn(1), None, tables)
    with pytest.raises(StorageError) as caught:
        for lsn in range(2, 10_000):
            cuts.append(CutOwner("s", "id"), Lsn(lsn), None, tables)
    check_full(caught.value)
    last = cuts.last(CutOwner("s", "id"))
    assert last is not None and last.tables == tables
    assert last.lsn == lsn - 1


def test_missing_rights(tmp_path: Path) -> None:
    warehouse = Warehouse("/proc/nothing", False)
    with pytest.raises(StorageError, match="could not create directory"):
        warehouse.create("public", "t", accounts(tmp_path).schema)
