"""The lease on a warehouse: who gets it, who loses it, and who must not."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from penstock.embedded import wait_until
from penstock.errors import CommitConflict, ObjectInUse, StorageError
from penstock.lakehouse.log import entry_uri, list_log
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.warehouse import Warehouse
from penstock.node import lease
from penstock.node.lease import Holder, Lease

_ELSEWHERE: Final = "another boot"


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    found = Warehouse(str(tmp_path / "warehouse"), fsync=False)
    found.claim("node")
    return found


@pytest.fixture
def make(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Lease]:
    """``make("a", boot="...")``: the lease of a node in folder a, on another machine."""
    monkeypatch.setattr(lease, "RENEW_S", 0.2)
    monkeypatch.setattr(lease, "TRUSTED_S", 0.6)
    monkeypatch.setattr(lease, "EXPIRES_S", 1.2)
    monkeypatch.setattr(lease, "_LOOK_S", 0.02)

    def new(folder: str, **facts: str) -> Lease:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "lock").touch()
        made = Lease(warehouse, tmp_path / folder / "lock")
        made._me = replace(made._me, **facts)  # type: ignore[arg-type]
        return made

    return new


def newest(warehouse: Warehouse) -> int:
    return list_log(warehouse.storage, f"{warehouse.uri}/_penstock/running").newest or 0


def goes_silent(held: Lease) -> None:
    """As if its process was suspended, or had lost its storage."""
    held._ended.set()
    held._thread.join()


def test_a_running_node_is_named(make: Callable[..., Lease], warehouse: Warehouse) -> None:
    first, second = make("a"), make("b", boot=_ELSEWHERE)
    first.take()
    before = newest(warehouse)
    with pytest.raises(ObjectInUse) as refused:
        second.take()
    assert first._me.host in str(refused.value.detail) and "since" in str(refused.value.detail)
    assert first._me.folder in refused.value.message
    wait_until(lambda: newest(warehouse) > before, "the next entry")
    first.check()
    first.release()
    second.take()
    second.release()


def test_a_stop_ends_the_wait(make: Callable[..., Lease]) -> None:
    first, stop = make("a"), threading.Event()
    first.take()
    goes_silent(first)
    stop.set()
    with pytest.raises(ObjectInUse):
        make("b", boot=_ELSEWHERE).take(stop)


def test_the_same_folder_on_the_same_machine_is_not_waited_for(make: Callable[..., Lease]) -> None:
    """The former process is dead: its lock is ours."""
    first = make("a")
    first.take()
    goes_silent(first)
    began = time.monotonic()
    make("a").take()
    assert time.monotonic() - began < 1


def test_a_dead_process_of_the_same_machine_is_not_waited_for(make: Callable[..., Lease]) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        started = lease._start_of(process.pid)
        first = make("a", pid=process.pid, started=started)
        first.take()
        goes_silent(first)
        assert not first._me.has_ended(make("b")._me)
        process.communicate(b"\n")
    began = time.monotonic()
    make("b").take()
    assert time.monotonic() - began < 1


def test_a_silent_node_loses_it_and_ends(make: Callable[..., Lease]) -> None:
    first, second = make("a"), make("b", boot=_ELSEWHERE)
    first.take()
    goes_silent(first)
    second.take()
    for _ in range(2):
        with pytest.raises(ObjectInUse, match=second._me.folder):
            first.check()
    with pytest.raises(ObjectInUse):
        first.check_not_lost()
    first.release()
    second.check()


def test_a_commit_of_a_node_that_has_lost_it(
    make: Callable[..., Lease], warehouse: Warehouse
) -> None:
    first, second = make("a"), make("b", boot=_ELSEWHERE)
    first.take()
    warehouse.check_lease = first.check
    table = warehouse.create("public", "t", TableSchema((), key=()))
    goes_silent(first)
    second.take()
    with pytest.raises(ObjectInUse):
        table.commit(app_id="a", version_marker=1, operation="WRITE")
    assert table.version == 0


def test_a_node_whose_storage_was_away_goes_on(
    make: Callable[..., Lease], warehouse: Warehouse, tmp_path: Path
) -> None:
    held = make("a")
    held.take()
    (tmp_path / "warehouse").rename(tmp_path / "away")
    time.sleep(1.5)
    with pytest.raises(StorageError):
        held.check()
    (tmp_path / "warehouse").mkdir()  # an empty mount point
    with pytest.raises(StorageError):
        held.check()
    (tmp_path / "warehouse").rmdir()
    (tmp_path / "away").rename(tmp_path / "warehouse")
    held.check()
    held.check_not_lost()
    held.release()


def test_an_older_copy_of_the_warehouse_is_no_other_node(
    make: Callable[..., Lease], warehouse: Warehouse
) -> None:
    held = make("a")
    held.take()
    wait_until(lambda: newest(warehouse) > 3, "some entries")
    goes_silent(held)
    log = f"{warehouse.uri}/_penstock/running"
    for version in list_log(warehouse.storage, log).entries[2:]:
        warehouse.storage.remove(entry_uri(log, version))
    time.sleep(0.7)
    held.check()


def test_two_that_take_it_at_once(make: Callable[..., Lease]) -> None:
    """Exactly one of many gets it."""
    first = make("a")
    first.take()
    goes_silent(first)
    rivals = [make(f"b{i}", boot=f"boot {i}") for i in range(8)]
    got: list[Lease] = []

    def take(rival: Lease) -> None:
        try:
            rival.take()
            got.append(rival)
        except ObjectInUse:
            pass

    threads = [threading.Thread(target=take, args=[rival]) for rival in rivals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1
    got[0].check()


def test_a_late_put_of_a_number_that_was_removed(
    make: Callable[..., Lease], warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was suspended inside its put finds the newer entries."""
    first, second = make("a"), make("b", boot=_ELSEWHERE)
    first.take()
    goes_silent(first)
    put = first._put

    def late(holder: Holder) -> None:
        monkeypatch.setattr(first, "_put", put)
        version = first._version
        second.take()
        wait_until(lambda: newest(warehouse) > version + 12, "newer entries")
        first._version += 1  # as if its own entry had been put now
        time.sleep(0.7)

    monkeypatch.setattr(first, "_put", late)
    time.sleep(0.7)  # it is not trusted any more
    with pytest.raises(ObjectInUse):
        first.check()


def test_an_entry_that_cannot_be_read(make: Callable[..., Lease], warehouse: Warehouse) -> None:
    """It is watched, as any other."""
    first = make("a")
    first.take()
    goes_silent(first)
    uri = f"{warehouse.uri}/_penstock/running"
    warehouse.storage.write(entry_uri(uri, newest(warehouse)), json.dumps({"host": 1}).encode())
    second = make("b", boot=_ELSEWHERE)
    second.take()
    second.check()
    with pytest.raises((ObjectInUse, CommitConflict)):
        first.check()
