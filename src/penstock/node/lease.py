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

Each entry has an id of its own. An entry whose id a process has not made is another's, also if that
one is a clone of the process and its memory.

A commit needs a lease whose newest entry is younger than ``TRUSTED_S``, less than anybody waits; an
older lease is renewed first. In a folder, each commit also looks for the next entry. A process that
is stopped between this check and its commit meets the other node's commit at the same version of
the table, and loses, as any two writers do.

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
from collections import deque
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from penstock.errors import (
    CommitConflict,
    ConfigurationError,
    ObjectInUse,
    PenstockError,
    StorageError,
)
from penstock.lakehouse.log import entry_uri, list_log, log_folder
from penstock.lakehouse.log_store import has_plain_puts, log_store
from penstock.lakehouse.storage import Storage, local_path
from penstock.lakehouse.warehouse import OWN_FOLDER, Warehouse
from penstock.lakehouse.xact import Elapsed
from penstock.node.claims import process_stat
from penstock.wait_event import Patience

log = logging.getLogger(__name__)

RENEW_S: Final = 5.0
"""Seconds from one entry of a running node to the next."""
TRUSTED_S: Final = 10.0
"""Seconds for which commits rely on the newest entry, from before it was put."""
EXPIRES_S: Final = 30.0
"""Seconds without a new entry after which another node takes the lease. A put that was begun while
the lease was trusted must have ended by then (``log_store.LONGEST_PUT_S``)."""
_RELEASE_S: Final = 5.0
"""Seconds for which a stop waits until the lease is given back."""
_REMEMBERED: Final = 1000
"""The number of own entries that a process knows again: more than an hour of them."""
_KEPT: Final = 10
"""The number of entries that stay: more than a node puts while another one reads and puts."""
_TRIES: Final = 5
_LOOK_S: Final = 0.2
_ZOMBIE: Final = "Z"
_STARTTIME: Final = 19
"""The place of starttime in /proc/PID/stat, after the name."""
_DAMAGED: Final = "XX001"
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # counts a suspended time


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds the lease. ``boot``, ``pids``: the start of its machine, and its space
    of PIDs, empty if unknown. ``lock``: the locked file of its folder. ``started``: the process's
    start, as its machine counts it."""

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
        """Return this process. ``lock``: the file that it has locked, if it runs the node."""
        found = lock.stat() if lock.exists() else None
        return cls(
            host=socket.gethostname(),
            pid=os.getpid(),
            since=datetime.now(UTC).isoformat(sep=" ", timespec="seconds"),
            folder=str(lock.parent),
            boot=_read(Path("/proc/sys/kernel/random/boot_id")),
            pids=_link(Path("/proc/self/ns/pid")),
            lock="" if found is None else f"{found.st_dev}:{found.st_ino}",
            started=_start_of(os.getpid()),
        )

    def has_ended(self, me: Holder) -> bool:
        """Return whether the process is known to have ended, by one on the same machine that holds
        the lock of its own folder."""
        if not self.boot or self.boot != me.boot:
            return False
        if self.lock and self.lock == me.lock:
            return True
        return bool(self.pids) and self.pids == me.pids and _has_ended(self.pid, self.started)


@dataclass(frozen=True, slots=True)
class _Entry:
    """The newest entry. ``version``: -1 if there is none. ``put``: its id. ``holder``: None if it
    cannot be read."""

    version: int
    put: str = ""
    holder: Holder | None = None

    def is_free(self, me: Holder) -> bool:
        if self.holder is None:
            return self.version < 0
        return self.holder.free or self.holder.has_ended(me)


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
        self._silent: _Entry | None = None
        self._renewed = Elapsed()
        self._puts: deque[str] = deque(maxlen=_REMEMBERED)
        self._lost: ObjectInUse | None = None
        self._stopped = ObjectInUse("the node has stopped")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def take(self, stop: threading.Event | None = None) -> bool:
        """Take the lease, and renew it from now on. Wait while it is not clear whether its holder
        runs; return False if ``stop`` is set meanwhile. Raises StorageError; ObjectInUse if another
        process holds it."""
        self._storage.create_folder(log_folder(self._uri))
        while (version := self._wait_until_free(stop)) is not None:
            if self._follows(version):
                self._thread.start()
                for old in list_log(self._storage, self._uri).entries[:-_KEPT]:
                    self._storage.remove(entry_uri(self._uri, old))
                return True
        return False

    def check_free(self, running: int | None) -> None:
        """Return if no process holds the lease but that with the PID ``running``. Wait as ``take``
        does, once for each holder. Raises StorageError, ObjectInUse."""
        holder = self._newest().holder
        if running is None or holder is None or holder.pid != running:
            self._wait_until_free(None)

    def _wait_until_free(self, stop: threading.Event | None) -> int | None:
        """Return the newest entry's version once no process holds the lease; None if ``stop`` is
        set before. Raises ObjectInUse."""
        watched = entry = self._newest()
        since, told = _now(), False
        while entry != self._silent and not entry.is_free(self._me):
            if entry != watched:
                raise self._in_use(entry.holder)
            if _now() - since >= EXPIRES_S:
                self._silent = entry
                break
            if stop is not None and stop.is_set():
                return None
            if not told:
                log.warning("%s", self._in_use(entry.holder).report())
                log.warning("waiting for its next sign, or for %.0f s without one", EXPIRES_S)
                told = True
            time.sleep(_LOOK_S)
            entry = self._newest()
        return entry.version

    def _follows(self, version: int) -> bool:
        """Put the entry after ``version``; return False if another process was first."""
        self._version, self._renewed = version, Elapsed()
        # Entries are removed only before newer ones.
        return self._put_next() and self._newest().put == self._puts[-1]

    def check(self) -> None:
        """Return if this process holds the lease. Raises StorageError; ObjectInUse if another
        process has it."""
        self.check_not_lost()
        if self._renewed.seconds >= TRUSTED_S or self._has_next():
            self.confirm()

    def _has_next(self) -> bool:
        """Return whether there is an entry after ours. Always False in an object store, where each
        look would be a request."""
        if not self._storage.is_local:
            return False
        return Path(local_path(entry_uri(self._uri, self._version + 1))).exists()

    def check_not_lost(self) -> None:
        """Raise ObjectInUse if another process has been found to have the lease, and after
        ``release``."""
        if self._lost is not None:
            raise self._lost

    def release(self, patience: Patience | None = None) -> None:
        """End the renewals, and let others take the lease at once. No commit is possible from now
        on. Never raises, and does not wait for a storage that hangs."""
        self._lost = self._lost or self._stopped
        self._ended.set()
        (patience or Patience()).join(self._thread, "lease", _RELEASE_S)

    def _run(self) -> None:
        failed = False
        while self._lost is None and not self._ended.wait(RENEW_S):
            try:
                self.confirm()
                self._check_owner()
                failed = False
            except PenstockError as error:
                if not failed and error is not self._lost:
                    log.warning("the lease on the warehouse: %s", error.message)
                failed = error is not self._lost
        if not failed and self._lost is self._stopped:
            self._give_back()

    def _check_owner(self) -> None:
        """Check that the warehouse still has the node's id, as a server looks at its own lock file
        (RecheckDataDirLockFile). Raises StorageError, ObjectInUse."""
        try:
            self._warehouse.check_there()
        except ConfigurationError as error:
            self._lost = ObjectInUse(error.message, detail=error.detail, hint=error.hint)
            raise self._lost from None

    def _give_back(self) -> None:
        try:
            with self._guard:
                self._put(replace(self._me, free=True))
        except PenstockError as error:
            log.warning("the lease on the warehouse could not be given back: %s", error.message)

    def confirm(self) -> bool:
        """Renew the lease now, and return True. Raises as ``check``."""
        with self._guard:
            for _ in range(_TRIES):
                self.check_not_lost()
                began = Elapsed()
                if self._put_next() and began.seconds < TRUSTED_S:
                    self._renewed = began
                    return True
                # After a slow put, too: another node's entry of this number may have been removed.
                self._look()
            raise StorageError(f'could not renew the lease "{self._uri}"')

    def _look(self) -> None:
        """Find the newest entry. Raises ObjectInUse if another process has put it; StorageError if
        the warehouse is not there."""
        entry = self._newest()
        if entry.version < 0:  # somebody has removed all entries, or the warehouse is away
            self._warehouse.check_there()
            self._storage.create_folder(log_folder(self._uri))
        elif entry.put not in self._puts:
            self._lost = self._in_use(entry.holder)
            raise self._lost
        # An older entry of our own: an older copy of the warehouse was put in its place.
        self._version = entry.version

    def _put_next(self) -> bool:
        """Put the next entry; return False if another one is there, whole or damaged. Raises
        StorageError."""
        try:
            self._put(self._me)
        except CommitConflict:
            return False
        except StorageError as error:
            if error.sqlstate != _DAMAGED:
                raise
            return False
        return True

    def _put(self, holder: Holder) -> None:
        self._puts.append(str(uuid.uuid4()))
        line = json.dumps({**asdict(holder), "put": self._puts[-1]})
        log_store(self._storage, None).put(self._uri, self._version + 1, [line])
        self._version += 1
        if self._version >= _KEPT:
            self._storage.remove(entry_uri(self._uri, self._version - _KEPT))

    def _newest(self) -> _Entry:
        version = list_log(self._storage, self._uri).newest
        if version is None:
            return _Entry(-1)
        content = self._storage.read_if_there(entry_uri(self._uri, version))
        try:
            found = json.loads(content or b"")
            holder = Holder(**{name: found[name] for name in Holder.__slots__})
            return _Entry(version, found["put"], holder)
        except (ValueError, KeyError, TypeError):
            return _Entry(version)

    def _in_use(self, holder: Holder | None) -> ObjectInUse:
        who = "another process" if holder is None else holder.folder
        return ObjectInUse(
            f'the warehouse "{self._storage.uri}" is in use by another node: {who}',
            detail=None
            if holder is None
            else f'It runs on host "{holder.host}" with PID {holder.pid} since {holder.since}. If '
            "it has the same node id, one of them is a copy of the other.",
            hint="Stop that node, and remove the copy. For a second node: penstock init, with a "
            "warehouse of its own.",
        )


def lease_on(warehouse: Warehouse, lock: Path) -> Lease | None:
    """Return the lease on a warehouse, not yet taken; None if its place can have none."""
    return Lease(warehouse, lock) if has_plain_puts(warehouse.storage) else None


def _now() -> float:
    return time.clock_gettime(_CLOCK)


def _has_ended(pid: int, started: str) -> bool:
    """Return whether there is no such process, or another one that has started since. What cannot
    be read proves nothing: /proc may hide the processes of others."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    now = _start_of(pid)
    return now == _ZOMBIE or ("" not in (now, started) and now != started)


def _start_of(pid: int) -> str:
    """Return a process's start in ticks since the machine's; empty if it cannot be read."""
    fields = process_stat(pid)
    if len(fields) <= _STARTTIME:
        return ""
    return _ZOMBIE if fields[0] == _ZOMBIE else fields[_STARTTIME]


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
