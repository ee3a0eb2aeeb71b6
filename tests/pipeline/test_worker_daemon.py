"""Python workers begin with their modules imported, by a process that may be forked."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.embedded import wait_until
from penstock.pipeline.job import run_job

_THREADS = """
import pathlib, penstock.pipeline.worker_daemon as daemon
daemon.kernel.prepare()
for name in pathlib.Path("/proc/self/task").glob("*/comm"):
    print(name.read_text().strip())
"""
_ALLOWED = {"jemalloc_bg_thd"}
"""Its locks are free in a fork."""


@pytest.mark.spark
def test_a_worker_has_imported_what_tasks_run(spark: SparkSession) -> None:
    def begin(name: str) -> Iterator[tuple[bool, bool]]:
        yield name in sys.modules, gc.get_freeze_count() > 0

    assert run_job(spark, [(1.0, "penstock.pipeline.tasks")], begin, "test") == [(True, True)]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_daemon_has_no_thread_that_a_fork_would_miss() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _THREADS], stdout=subprocess.PIPE, text=True, check=True
    )
    main, *others = sorted(done.stdout.split(), key=lambda name: name in _ALLOWED)
    assert main not in _ALLOWED
    assert set(others) <= _ALLOWED


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_does_not_reach_a_daemon_that_begins() -> None:
    """It has left the group of the terminal's processes before it imports anything large."""
    command = [sys.executable, "-m", "penstock.pipeline.worker_daemon", "pyspark.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as daemon:
        assert daemon.stdin is not None and daemon.stdout is not None
        wait_until(lambda: os.getpgid(daemon.pid) == daemon.pid, "a process group of its own")
        assert "libarrow" not in Path(f"/proc/{daemon.pid}/maps").read_text()
        assert len(daemon.stdout.read(4)) == 4, "the port"
        daemon.stdin.close()  # so Spark tells it to end
