"""Commits of one table: put the next entry of its log, and find out what became of it (xact.c).

A commit puts the next version, durable on return, or raises CommitConflict if another writer was
first. A store may carry out a put without answering. After such an error the entry is open: it may
exist, now or later, and ``settle`` finds out.

No other module puts entries. The caller decides which actions a version has, and whether to try
again after a lost race; ``log_store`` puts one entry into each kind of store.

    put ---> there (returns)
         |-> another writer's is there (CommitConflict): nothing of ours will come
         '-> no answer (any other error) ---> open ---> settle: there, or never
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import CommitConflict, PenstockError, StorageError
from penstock.interrupts import commit_begins
from penstock.lakehouse.actions import Action, commit_info, lines
from penstock.lakehouse.deletion_vectors import VectorFile
from penstock.lakehouse.log import entry_uri, log_folder, read_entry
from penstock.lakehouse.log_store import LogStore
from penstock.lakehouse.storage import Storage, fsync_folder, local_path, storage_errors

log = logging.getLogger(__name__)

_CHECKPOINT_INTERVAL: Final = "delta.checkpointInterval"
_DEFAULT_INTERVAL: Final = 10
"""Commits between two checkpoints (Delta's default)."""


@dataclass(frozen=True)
class Commit:
    """A version to put. ``operation``: the name that DESCRIBE HISTORY shows; ``actions``: all but
    commitInfo; ``blind_append``: nothing of the table was read."""

    operation: str
    actions: Sequence[Action] = ()
    user_metadata: Mapping[str, object] = field(default_factory=dict)
    blind_append: bool = False


class TableLog:
    """The Delta log of one table, to commit to it. Not safe for use by several threads."""

    def __init__(self, storage: Storage, store: LogStore, uri: str) -> None:
        self.storage: Final = storage
        self.uri: Final = uri
        self._store = store
        self._open: tuple[int, Sequence[str]] | None = None

    @property
    def is_open(self) -> bool:
        """Return whether the last entry may be there, now or later, although its put has raised."""
        return self._open is not None

    def check(self) -> None:
        """Raise the error for which no put would begin now, as ``LogStore.check``."""
        self._store.check()

    def create(self, entry: Sequence[str]) -> None:
        """Put the lines of version 0, durable on return. Raises StorageError; CommitConflict if
        there is a table."""
        self.storage.create_folder(log_folder(self.uri))
        self._put(0, entry)

    def put(self, after: int, commit: Commit, vectors: VectorFile | None = None) -> list[Action]:
        """Put the version that follows ``after``, durable on return; return its entry. ``vectors``:
        the file with its deletion vectors.

        Raises StorageError; CommitConflict if another writer was first, and then nothing of this
        commit is left in the table's folder.
        """
        info = commit_info(
            commit.operation,
            user_metadata=commit.user_metadata,
            blind_append=commit.blind_append,
            read_version=after,
        )
        entry = [info, *commit.actions]
        if vectors is None or vectors.empty:
            self._put(after + 1, lines(entry))
            return entry
        uri = f"{self.uri}/{vectors.name}"
        self.storage.write(uri, bytes(vectors.content))
        try:
            self._put(after + 1, lines(entry))
        except BaseException:
            if not self.is_open:
                self.storage.remove(uri)
            raise
        return entry

    def settle(self) -> int | None:
        """Return the version of the last entry, durable, if it exists although its put has raised;
        None if it does not exist, and never will. Raises StorageError if that cannot be found out.

        In an object store the put may still be under way, so the entry is put again if it is
        absent.
        """
        if self._open is None:
            return None
        version, entry = self._open
        ours = [json.loads(line) for line in entry]
        while (there := read_entry(self.storage, self.uri, version)) is None:
            if self.storage.is_local:
                self._open = None
                return None
            try:
                self._put(version, entry)
            except CommitConflict:
                continue
            return version
        if there != ours:
            self._open = None
            return None
        if self.storage.is_local and self.storage.fsync:
            folder = local_path(log_folder(self.uri))
            with storage_errors("synchronize directory", folder):
                fsync_folder(folder)
        self._open = None
        return version

    def checkpoint(self, properties: Mapping[str, str]) -> None:
        """Write a checkpoint of the newest version, and remove entries past their retention. Any
        thread may call this. Raises StorageError."""
        self._store.checkpoint(self.uri, properties)

    def checkpoint_if_due(self, version: int, properties: Mapping[str, str]) -> None:
        """Write a checkpoint if it is due at ``version``. An error is only logged: the rows are in
        the table."""
        if version % _checkpoint_interval(properties):
            return
        try:
            self.checkpoint(properties)
        except PenstockError as error:
            log.warning('checkpoint of table "%s": %s', self.uri, error.message)
        except Exception:  # whatever it is, the commit must not be reported as failed
            log.exception('checkpoint of table "%s"', self.uri)

    def _put(self, version: int, entry: Sequence[str]) -> None:
        self.check()
        self._open = version, entry
        commit_begins()
        try:
            self._store.put(self.uri, version, entry)
        except BaseException as error:
            if not self._may_come(version, error):
                self._open = None
            raise
        self._open = None

    def _may_come(self, version: int, error: BaseException) -> bool:
        """Return whether an entry whose put has raised ``error`` may exist, now or later. Only a
        local warehouse can be searched for it: an object store may carry out a put later, without
        having answered."""
        if isinstance(error, CommitConflict):
            return False
        if not self.storage.is_local:
            return True
        try:
            return self.storage.exists(entry_uri(self.uri, version))
        except StorageError:
            return True


def _checkpoint_interval(properties: Mapping[str, str]) -> int:
    """Return the commits between two checkpoints. Delta refuses other values than positive numbers,
    but delta-rs writes any text: then it is the default."""
    text = properties.get(_CHECKPOINT_INTERVAL, "").strip()
    return int(text) if text.isascii() and text.isdecimal() and int(text) else _DEFAULT_INTERVAL


# Elapsed time by two clocks, which decides for how long a loaded version is trusted.
#
# The time of day may be set back, and the time since the machine's start may stand still while it
# is suspended or its image is moved. So the clock that shows more counts.

_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _steady() -> float:
    return time.clock_gettime(_STEADY)


class Elapsed:
    """The time since this object was made."""

    def __init__(self) -> None:
        self._time, self._since_start = time.time(), _steady()

    @property
    def seconds(self) -> float:
        """The seconds that have passed, by the clock that shows more."""
        return max(time.time() - self._time, _steady() - self._since_start)
