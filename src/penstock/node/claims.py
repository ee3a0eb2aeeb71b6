"""A node's claims: to its folder while it runs (postmaster.pid), and to its warehouse.

A lock on ``penstock.pid`` claims the folder. If another process holds the lock, the error names
that process. The lock is the operating system's, which frees it when the process dies.

The node's id in the warehouse claims the warehouse. A warehouse is refused if it is missing or
belongs to another node, or if its store cannot tell two writers apart. A warehouse without an id
may be new, or from a version without ids. An empty mount point looks the same, so the node checks
its catalog.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from penstock.catalog import Catalog, SubscriptionRelState
from penstock.errors import ConfigurationError, ObjectInUse, PenstockError
from penstock.lakehouse.log import list_log
from penstock.lakehouse.log_store import check_conditional_puts
from penstock.lakehouse.warehouse import Warehouse

FILE_NAME: Final = "penstock.pid"
"""The file with the process's PID, a second line if the process handles SIGHUP, and a checksum of
both: a changed digit would be another process's PID, which gets signals."""
_HEARS_SIGHUP: Final = "SIGHUP"
_CHECKSUM: Final = "crc32"


class LockFile:
    """The locked file ``penstock.pid``. Raises ObjectInUse when another process has locked it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE_NAME
        self._file: IO[str] = self._path.open("a+", encoding="ascii", errors="replace")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise self._already_running(folder) from None
        # A handler, not SIG_DFL or SIG_IGN.
        hears = callable(signal.getsignal(signal.SIGHUP))
        self._content = _content(os.getpid(), hears_sighup=hears)
        self._file.seek(0)
        self._file.truncate()
        self._file.write(self._content)
        self._file.flush()

    def _already_running(self, folder: Path) -> ObjectInUse:
        self._file.seek(0)
        with self._file as file, contextlib.suppress(ValueError):
            if (found := _read_content(file.read())) is not None:
                pid, _ = found
                return ObjectInUse(
                    f'node "{folder}" is already running (PID {pid})',
                    hint=f"Stop it first (kill {pid}), or start another node in another folder.",
                )
        return ObjectInUse(
            f'node "{folder}" is already running (PID unknown)',
            hint="Stop it first, or start another node in another folder.",
        )

    def check(self) -> None:
        """Check that the file is still there, so that nobody else can lock it, and that it names
        this process (RecheckDataDirLockFile). Raises ObjectInUse."""
        if not os.fstat(self._file.fileno()).st_nlink:
            raise ObjectInUse(
                f'the lock file "{self._path}" was removed or replaced',
                detail="Another process could run the node as well.",
                hint="Start the node again.",
            )
        self._file.seek(0)
        if (found := self._file.read()) != self._content:
            raise ObjectInUse(
                f'lock file "{self._path}" contains {found!r} instead of {self._content!r}',
                detail="Commands would take another process for the node's.",
                hint="Start the node again: it writes the file anew.",
            )

    def release(self) -> None:
        """Release the lock; the file stays, empty."""
        self._file.seek(0)
        self._file.truncate()
        self._file.close()


@dataclass(frozen=True, slots=True)
class Running:
    """The process that runs a node. ``hears_sighup``: SIGHUP does not end it. ``since``: the time
    of its start, in seconds since 1970."""

    pid: int
    hears_sighup: bool
    since: float = field(default=0.0, compare=False)


def running_process(folder: Path) -> Running | None:
    """Return the process that runs this node now, or None. Raises ConfigurationError if the file
    does not tell (CreateLockFile in miscinit.c)."""
    try:
        with (folder / FILE_NAME).open("r", encoding="ascii", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                since = os.fstat(file.fileno()).st_mtime
                content = file.read()
                try:
                    found = _read_content(content)
                except ValueError:
                    raise ConfigurationError(
                        f'bogus data in lock file "{folder / FILE_NAME}": {content!r}',
                        hint="A process that runs the node has locked the file. Stop that process "
                        "and start the node again: it writes the file anew.",
                    ) from None
                return None if found is None else Running(*found, since)
    except FileNotFoundError:
        pass
    return None


def _content(pid: int, *, hears_sighup: bool) -> str:
    """Return the content of the file."""
    text = f"{pid}\n" + (f"{_HEARS_SIGHUP}\n" if hears_sighup else "")
    return f"{text}{_CHECKSUM} {zlib.crc32(text.encode()):08x}\n"


def _read_content(content: str) -> tuple[int, bool] | None:
    """Return PID and ``hears_sighup``; None for an empty file, which its process is about to write.
    Raises ValueError."""
    if not content:
        return None
    first, *more = content.splitlines()
    pid, hears_sighup = int(first), more[:1] == [_HEARS_SIGHUP]
    written = _content(pid, hears_sighup=hears_sighup)
    # Older versions write no checksum.
    if content not in (written, written.rpartition(_CHECKSUM)[0]):
        raise ValueError(content)
    return pid, hears_sighup


def process_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the process's name, its state first; none if it has
    ended, /proc hides it, or this is no Linux."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


_COPIED = (
    SubscriptionRelState.FINISHEDCOPY,
    SubscriptionRelState.SYNCDONE,
    SubscriptionRelState.READY,
)


@dataclass(frozen=True, slots=True)
class FoundWarehouse:
    """A warehouse as the node finds it. ``owner``: the id in it; ``recorded``: the URI of the
    warehouse into which the node last wrote its id.

    ``tables``: the number of tables that the node knows; ``there``: at least one of them has a log.
    """

    owner: str | None
    recorded: str | None
    tables: int
    there: bool


def take_warehouse(catalog: Catalog, warehouse: Warehouse) -> None:
    """Write the node's id into the warehouse. Raises StorageError; ConfigurationError if it must
    not be used."""
    node_id = catalog.node_info.node_id
    refusal = refuse(_look(catalog, warehouse), node_id, warehouse)
    if refusal is not None:
        raise refusal
    check_conditional_puts(warehouse.storage)
    warehouse.claim(node_id)
    if catalog.warehouse() != warehouse.uri:
        catalog.record_warehouse(warehouse.uri)


def refuse(found: FoundWarehouse, node_id: str, warehouse: Warehouse) -> PenstockError | None:
    """Return the error if the node must not use the warehouse, else None."""
    if found.owner is not None:
        return None if found.owner == node_id else warehouse.not_ours(found.owner, node_id)
    if found.recorded == warehouse.uri or (found.tables and not found.there):
        return warehouse.not_there(node_id)
    return None


def _look(catalog: Catalog, warehouse: Warehouse) -> FoundWarehouse:
    owner = warehouse.owner()
    if owner is not None:
        return FoundWarehouse(owner, None, 0, True)
    with catalog.read() as t:
        copied = [rel for rel in t.relations.all() if rel.state in _COPIED and rel.lsn is not None]
        uris = {warehouse.table_uri(rel.schema, rel.table) for rel in copied}
        uris |= {table.uri for table in t.tables.all() if table.uri is not None}
    storage = warehouse.storage
    there = any(listing.entries for listing in (list_log(storage, uri) for uri in uris))
    return FoundWarehouse(None, catalog.warehouse(), len(uris), there)
