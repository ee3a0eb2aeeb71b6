"""``penstock start`` in a process of its own, as users run it.

In: a folder and parameters. Out: a running node and its log.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, Final

from servers import wait_until

_FIGURES: Final = r" ((?:[a-z]+=[0-9.]+ ?)+)"
_PENSTOCK: Final = (sys.executable, "-m", "penstock.cli.main")


class NodeProcess:
    """A node that is started and stopped."""

    def __init__(self, folder: Path, parameters: Mapping[str, Any]) -> None:
        self.folder = folder
        self.log_path = folder.parent / "node.log"
        self._log: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        subprocess.run([*_PENSTOCK, "init", folder], check=True, stdout=subprocess.DEVNULL)
        path = folder / "penstock.toml"
        lines = [f"{name} = {json.dumps(value)}" for name, value in parameters.items()]
        path.write_text("\n".join([*lines, path.read_text("utf-8")]), encoding="utf-8")

    def start(self) -> None:
        self._log = self.log_path.open("ab")
        self._process = subprocess.Popen(
            [*_dies_with_us(), *_PENSTOCK, "start", "-D", self.folder],
            env={**os.environ, "PENSTOCK_LOG": "DEBUG"},
            stdout=self._log,
            stderr=self._log,
        )

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._log is not None:
            self._log.close()

    def wait(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        """Wait for a state. Raises RuntimeError when the node ends, TimeoutError."""

        def alive() -> bool:
            if self._process is not None and self._process.poll() is not None:
                raise RuntimeError(f"the node has ended:\n{self.log_tail()}")
            return bool(condition())

        wait_until(alive, seconds, what, pause=0.005)

    def log_size(self) -> int:
        """Bytes."""
        return self.log_path.stat().st_size

    def logged(self, what: str, since: int) -> list[dict[str, float]]:
        """The figures behind ``what`` ("batch", "copied") in the log from byte ``since`` on."""
        with self.log_path.open("rb") as file:
            file.seek(since)
            text = file.read().decode("utf-8", "replace")
        return [
            {key: float(value) for key, value in (pair.split("=") for pair in match[1].split())}
            for match in re.finditer(rf"\b{what}{_FIGURES}", text)
        ]

    def log_tail(self) -> str:
        return "\n".join(self.log_path.read_text("utf-8", "replace").splitlines()[-20:])


def _dies_with_us() -> list[str]:
    """A program in front of another that ends it with this one, where there is one (Linux)."""
    program = shutil.which("setpriv")
    return [program, "--pdeathsig", "TERM", "--"] if program else []
