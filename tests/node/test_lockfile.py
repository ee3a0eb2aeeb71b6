"""One running node per folder, however the last one died."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.catalog import Catalog
from penstock.errors import ConfigurationError, NotInPrerequisiteState, ObjectInUse
from penstock.node import Node
from penstock.node.claims import FILE_NAME, LockFile, Running, running_process
from penstock.node.guc import signal_running

HOLD = """
import signal
import sys
from pathlib import Path
from penstock.node.claims import LockFile
signal.signal(signal.SIGHUP, getattr(signal, sys.argv[2]))
lock = LockFile(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("handler", ["SIG_DFL", "SIG_IGN"])
def test_a_second_start_is_refused_and_told_the_process(tmp_path: Path, handler: str) -> None:
    """And one that a signal would end gets none."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path), handler],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert running_process(tmp_path) == Running(holder.pid, hears_sighup=False)
        with pytest.raises(OSError, match=f"process {holder.pid} does not handle SIGHUP"):
            signal_running(tmp_path)
        with pytest.raises(ObjectInUse, match=f"already running \\(PID {holder.pid}\\)"):
            LockFile(tmp_path)
        holder.kill()
        holder.wait()
    assert running_process(tmp_path) is None
    LockFile(tmp_path).release()


@pytest.mark.parametrize("content", [b"x0232\n", b"\xff0232\nSIGHUP\n"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    lock = LockFile(tmp_path)
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"bogus data in lock file .*penstock\.pid"):
        running_process(tmp_path)
    with pytest.raises(ObjectInUse, match="already running"):
        LockFile(tmp_path)
    lock.release()


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    """A changed digit would be the PID of another process, which commands would signal."""
    lock, path = LockFile(tmp_path), tmp_path / FILE_NAME
    written = path.read_bytes()
    assert running_process(tmp_path) == Running(os.getpid(), hears_sighup=False)
    for place in range(len(written)):
        path.write_bytes(written[:place] + bytes([written[place] ^ 1]) + written[place + 1 :])
        with pytest.raises(ConfigurationError, match="bogus data in lock file"):
            running_process(tmp_path)
        with pytest.raises(ConfigurationError, match="bogus data in lock file"):
            signal_running(tmp_path)
        with pytest.raises(ObjectInUse, match="already running \\(PID unknown\\)"):
            LockFile(tmp_path)
        with pytest.raises(ObjectInUse, match="instead of"):
            lock.check()
    path.write_bytes(written)
    lock.check()
    path.write_bytes(written.partition(b"crc32")[0])  # as an older version writes it
    assert running_process(tmp_path) == Running(os.getpid(), hears_sighup=False)
    lock.release()


def test_a_removed_file_is_noticed(tmp_path: Path) -> None:
    """Another process could lock the next one."""
    lock = LockFile(tmp_path)
    lock.check()
    (tmp_path / FILE_NAME).unlink()
    with pytest.raises(ObjectInUse, match="was removed or replaced"):
        lock.check()
    lock.release()


@pytest.mark.parametrize("by", [Path.unlink, lambda path: copy(path).replace(path)])
def test_a_removed_state_store_is_noticed(tmp_path: Path, by: Callable[[Path], object]) -> None:
    """What is written to it is gone when the process ends."""
    url = f"sqlite:///{tmp_path / 'state.db'}"
    with Catalog.create(url) as catalog, Catalog.open(url) as other:
        catalog.check_there()
        by(tmp_path / "state.db")
        for each in (catalog, other):
            with pytest.raises(ObjectInUse, match="was removed or replaced"):
                each.check_there()


def copy(path: Path) -> Path:
    return Path(shutil.copy(path, path.with_name("a backup")))


def test_a_released_lock_is_free(tmp_path: Path) -> None:
    LockFile(tmp_path).release()
    assert running_process(tmp_path) is None
    LockFile(tmp_path).release()


@pytest.mark.parametrize(
    "use",
    [
        lambda node: node.start(),
        lambda node: node.execute("SELECT 1 FROM pg_subscription"),
        lambda node: node.execute("CREATE TABLE t (id int)"),
        lambda node: node.status(),
        lambda node: node.read("t"),
        lambda node: node.wait_until_caught_up(1),
    ],
)
def test_a_closed_node_stays_closed(tmp_path: Path, use: Callable[[Node], object]) -> None:
    node = Node.init(tmp_path / "node")
    node.close()
    node.close()
    with pytest.raises(NotInPrerequisiteState, match="the node is closed"):
        use(node)
    assert running_process(node.folder) is None
