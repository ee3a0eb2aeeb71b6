"""A node as the user runs it: ``penstock`` in processes of their own, killed at will.

In: a folder, parameters. Out: its life (init, sql, start, kill -9, stop), its log, its status.
States are waited for with a deadline; what a node process prints goes to one file per start.
``init`` and ``status`` are the commands too, but in the tests' own process: a Python takes two
seconds of the processor to start, and whoever waits for a state asks many times.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.node.status import Health

_PENSTOCK: Final = (sys.executable, "-m", "penstock.cli.main")

Parameters = Mapping[str, str | int | bool]

_PARAMETERS: Final[Parameters] = {
    "wal_receiver_timeout": "15s",
    "wal_receiver_status_interval": "1s",
}
_SPARK: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.showConsoleProgress": "false",
}


class CommandFailed(AssertionError):
    """A ``penstock`` command ended with an exit status other than 0."""

    def __init__(self, command: str, status: int, output: str) -> None:
        super().__init__(f"penstock {command}: exit status {status}\n{output}")
        self.status = status
        self.output = output


class NodeProcess:
    """One node. ``warehouse``: its folder of Delta tables; ``warehouse_uri``: where they are, if
    that is no folder."""

    def __init__(
        self, folder: Path, *, warehouse: Path | None = None, warehouse_uri: str = ""
    ) -> None:
        self.folder = folder
        self.warehouse = warehouse or folder / "warehouse"
        self.warehouse_uri = warehouse_uri or str(self.warehouse)
        self.starts = 0
        self.environment: dict[str, str] = {}
        """Added to the environment of ``penstock start``."""
        self._process: subprocess.Popen[bytes] | None = None
        self._forgiven = 0

    def init(self, parameters: Parameters | None = None, **spark: str) -> None:
        """``penstock init``, then ``configure``."""
        given = parameters or {}
        state = ["--state", str(given["state"])] if "state" in given else []
        self._here("init", str(self.folder), "--warehouse", self.warehouse_uri, *state)
        self.configure(parameters, **spark)

    def configure(
        self,
        parameters: Parameters | None = None,
        *,
        master: str = "local[2]",
        executor_memory: str = "",
    ) -> None:
        """Parameters for small machines and short waits, and those given."""
        values = {"warehouse": self.warehouse_uri, **_PARAMETERS, **(parameters or {})}
        # Blocks of a killed node's Spark stay behind; they go with the test's folder.
        conf = {**_SPARK, "spark.local.dir": str(self.folder / "spark")}
        if executor_memory:
            conf |= {"spark.executor.memory": executor_memory, "spark.executor.cores": "1"}
        lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
        lines += ["[spark]", f'master = "{master}"', 'driver_memory = "1g"', "[spark.conf]"]
        lines += [f'"{name}" = {json.dumps(value)}' for name, value in conf.items()]
        (self.folder / "penstock.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def command(self, *arguments: str, timeout: float = 120) -> str:
        """Run ``penstock arguments``; its output. Raises CommandFailed."""
        done = subprocess.run(
            [*_PENSTOCK, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout,
            env=_environment(),
        )
        if done.returncode:
            raise CommandFailed(arguments[0], done.returncode, done.stdout)
        return done.stdout

    def sql(self, statements: str) -> str:
        """``penstock sql``."""
        return self.command("sql", "-D", str(self.folder), statements)

    def status(self) -> Any:
        """``penstock status --json``."""
        return json.loads(
            self._here("status", "-D", str(self.folder), "--json", fine=tuple(Health))
        )

    def _here(self, *arguments: str, fine: tuple[int, ...] = (0,)) -> str:
        """As ``command``, without a process; its standard output."""
        done = CliRunner().invoke(app, arguments)
        if done.exit_code not in fine or not isinstance(done.exception, SystemExit | None):
            raise CommandFailed(arguments[0], done.exit_code, f"{done.output}{done.exception}")
        return done.stdout

    # Life

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, failpoint: str = "", command: Sequence[str] = ("start",)) -> None:
        """``penstock start``, or another command; returns at once."""
        assert not self.running
        self.starts += 1
        environment = _environment() | self.environment
        if failpoint:
            environment["PENSTOCK_FAILPOINT"] = failpoint
        self._forgiven = 0
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [*_with_parent(), *_PENSTOCK, *command, "-D", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def wait_end(self, timeout: float) -> int | None:
        """The exit status (negative: the signal), or None when it still runs after ``timeout``."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def wait_stopped(self, timeout: float = 120) -> None:
        """Wait until a failpoint has stopped the process group (SIGSTOP)."""
        assert self._process is not None
        stat = Path(f"/proc/{self._process.pid}/stat")
        self.wait_for(
            "SIGSTOP at the failpoint",
            lambda: stat.read_text("utf-8").rpartition(")")[2].split()[0] == "T",
            timeout,
        )

    def go_on(self) -> None:
        """SIGCONT to the process group."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def kill9(self) -> None:
        """SIGKILL; Spark's JVM ends by itself, as with a crash of a user's node."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal. ``group``: to everything that it has started, too, as a terminal does."""
        assert self._process is not None
        if group:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)

    def stop(self, timeout: float = 60, *, group: bool = False) -> int:
        """SIGTERM, and the exit status. ``group``: to Spark's JVM too, as systemd does it."""
        self.signal(signal.SIGTERM, group=group)
        status = self.wait_end(timeout)
        assert status is not None, f"no end within {timeout} s after SIGTERM\n{self.log_tail()}"
        return status

    def close(self) -> None:
        """Nothing of ours runs afterwards, not even a JVM that outlived its driver."""
        self.kill9()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    # What it says

    @property
    def log_path(self) -> Path:
        return self.folder / f"start-{self.starts}.log"

    def log(self) -> str:
        """Everything that this start has printed."""
        return self.log_path.read_text("utf-8", "replace") if self.log_path.exists() else ""

    def news(self) -> str:
        """What it has printed since ``forgive``, or in this start."""
        return self.log()[self._forgiven :]

    def forgive(self) -> None:
        """Errors that were printed until now are no failure of the test."""
        self._forgiven = len(self.log())

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log().splitlines()[-lines:])

    def wait_for(
        self,
        what: str,
        state: Callable[[], bool],
        timeout: float = 90,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        """Wait until ``state()``; fails with the log when time is up, the node ends, or a
        subscription stops because of an error. ``progress``: as long as it changes, there is time.
        """
        deadline, reached = time.monotonic() + timeout, progress()
        while not state():
            if (now := progress()) != reached:
                deadline, reached = time.monotonic() + timeout, now
            assert "has stopped because of" not in self.news(), self.log_tail()
            assert self.running, f"the node ended, waiting for {what}\n{self.log_tail()}"
            assert time.monotonic() < deadline, f"no {what} in {timeout} s\n{self.log_tail()}"
            time.sleep(0.1)


def _with_parent() -> list[str]:
    """A program before the node's that lets it die with the tests, where there is one (Linux)."""
    program = shutil.which("setpriv")
    return [program, "--pdeathsig", "KILL", "--"] if program else []


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PENSTOCK_FAILPOINT"}
