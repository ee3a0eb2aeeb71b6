"""The node of the demo, run as a user runs it: ``penstock`` commands in processes of their own.

In: a folder. Out: its life (init, sql, start, SIGKILL, stop). What it prints goes to a log file in
that folder.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from penstock.errors import ConfigurationError

_PENSTOCK = (sys.executable, "-m", "penstock.cli.main")
_STOP_SECONDS = 60.0
_COMMAND_SECONDS = 180.0


class NodeProcess:
    """One node; ``close`` leaves no process behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warehouse = folder / "warehouse"
        self.log_path = folder / "node.log"
        self._process: subprocess.Popen[bytes] | None = None

    def init(self) -> None:
        self._command("init", str(self.folder))

    def sql(self, statement: str) -> str:
        """``penstock sql``: what it prints. Raises ConfigurationError with the error's text."""
        # On standard input, since a process list would show a password in an argument.
        return self._command("sql", "-D", str(self.folder), "-", text=statement)

    def start(self) -> None:
        """``penstock start``; returns at once."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*_PENSTOCK, "start", "-D", str(self.folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal is the demo's to handle.
                start_new_session=True,
            )

    def require_running(self) -> None:
        """Raises ConfigurationError with the end of the log when the node has ended by itself."""
        if self._process is None or self._process.poll() is not None:
            tail = "\n".join(self.log_path.read_text("utf-8", "replace").splitlines()[-15:])
            raise ConfigurationError("the node has ended", detail=tail)

    def kill9(self) -> None:
        """SIGKILL, and the end; Spark's JVM goes when its driver is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """SIGTERM: the node ends after the current cut."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill9()

    def close(self) -> None:
        """Ends the node and whatever it started, at once."""
        self.kill9()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process = None

    def _command(self, *arguments: str, text: str = "") -> str:
        done = subprocess.run(
            [*_PENSTOCK, *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMMAND_SECONDS,
        )
        if done.returncode != 0:
            raise ConfigurationError(
                f"penstock {arguments[0]} failed", detail=(done.stderr or done.stdout).strip()
            )
        return done.stdout
