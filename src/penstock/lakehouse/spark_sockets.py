"""The folder of the sockets by which a local Spark and its Python processes talk.

In: nothing. Out: a folder that nobody but this user can enter, short enough for the path of a
socket in it, or none. Spark asks nobody for a secret on these sockets, and its Python processes run
what comes by them, so the folder's mode is what keeps others out.

By TCP a job takes some 40 ms more: both ends write in small pieces, and each waits for the other's
delayed acknowledgement.

A process holds a lock on its folder until it ends, however it ends. The next one to make a folder
removes those whose lock is free; systemd-tmpfiles leaves a folder alone that is locked.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import logging
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

_PREFIX: Final = "penstock-"
_SUFFIX: Final = ".sockets"
_LONGEST_PATH: Final = 107 if sys.platform == "linux" else 103
_LONGEST_NAME: Final = len(".00000000-0000-0000-0000-000000000000.sock")
"""What Spark calls a socket."""


def socket_folder() -> Path | None:
    """The folder of this process; None where no temporary folder has a path that is short enough,
    or can have sockets."""
    for folder, lock in _held.items():
        if lock.is_of(folder):
            return folder
    for parent in dict.fromkeys((Path(tempfile.gettempdir()), Path("/tmp"))):
        name = f"{_PREFIX}12345678{_SUFFIX}"
        if len(os.fsencode(parent / name)) + len("/") + _LONGEST_NAME > _LONGEST_PATH:
            continue
        try:
            remove_leftovers(parent)
            return _make(parent)
        except OSError as error:
            log.info("no folder for Spark's sockets in %s: %s", parent, error)
    return None


def remove_leftovers(parent: Path) -> None:
    """Remove folders of processes that are gone; others' are left alone."""
    for folder in parent.glob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(OSError), _Locked(folder, wait=False):
            shutil.rmtree(folder)


def _make(parent: Path) -> Path:
    while True:
        folder = Path(tempfile.mkdtemp(_SUFFIX, _PREFIX, parent))  # mode 0700
        try:
            lock = _Locked(folder, wait=True)
        except FileNotFoundError:  # somebody took it for a leftover before it was locked
            continue
        if lock.is_of(folder):
            try:
                _try(folder)
            except OSError:
                shutil.rmtree(folder, ignore_errors=True)
                lock.close()
                raise
            atexit.register(_remove, folder, os.getpid())
            _held[folder] = lock
            return folder
        lock.close()


def _try(folder: Path) -> None:
    """Not every file system has sockets."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/.sock")
    (folder / ".sock").unlink()


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # and not a fork of that process
        shutil.rmtree(folder, ignore_errors=True)


class _Locked:
    """A lock on a folder of our own. Raises OSError where another process has it."""

    def __init__(self, folder: Path, *, wait: bool) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        self._descriptor = os.open(folder, flags)
        try:
            if os.fstat(self._descriptor).st_uid != os.geteuid():
                raise PermissionError(f"{folder} is another user's")
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> _Locked:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_of(self, folder: Path) -> bool:
        """Whether the name is still that of the folder."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), folder.stat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        os.close(self._descriptor)


_held: Final[dict[Path, _Locked]] = {}
"""Until the process ends."""
