"""Exported snapshots: one name for a set of table versions (snapmgr.c, ExportSnapshot).

A session exports a consistent point, and other sessions import it by name. A transaction block's
snapshot is there until the block ends, one of CREATE_REPLICATION_SLOT until the session runs its
next command. A snapshot stays readable for as long as Delta keeps its versions.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from penstock.errors import UndefinedObject
from penstock.walsender.sequencer import Position


@dataclass(frozen=True, slots=True)
class _Exported:
    pid: int
    position: Position
    block: bool


class Snapshots:
    """All exported snapshots of a node."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._exported: dict[str, _Exported] = {}
        self._count = 0

    def export(self, pid: int, position: Position, *, block: bool = False) -> str:
        """Export ``position`` and return its name, in PostgreSQL's form. ``block``: it is there
        until the session's transaction block ends."""
        with self._lock:
            self._count += 1
            name = f"{pid:08X}-{self._count:08X}-1"
            self._exported[name] = _Exported(pid, position, block)
            return name

    def take(self, name: str) -> Position:
        """Return the position of a snapshot (SET TRANSACTION SNAPSHOT). Raises PenstockError
        (42704)."""
        with self._lock:
            if name not in self._exported:
                raise UndefinedObject(f'snapshot "{name}" does not exist')
            return self._exported[name].position

    def withdraw(self, pid: int, *, block: bool = False) -> None:
        """Remove a session's snapshots; those of its transaction block only if ``block``."""
        with self._lock:
            kept = {n: e for n, e in self._exported.items() if e.pid != pid or (e.block > block)}
            self._exported = kept
