"""A standalone Spark cluster: a master, and workers, from the PySpark wheel."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pyspark

from penstock.embedded import free_port, wait_until

_CLASS: Final = Path(pyspark.__file__).parent / "bin" / "spark-class"
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_WHERE: Final = ("--host", "127.0.0.1", "--webui-port", "0")


class _Daemon:
    """A process of the cluster with its log."""

    def __init__(self, log: Path, *arguments: str) -> None:
        self.log = log
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                [_CLASS, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={
                    **os.environ,
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
                    "PYSPARK_PYTHON": sys.executable,
                },
            )

    def wait_for(self, text: str) -> None:
        def said() -> str:
            return self.log.read_text("utf-8", "replace")

        def guard() -> None:
            assert self._process.poll() is None, said()

        wait_until(lambda: text in said(), repr(text), 60, state=said, guard=guard, pause=0.1)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        self._process.wait()


class StandaloneCluster:
    """A master at ``url``, without workers at first; a context manager that ends all. The files of
    worker 0 are in the folder ``worker-0``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._workers = 0
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._start("master", "I have been elected leader", _MASTER, "--port", str(port))

    def start_worker(self) -> None:
        """Start one more worker, of one core."""
        name = f"worker-{self._workers}"
        self._workers += 1
        memory = ("--cores", "1", "--memory", "800m", "--work-dir", str(self._folder / name))
        self._start(name, "Successfully registered with master", _WORKER, *memory, self.url)

    def _start(self, name: str, ready: str, kind: str, *arguments: str) -> None:
        daemon = _Daemon(self._folder / f"{name}.log", kind, *_WHERE, *arguments)
        self._stack.enter_context(contextlib.closing(daemon)).wait_for(ready)

    def __enter__(self) -> StandaloneCluster:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
