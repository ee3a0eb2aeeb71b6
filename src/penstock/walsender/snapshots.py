"""Exported snapshots: one name for a set of table versions (snapmgr.c, ExportSnapshot).

A session exports a consistent point, and other sessions import it by name, until the exporting
session runs its next command or ends. A snapshot stays readable for as long as Delta keeps its
versions.
"""

from __future__ import annotations

import threading

from penstock.errors import UndefinedObject
from penstock.walsender.sequencer import Position


class Snapshots:
    """All exported snapshots of a node."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._exported: dict[str, tuple[int, Position]] = {}
        self._count = 0

    def export(self, pid: int, position: Position) -> str:
        """Export ``position`` and return its name, in PostgreSQL's form."""
        with self._lock:
            self._count += 1
            name = f"{pid:08X}-{self._count:08X}-1"
            self._exported[name] = pid, position
            return name

    def take(self, name: str) -> Position:
        """Return the position of a snapshot (SET TRANSACTION SNAPSHOT). Raises PenstockError
        (42704)."""
        with self._lock:
            if name not in self._exported:
                raise UndefinedObject(f'snapshot "{name}" does not exist')
            return self._exported[name][1]

    def withdraw(self, pid: int) -> None:
        """Remove a session's snapshots."""
        with self._lock:
            for name in [n for n, (owner, _) in self._exported.items() if owner == pid]:
                del self._exported[name]
