"""The lease on a warehouse: who gets it, who loses it, and who must not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from penstock import Node
from penstock.catalog import Catalog
from penstock.embedded import wait_until
from penstock.errors import CommitConflict, ConfigurationError, ObjectInUse, StorageError
from penstock.lakehouse.cuts import CutOwner
from penstock.lakehouse.log import entry_uri, list_log
from penstock.lakehouse.log_store import LONGEST_PUT_S
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.storage import local_path
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
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
    held._ended.clear()


def clone_of(held: Lease) -> Lease:
    """A second process with the same memory, as a restored snapshot of a machine has it."""
    clone = copy(held)
    clone._puts, clone._guard = copy(held._puts), threading.Lock()
    return clone


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
    assert not make("b", boot=_ELSEWHERE).take(stop)
    first.check()


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
        with pytest.MonkeyPatch.context() as hidden:  # hidepid, ProtectProc=
            hidden.setattr(lease, "_read", lambda path: "")
            assert not first._me.has_ended(replace(first._me, lock="another"))
        another = replace(first._me, started=f"{started}0")
        assert another.has_ended(make("b")._me)
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
    with pytest.raises(ObjectInUse):
        warehouse.remove("public", "t")
    found = warehouse.open("public", "t")
    assert found is not None and found.version == 0


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


def test_clones_of_one_process(make: Callable[..., Lease]) -> None:
    """One of them goes on, whose next entry comes first."""
    held = make("a")
    held.take()
    goes_silent(held)
    clone = clone_of(held)
    assert held.confirm()
    with pytest.raises(ObjectInUse):
        clone.confirm()
    held.check()


def test_an_older_entry_of_another_node(make: Callable[..., Lease], warehouse: Warehouse) -> None:
    """An older copy of the warehouse was put in its place, and another node runs there."""
    first, second = make("a"), make("b", boot=_ELSEWHERE)
    first.take()
    wait_until(lambda: newest(warehouse) > 3, "some entries")
    goes_silent(first)
    shutil.rmtree(Path(local_path(warehouse.uri)) / "_penstock/running")
    second.take()
    with pytest.raises(ObjectInUse):
        first.confirm()
    second.check()


def test_entries_that_somebody_has_removed(
    make: Callable[..., Lease], warehouse: Warehouse
) -> None:
    held = make("a")
    held.take()
    shutil.rmtree(Path(local_path(warehouse.uri)) / "_penstock/running")
    assert held.confirm()
    wait_until(lambda: newest(warehouse) > 1, "the next entries")


def test_a_boot_clock_that_stands_still(
    make: Callable[..., Lease], warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does where a machine's image is moved: the time of day counts, too."""
    held = make("a")
    held.take()
    goes_silent(held)
    now, before = time.clock_gettime(time.CLOCK_BOOTTIME), newest(warehouse)
    monkeypatch.setattr(time, "clock_gettime", lambda clock: now)
    time.sleep(0.7)
    held.check()
    assert newest(warehouse) == before + 1


def test_in_a_folder_each_commit_looks_for_the_next_entry(
    make: Callable[..., Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make("a"), make("b", boot=_ELSEWHERE)
    first.take()
    goes_silent(first)
    second._version = first._version
    second._put(second._me)
    monkeypatch.setattr(lease, "TRUSTED_S", 100.0)
    with pytest.raises(ObjectInUse):
        first.check()


def test_nothing_is_possible_after_a_stop(make: Callable[..., Lease], warehouse: Warehouse) -> None:
    held = make("a")
    held.take()
    held.release()
    after = newest(warehouse)
    for call in (held.check, held.confirm, held.check_not_lost):
        with pytest.raises(ObjectInUse, match="has stopped"):
            call()
    assert newest(warehouse) == after


def test_a_stop_does_not_wait_for_a_storage_that_hangs(
    make: Callable[..., Lease], monkeypatch: pytest.MonkeyPatch
) -> None:
    held, storage = make("a"), threading.Event()
    held.take()
    monkeypatch.setattr(lease, "_RELEASE_S", 0.2)
    monkeypatch.setattr(held, "_put", lambda holder: storage.wait(20))
    time.sleep(0.3)
    began = time.monotonic()
    held.release()
    with pytest.raises(ObjectInUse):
        held.check()
    assert time.monotonic() - began < 2
    storage.set()


def test_no_put_outlasts_the_lease() -> None:
    """The last try of a commit that was allowed ends before another node commits."""
    assert lease.TRUSTED_S + LONGEST_PUT_S < lease.EXPIRES_S


@pytest.fixture
def closed(make: Callable[..., Lease], warehouse: Warehouse, tmp_path: Path) -> Iterator[Node]:
    """A copy of the node's folder, which no process runs, with a subscription."""
    folder = tmp_path / "copy"
    with Node.init(folder, warehouse=str(tmp_path / "warehouse")) as node:
        node.sql(
            "CREATE SUBSCRIPTION s CONNECTION 'host=none' PUBLICATION p "
            "WITH (connect = false, slot_name = NONE)"
        )
        warehouse.claim(node._catalog.node_info.node_id)
        node._catalog.record_warehouse(warehouse.uri)
    owner = CutOwner("s", node_app_id(folder))
    warehouse.cuts.append(owner, Lsn(1), None, {})
    with Node(folder) as node:
        yield node


def node_app_id(folder: Path) -> str:
    with Catalog.open(f"sqlite:///{folder / 'state.db'}") as catalog:
        (subscription,) = catalog.subscriptions()
    return subscription.app_id


@pytest.mark.parametrize(
    "statement",
    [
        "DROP SUBSCRIPTION s",
        "ALTER SUBSCRIPTION s RENAME TO another",
        "CREATE TABLE t (id integer PRIMARY KEY)",
    ],
)
def test_statements_on_a_copy_that_does_not_run(
    closed: Node, make: Callable[..., Lease], warehouse: Warehouse, statement: str
) -> None:
    """They would remove the files and cuts of the node that runs."""
    kept = Path(local_path(warehouse.prepared_uri(node_app_id(closed.folder)))) / "750-1-x"
    kept.mkdir(parents=True)
    running = make("elsewhere", boot=_ELSEWHERE)
    running.take()
    with pytest.raises(ObjectInUse, match="is in use by another node"):
        closed.sql(statement)
    assert kept.exists() and warehouse.cuts.names() == {"s"}
    goes_silent(running)  # it was killed
    closed.sql(statement)
    assert kept.exists() == (not statement.startswith("DROP"))


def test_a_node_whose_id_is_no_longer_in_its_warehouse_ends(
    make: Callable[..., Lease], warehouse: Warehouse
) -> None:
    """A server ends, too, if its lock file has another's PID."""
    held = make("a")
    assert held.take()
    warehouse.claim("this node")
    held.check()
    Warehouse(warehouse.uri, fsync=False).claim("another")
    wait_until(lambda: held._lost is not None, "a look at the id")
    with pytest.raises(ObjectInUse, match="belongs to another node"):
        held.check()
    held.release()


def test_statements_on_a_node_whose_warehouse_is_anothers_now(
    closed: Node, warehouse: Warehouse
) -> None:
    """Its state was lost, and made again elsewhere: the slot and the files are the new one's."""
    warehouse.claim("another")
    for statement in ("DROP SUBSCRIPTION s", "CREATE TABLE t (id integer PRIMARY KEY)"):
        with pytest.raises(ConfigurationError, match="belongs to another node"):
            closed.sql(statement)


def test_a_lost_warehouse_does_not_keep_a_subscription(closed: Node, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "warehouse")
    closed.sql("DROP SUBSCRIPTION s")
    assert closed.sql("SELECT 1 FROM pg_subscription").rows == ()
