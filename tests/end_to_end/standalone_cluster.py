"""A standalone Spark cluster: a master, and workers, from the PySpark wheel."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Final

import pyspark

from penstock.embedded import free_port, wait_until
from processes import below, command_line

_CLASS: Final = Path(pyspark.__file__).parent / "bin" / "spark-class"
_MASTER: Final = "org.apache.spark.deploy.master.Master"
_WORKER: Final = "org.apache.spark.deploy.worker.Worker"
_EXECUTOR: Final = b"CoarseGrainedExecutorBackend"
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

    def kill(self, word: bytes) -> bool:
        """SIGKILL to the processes below that have the word in their command line."""
        found = [process for process in below(self._process.pid) if word in command_line(process)]
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return bool(found)

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
        self._workers: list[_Daemon] = []
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._start("master", "I have been elected leader", _MASTER, "--port", str(port))

    def start_worker(self) -> None:
        """Start one more worker, of one core."""
        name = f"worker-{len(self._workers)}"
        memory = ("--cores", "1", "--memory", "800m", "--work-dir", str(self._folder / name))
        ready = "Successfully registered with master"
        self._workers.append(self._start(name, ready, _WORKER, *memory, self.url))

    def kill_executors(self, count: int) -> None:
        """SIGKILL to the executors of so many workers, each as soon as there is one."""
        for worker in self._workers[:count]:
            wait_until(partial(worker.kill, _EXECUTOR), "an executor", 60, pause=0.05)

    def _start(self, name: str, ready: str, kind: str, *arguments: str) -> _Daemon:
        daemon = _Daemon(self._folder / f"{name}.log", kind, *_WHERE, *arguments)
        self._stack.enter_context(contextlib.closing(daemon)).wait_for(ready)
        return daemon

    def __enter__(self) -> StandaloneCluster:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
