"""The folder of Spark's sockets is private, short, and gone with its process, however that ends."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.lakehouse import session
from penstock.lakehouse.session import remove_leftovers, socket_folder
from penstock.pipeline.job import run_job

_HOLDS = """
import sys
import tempfile
from penstock.lakehouse.session import socket_folder
print(socket_folder(), flush=True)
sys.stdin.read()
"""


def holder(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """A process that has a folder in ``parent``."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDS],
        env={**os.environ, "TMPDIR": str(parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str], how: signal.Signals | None = None) -> None:
    if how is not None:
        process.send_signal(how)
    process.communicate()
    assert process.returncode == (0 if how is None else -how)


@pytest.fixture
def short() -> Path:
    """A folder whose path is not as long as those of pytest."""
    return Path(tempfile.mkdtemp(prefix="pt-", dir="/tmp"))


def test_nobody_else_can_enter_it_and_it_goes_with_its_process(short: Path) -> None:
    process, folder = holder(short)
    assert folder.parent == short
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/.{'0' * 36}.sock")  # Spark's names
    end(process)
    assert not folder.exists()


def test_what_a_killed_process_leaves_is_removed_and_no_other(short: Path) -> None:
    killed, left = holder(short)
    living, used = holder(short)
    (left / ".a.sock").touch()
    end(killed, signal.SIGKILL)
    assert left.exists()
    remove_leftovers(short)
    assert not left.exists()
    assert used.exists()
    end(living)


def test_a_link_in_its_place_is_no_leftover(short: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.touch()
    (short / "penstock-12345678.sockets").symlink_to(tmp_path)
    remove_leftovers(short)
    assert kept.exists()


def test_a_path_too_long_for_a_socket_is_passed_by(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 60)
    deep.mkdir()
    process, folder = holder(deep)
    assert folder.parent == Path("/tmp")
    end(process)


def test_one_that_somebody_removed_is_made_again(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_held", {})
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    first = socket_folder()
    assert first is not None
    first.rmdir()
    second = socket_folder()
    assert second is not None and second.is_dir()
    assert second == socket_folder() != first


@pytest.mark.spark
def test_jobs_go_by_it_and_leave_nothing(spark: SparkSession) -> None:
    folder = socket_folder()
    assert folder is not None
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.python.unix.domain.socket.dir") == str(folder)
    items = [(1.0, 1), (1.0, 2)]
    run_job(spark, items, _same, "test")
    before = set(folder.iterdir())
    assert before, "the socket of accumulators at least"
    for _ in range(5):
        assert run_job(spark, items, _same, "test") == [1, 2]
    assert len(set(folder.iterdir()) - before) <= 1, "a socket each, which is removed by a thread"


def _same(item: int) -> list[int]:
    return [item]
