"""The node's lease on its warehouse, so that one process at a time commits there.

A copied folder or a restored machine has the node's id, too, and the lock on the folder does not
reach it. So a running node renews a lease in the warehouse: a numbered entry, which is put only if
it is absent, by the same calls as the entries of a Delta log. Exactly one process puts each. ::

    A puts 7, 8, 9 ... and B, which starts meanwhile, sees 8 become 9: B is refused
    A stops:                            it puts "free", and B puts the next at once
    A was killed on B's machine:        B sees that, and puts the next at once
    A was killed elsewhere, or hangs:   B sees no new entry for ``EXPIRES_S``, and puts the next
    A's storage was away meanwhile:     A's next entry is there already, and A stops; or it is not,
                                        and A goes on

A commit needs a lease whose newest entry is younger than ``TRUSTED_S``, less than anybody waits; an
older lease is renewed first. A process that is stopped between this check and its commit meets the
other node's commit at the same version of the table, and loses, as any two writers do.

Other places than folders, S3 and Azure need Spark for such a put, and have no lease.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from penstock.errors import CommitConflict, ObjectInUse, PenstockError, StorageError
from penstock.lakehouse.log import entry_uri, list_log, log_folder
from penstock.lakehouse.log_store import has_plain_puts, log_store
from penstock.lakehouse.storage import Storage
from penstock.lakehouse.warehouse import OWN_FOLDER, Warehouse

log = logging.getLogger(__name__)

RENEW_S: Final = 5.0
"""Seconds from one entry of a running node to the next."""
TRUSTED_S: Final = 20.0
"""Seconds for which commits rely on the newest entry, from before it was put."""
EXPIRES_S: Final = 30.0
"""Seconds without a new entry after which another node takes the lease."""
_KEPT: Final = 10
"""The number of entries that stay: more than a node puts while another one reads and puts."""
_TRIES: Final = 5
_LOOK_S: Final = 0.2
_STARTTIME: Final = 19
"""The place of starttime in /proc/PID/stat, after the name."""
_DAMAGED: Final = "XX001"
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # counts a suspended time


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds the lease. ``process``: unique. ``boot``, ``pids``: the start of its
    machine, and its space of PIDs, empty if unknown. ``lock``: the locked file of its folder.
    ``started``: the process's start, as its machine counts it."""

    process: str
    host: str
    pid: int
    since: str
    folder: str
    boot: str
    pids: str
    lock: str
    started: str
    free: bool = False

    @classmethod
    def here(cls, lock: Path) -> Holder:
        """Return this process. ``lock``: the file that it has locked."""
        found = lock.stat()
        return cls(
            process=str(uuid.uuid4()),
            host=socket.gethostname(),
            pid=os.getpid(),
            since=datetime.now(UTC).isoformat(sep=" ", timespec="seconds"),
            folder=str(lock.parent),
            boot=_read(Path("/proc/sys/kernel/random/boot_id")),
            pids=_link(Path("/proc/self/ns/pid")),
            lock=f"{found.st_dev}:{found.st_ino}",
            started=_start_of(os.getpid()),
        )

    def has_ended(self, me: Holder) -> bool:
        """Return whether the process is known to have ended, by one on the same machine that holds
        the lock of its own folder."""
        if not self.boot or self.boot != me.boot:
            return False
        if self.lock == me.lock:
            return True
        return bool(self.pids) and self.pids == me.pids and _start_of(self.pid) != self.started


class Lease:
    """The lease of one running node: ``take``, then ``check`` before each commit, then
    ``release``."""

    def __init__(self, warehouse: Warehouse, lock: Path) -> None:
        """``lock``: the locked file of the node's folder."""
        self._warehouse = warehouse
        # A power failure ends the holders, too: its entries need not survive it.
        self._storage = Storage(warehouse.uri, fsync=False)
        self._uri = f"{self._storage.uri}/{OWN_FOLDER}/running"
        self._me = Holder.here(lock)
        self._guard = threading.Lock()
        self._version = -1
        self._renewed = 0.0
        self._lost: PenstockError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def take(self, stop: threading.Event | None = None) -> None:
        """Take the lease, and renew it from now on. Wait while it is not clear whether its holder
        runs. Raises StorageError; ObjectInUse if another process holds it, or after ``stop``."""
        self._storage.create_folder(log_folder(self._uri))
        watched, since = None, _now()
        while True:
            version, holder = self._newest()
            silent = version == watched and _now() - since >= EXPIRES_S
            ended = holder is not None and (holder.free or holder.has_ended(self._me))
            if version < 0 or silent or ended:
                if self._follows(version):
                    break
            elif watched is None:
                watched, since = version, _now()
                log.warning("%s", self._in_use(holder).report())
                log.warning("waiting for its next sign, or for %.0f s without one", EXPIRES_S)
            elif version != watched or (stop is not None and stop.is_set()):
                raise self._in_use(holder)
            time.sleep(_LOOK_S)
        for old in list_log(self._storage, self._uri).entries[:-_KEPT]:
            self._storage.remove(entry_uri(self._uri, old))
        self._thread.start()

    def _follows(self, version: int) -> bool:
        """Put the entry after ``version``; return False if another process was first."""
        self._version, self._renewed = version, _now()
        try:
            self._put(self._me)
        except (CommitConflict, StorageError) as error:
            if isinstance(error, StorageError) and error.sqlstate != _DAMAGED:
                raise
            return False
        return self._newest()[0] == self._version  # entries are removed only before newer ones

    def check(self) -> None:
        """Return if this process holds the lease. Raises StorageError; ObjectInUse if another
        process has it."""
        if self._lost is None and _now() - self._renewed < TRUSTED_S:
            return
        self._renew()

    def check_not_lost(self) -> None:
        """Raise ObjectInUse if another process has been found to have the lease."""
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """End the renewals, and let others take the lease at once. Never raises."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        try:
            with self._guard:
                if self._lost is None:
                    self._put(replace(self._me, free=True))
        except PenstockError as error:
            log.warning("the lease on the warehouse could not be given back: %s", error.message)

    def _run(self) -> None:
        told = False
        while self._lost is None and not self._ended.wait(RENEW_S):
            try:
                self._renew()
                told = False
            except PenstockError as error:
                if not told:
                    log.warning("the lease on the warehouse: %s", error.message)
                told = True

    def _renew(self) -> None:
        with self._guard:
            self.check_not_lost()
            for _ in range(_TRIES):
                began = _now()
                try:
                    self._put(self._me)
                except (CommitConflict, StorageError) as error:
                    if isinstance(error, StorageError) and error.sqlstate != _DAMAGED:
                        raise
                else:
                    if _now() - began < TRUSTED_S:
                        self._renewed = began
                        return
                # After a slow put, too: another node's entry of this number may have been removed.
                self._look()
            raise StorageError(f'could not renew the lease "{self._uri}"')

    def _look(self) -> None:
        """Find the newest entry. Raises ObjectInUse if another process has put it; StorageError if
        there is none."""
        version, holder = self._newest()
        if version < 0:
            raise self._warehouse.not_there(self._warehouse.node_id or "")
        if version > self._version and (holder is None or holder.process != self._me.process):
            self._lost = self._in_use(holder)
            raise self._lost
        # An older entry: an older copy of the warehouse was put in its place.
        self._version = version

    def _put(self, holder: Holder) -> None:
        line = json.dumps({**asdict(holder), "put": str(uuid.uuid4())})
        log_store(self._storage, None).put(self._uri, self._version + 1, [line])
        self._version += 1
        if self._version >= _KEPT:
            self._storage.remove(entry_uri(self._uri, self._version - _KEPT))

    def _newest(self) -> tuple[int, Holder | None]:
        """Return the newest entry; -1 if there is none, None if it cannot be read."""
        version = list_log(self._storage, self._uri).newest
        if version is None:
            return -1, None
        content = self._storage.read_if_there(entry_uri(self._uri, version))
        try:
            found = json.loads(content or b"")
            return version, Holder(**{name: found[name] for name in Holder.__slots__})
        except (ValueError, KeyError, TypeError):
            return version, None

    def _in_use(self, holder: Holder | None) -> ObjectInUse:
        who = "another process" if holder is None else holder.folder
        return ObjectInUse(
            f'the warehouse "{self._storage.uri}" is in use by another node: {who}',
            detail=None
            if holder is None
            else f'It runs on host "{holder.host}" with PID {holder.pid} since {holder.since}, and '
            "has the same node id: one of them is a copy of the other.",
            hint="Stop that node, and remove the copy. For a second node: penstock init, with a "
            "warehouse of its own.",
        )


def lease_on(warehouse: Warehouse, lock: Path) -> Lease | None:
    """Return the lease on a warehouse, not yet taken; None if its place can have none."""
    return Lease(warehouse, lock) if has_plain_puts(warehouse.storage) else None


def _now() -> float:
    return time.clock_gettime(_CLOCK)


def _start_of(pid: int) -> str:
    """Return a process's start in ticks since the machine's; empty if there is no such process."""
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return fields[_STARTTIME] if len(fields) > _STARTTIME and fields[0] != "Z" else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
