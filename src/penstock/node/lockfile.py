"""One running node per folder (miscinit.c, postmaster.pid).

In: the node's folder. Out: a held lock, or an error that names the process which holds it. The lock
is the operating system's: it goes with the process, however that dies.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO, Final

from penstock.errors import ObjectInUse

FILE_NAME: Final = "penstock.pid"


class LockFile:
    """``penstock.pid``, locked. Raises ObjectInUse when another process holds it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._file: IO[str] = self._path.open("a+", encoding="ascii")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            pid = self._file.read().strip() or "unknown"
            self._file.close()
            raise ObjectInUse(
                f'node "{folder}" is already running (PID {pid})',
                hint=f"Stop it first (kill {pid}), or start another node in another folder.",
            ) from None
        self._file.seek(0)
        self._file.truncate()
        self._file.write(f"{os.getpid()}\n")
        self._file.flush()

    def release(self) -> None:
        """Let go of the lock; the file stays, empty."""
        self._file.seek(0)
        self._file.truncate()
        self._file.close()


def running_pid(folder: Path) -> int | None:
    """The process that runs this node now, or None."""
    try:
        with (folder / FILE_NAME).open("r", encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return int(file.read().strip() or 0) or None
    except FileNotFoundError:
        pass
    return None
