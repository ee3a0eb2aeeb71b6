"""A node as a user runs it: ``penstock`` commands in processes of their own.

``NodeProcess`` runs the commands in a folder (init, sql, start, stop), kills the node, reads its
output, and waits for a state. Each start writes its output to a new file in the folder, since a
killed node's JVM may continue to write.
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
from typing import Any, Final, TypeVar

from penstock.errors import ConfigurationError

# Waiting for a state, with a deadline, for the demo, the tests and the benchmarks. No production
# code waits like this.

T = TypeVar("T")
_PAUSE: Final = 0.05
_SELDOM: Final = 2.0
"""The pause before the next look, as a multiple of the last look's duration."""


def _nothing() -> None:
    return None


def wait_until(
    look: Callable[[], T],
    what: str,
    timeout: float = 60,
    *,
    state: Callable[[], object] | None = None,
    guard: Callable[[], object] = _nothing,
    progress: Callable[[], object] = _nothing,
    pause: float | None = None,
) -> T:
    """Call ``look`` every ``pause`` seconds until its result is true, and return the result.

    Without ``pause``, call it every 0.05 s, and less often if a call takes long: the awaited work
    needs the processor. The TimeoutError shows ``state()``, or without ``state`` the last result.
    ``guard`` is called each time and raises if waiting has become pointless. Each change of
    ``progress()`` extends the deadline.
    """
    began = time.monotonic()
    deadline, reached = began + timeout, progress()
    while not (found := look()):
        if (now := progress()) != reached:
            deadline, reached = time.monotonic() + timeout, now
        guard()
        if time.monotonic() >= deadline:
            last = found if state is None else state()
            shown = "" if isinstance(last, bool) else f"; last seen: {last}"
            raise TimeoutError(f"no {what} in {timeout:g} s{shown}")
        adapted = max(_PAUSE, _SELDOM * (time.monotonic() - began))
        time.sleep(adapted if pause is None else pause)
        began = time.monotonic()
    return found


_PENSTOCK: Final = (sys.executable, "-m", "penstock.cli.main")
_STOP_SECONDS: Final = 60.0
_COMMAND_SECONDS: Final = 180.0


class CommandFailed(ConfigurationError):
    """A ``penstock`` command ended with an exit status other than 0; ``detail`` is its output."""

    def __str__(self) -> str:
        return f"{self.message}\n{self.detail}"


class NodeProcess:
    """One node as processes; ``close`` leaves no process behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warehouse = folder / "warehouse"
        self.starts = 0
        self.environment: dict[str, str] = {}
        """Variables added to the environment of ``penstock start``."""
        self._process: subprocess.Popen[bytes] | None = None

    def init(self, parameters: Mapping[str, Any] | None = None) -> None:
        """Run ``penstock init``, and put ``parameters`` before those that it writes."""
        self.command("init", str(self.folder))
        if parameters:
            path = self.folder / "penstock.toml"
            lines = [f"{name} = {json.dumps(value)}" for name, value in parameters.items()]
            path.write_text("\n".join([*lines, path.read_text("utf-8")]), encoding="utf-8")

    def command(self, *arguments: str, text: str = "") -> str:
        """Run ``penstock arguments`` with ``text`` as standard input, and return its output. Raises
        CommandFailed."""
        done = subprocess.run(
            [*_PENSTOCK, *arguments],
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_COMMAND_SECONDS,
            env=_environment(),
        )
        if done.returncode:
            raise CommandFailed(
                f"penstock {arguments[0]}: exit status {done.returncode}",
                detail=done.stdout.strip(),
            )
        return done.stdout

    def sql(self, statements: str) -> str:
        """Run ``penstock sql`` and return its output. Raises CommandFailed."""
        # The statements go to standard input: as an argument, a process list would show passwords.
        return self.command("sql", "-D", str(self.folder), "-", text=statements)

    # Life

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of this start."""
        assert self._process is not None
        return self._process.pid

    def start(self, failpoint: str = "", command: Sequence[str] = ("start",)) -> None:
        """Run ``penstock start``, or another command, and return at once."""
        assert not self.running
        self.starts += 1
        environment = _environment() | self.environment
        if failpoint:
            environment["PENSTOCK_FAILPOINT"] = failpoint
        # A child of the process before may still write: at the end, and not behind a hole.
        self.log_path.write_bytes(b"")
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*ends_with_parent(), *_PENSTOCK, *command, "-D", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                # Ctrl-C in the terminal must reach only us.
                start_new_session=True,
            )

    def restart(self) -> None:
        """Stop the node and start it."""
        self.stop()
        self.start()

    def wait_end(self, timeout: float) -> int | None:
        """Return the exit status (negative: a signal), None if it still runs after ``timeout``."""
        assert self._process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout)
        return None

    def kill9(self) -> None:
        """Send SIGKILL; Spark's JVM ends by itself, as after a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal; with ``group`` to the node's whole process group, as a terminal does."""
        assert self._process is not None
        if group:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)

    def stop(self, timeout: float = _STOP_SECONDS, *, group: bool = False) -> int | None:
        """Send SIGTERM, which ends the node after the current cut, and return its exit status.
        Return None if it did not run or had to be killed. With ``group``, Spark's JVM gets the
        signal too, as from systemd."""
        if not self.running:
            return None
        self.signal(signal.SIGTERM, group=group)
        status = self.wait_end(timeout)
        if status is None:
            self.kill9()
        return status

    def close(self) -> None:
        """Kill all the node's processes, even a JVM that has outlived its driver."""
        self.kill9()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    # Output

    @property
    def log_path(self) -> Path:
        """The log file of this start."""
        return self.folder / f"start-{self.starts}.log"

    def log(self) -> str:
        """Return everything that this start has printed."""
        return self.log_path.read_text("utf-8", "replace") if self.log_path.exists() else ""

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log().splitlines()[-lines:])

    def require_running(self) -> None:
        """Raise ConfigurationError, with the end of the log, if the node has ended by itself."""
        if not self.running:
            raise ConfigurationError("the node has ended", detail=self.log_tail())

    def wait_until(
        self, look: Callable[[], T], what: str, timeout: float = 90, pause: float | None = None
    ) -> T:
        """Wait as the function ``wait_until`` does, while the node runs. Raises TimeoutError;
        ConfigurationError if the node has ended."""
        return wait_until(
            look, what, timeout, state=self.log_tail, guard=self.require_running, pause=pause
        )


def ends_with_parent(end: str = "KILL") -> list[str]:
    """Return a command prefix that ends a program with us; [] where there is none (not Linux)."""
    program = shutil.which("setpriv")
    return [program, "--pdeathsig", end, "--"] if program else []


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PENSTOCK_FAILPOINT"}
