"""A node as the user runs it, with parameters for small machines, and stopped at failpoints.

In: a folder, parameters. Out: what ``penstock.embedded.NodeProcess`` does, and its status.
``init``, ``sql`` and ``status`` are the commands too, but in the tests' own process: a Python takes
two seconds of the processor to start, and whoever waits for a state asks many times.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from typer.testing import CliRunner

from penstock import embedded
from penstock.cli.main import app
from penstock.embedded import CommandFailed, wait_until
from penstock.node.status import Health
from processes import below, command_line

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


class NodeProcess(embedded.NodeProcess):
    """One node. ``warehouse``: its folder of Delta tables; ``warehouse_uri``: where they are, if
    that is no folder."""

    def __init__(
        self, folder: Path, *, warehouse: Path | None = None, warehouse_uri: str = ""
    ) -> None:
        super().__init__(folder)
        self.warehouse = warehouse or self.warehouse
        self.warehouse_uri = warehouse_uri or str(self.warehouse)
        self._forgiven = 0

    def init(self, parameters: Mapping[str, Any] | None = None, **spark: str) -> None:
        """``penstock init``, then ``configure``."""
        given = parameters or {}
        state = ["--state", str(given["state"])] if "state" in given else []
        self._here("init", str(self.folder), "--warehouse", self.warehouse_uri, *state)
        self.configure(parameters, **spark)

    def configure(
        self,
        parameters: Mapping[str, Any] | None = None,
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

    def status(self) -> Any:
        """``penstock status --json``."""
        return json.loads(
            self._here("status", "-D", str(self.folder), "--json", fine=tuple(Health))
        )

    def sql(self, statements: str) -> str:
        """``penstock sql``: what it prints."""
        return self._here("sql", "-D", str(self.folder), "-", text=statements)

    def _here(self, *arguments: str, text: str = "", fine: tuple[int, ...] = (0,)) -> str:
        """As ``command``, without a process; its standard output."""
        done = CliRunner().invoke(app, arguments, input=text)
        if done.exit_code not in fine or not isinstance(done.exception, SystemExit | None):
            said = f"{done.output}{done.exception}"
            raise CommandFailed(
                f"penstock {arguments[0]}: exit status {done.exit_code}", detail=said
            )
        return done.stdout

    def start(self, failpoint: str = "", command: Sequence[str] = ("start",)) -> None:
        self._forgiven = 0
        super().start(failpoint, command)

    def stop(self, timeout: float = 60, *, group: bool = False) -> int:
        """As there, but a node that has to be killed is a failure."""
        status = super().stop(timeout, group=group)
        assert status is not None, f"no end within {timeout} s after SIGTERM\n{self.log_tail()}"
        return status

    def wait_stopped(self, timeout: float = 120) -> None:
        """Wait until a failpoint has stopped the process group (SIGSTOP)."""
        assert self._process is not None
        stat = Path(f"/proc/{self._process.pid}/stat")
        self.wait_for(
            "SIGSTOP at the failpoint",
            lambda: stat.read_text("utf-8").rpartition(")")[2].split()[0] == "T",
            timeout,
        )

    def kill_below(self, word: bytes) -> None:
        """SIGKILL to what works for the node and has the word in its command line."""

        def kill() -> bool:
            found = [p for p in below(self.pid) if p != self.pid and word in command_line(p)]
            for process in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            return bool(found)

        self.wait_for(f"a process with {word!r}", kill)

    def go_on(self) -> None:
        """SIGCONT to the process group."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    # What it says

    def news(self) -> str:
        """What it has printed since ``forgive``, or in this start."""
        return self.log()[self._forgiven :]

    def forgive(self) -> None:
        """Errors that were printed until now are no failure of the test."""
        self._forgiven = len(self.log())

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

        def guard() -> None:
            assert "has stopped because of" not in self.news(), self.log_tail()
            self.require_running()

        wait_until(state, what, timeout, state=self.log_tail, guard=guard, progress=progress)
