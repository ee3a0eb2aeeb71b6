"""Checkpoints of a Delta log, and removal of old entries (protocol: "Checkpoints").

A checkpoint of the newest version is durable on return. In local folders, S3 and Azure delta-rs
writes it, which takes milliseconds and keeps deletion vectors, transaction markers and unexpired
tombstones. Elsewhere Delta itself writes it and removes entries (``log_store.SparkLogStore``).

delta-rs does not check what it reads, so we check it before: a checkpoint of damaged files would
have a right checksum.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import Final

from deltalake import DeltaTable as DeltaRs
from deltalake.exceptions import DeltaError

from penstock.errors import StorageError
from penstock.lakehouse.checksums import CheckpointSum
from penstock.lakehouse.log import (
    LogListing,
    check_checkpoint,
    check_entry,
    entry_uri,
    list_log,
    log_folder,
)
from penstock.lakehouse.object_store import delta_rs_options
from penstock.lakehouse.storage import Storage, local_path, storage_errors

log = logging.getLogger(__name__)

_LOG_RETENTION: Final = "delta.logRetentionDuration"
RETENTIONS: Final = (_LOG_RETENTION, "delta.deletedFileRetentionDuration")
"""The properties for how long log entries and removed data files are kept."""
_SHORTER_DEFAULT: Final = "interval 7 days"
_DEFAULT_RETENTION: Final = "interval 30 days"
_CLEANUP: Final = "delta.enableExpiredLogCleanup"
_LAST: Final = "_last_checkpoint"
_TEMPORARY: Final = re.compile(r"^\..+\.[0-9a-f]{32}\.tmp$")
_ABANDONED_S: Final = 3600.0
"""A temporary file of this age counts as abandoned. If its writer still runs, it gets an error and
tries again."""
_VERSIONED: Final = re.compile(
    r"^\.?(\d{20})\.(?:json|crc|checkpoint\.[\w.-]*parquet|\d{20}\.compacted\.json)"
    r"(?:\.crc|\.\d+\.[0-9a-f]{8}\.sum)?$"
)
_SECONDS: Final = {
    "millisecond": 0.001,
    "second": 1.0,
    "minute": 60.0,
    "hour": 3600.0,
    "day": 86400.0,
    "week": 604800.0,
}
_PART: Final = re.compile(r"(\d+)\s+([a-z]+?)s?(?:\s|$)")


def write_checkpoint(storage: Storage, table_uri: str) -> None:
    """Write a checkpoint of the newest version of a table. Raises StorageError, also if the log is
    damaged (XX001)."""
    there = _check_log(storage, table_uri)
    if storage.is_local:
        # Hadoop's local file system keeps checksums beside its files, and would reject a file that
        # we replace
        crc = local_path(f"{log_folder(table_uri)}/.{_LAST}.crc")
        with storage_errors("remove file", crc):
            Path(crc).unlink(missing_ok=True)
    with storage_errors("write checkpoint", table_uri):
        try:
            table = _delta_rs(storage, table_uri)
            table.create_checkpoint()
        except DeltaError as error:
            raise StorageError(f'could not write checkpoint of "{table_uri}": {error}') from error
    # Sync the content, then its checksum and the pointer to it, then the names (law 1).
    for part in list_log(storage, table_uri).checkpoints.get(table.version(), ()):
        storage.sync_file(part)
        if table.version() not in there:  # else delta-rs has written none
            storage.write(CheckpointSum.of(storage.read(part)).beside(part), b"")
    hint = f"{log_folder(table_uri)}/{_LAST}"
    if storage.exists(hint):
        storage.sync_file(hint)
    storage.sync_folder(log_folder(table_uri))


def _check_log(storage: Storage, table_uri: str) -> Set[int]:
    """Check what the next checkpoint is made of: the last one and the entries since then. Return
    the versions with a checkpoint.

    A damaged checkpoint is removed if the entries that it stands for are still there. Raises
    StorageError (XX001) otherwise, and at a damaged entry.
    """
    listing = list_log(storage, table_uri)
    sound, damaged = -1, dict[int, StorageError]()
    for version in sorted(listing.checkpoints, reverse=True):
        failure = _damage(storage, listing, version)
        if failure is None:
            sound = version
            break
        damaged[version] = failure
    for version in (v for v in listing.entries if v > sound):
        content = storage.read_if_there(entry_uri(table_uri, version))
        if content is not None:
            check_entry(table_uri, version, content)
    for version, failure in damaged.items():
        if not set(listing.entries).issuperset(range(sound + 1, version + 1)):
            raise failure
        log.warning("%s; it is removed, as the log has all entries", failure.message)
    _check_hint(storage, table_uri, listing.checkpoints.keys() - damaged.keys())
    for part in (part for version in damaged for part in listing.checkpoints[version]):
        storage.remove(part)
        for each in listing.sums.get(part, ()):
            storage.remove(each.beside(part))
    return listing.checkpoints.keys() - damaged.keys()


def _damage(storage: Storage, listing: LogListing, version: int) -> StorageError | None:
    """Return the error for a checkpoint that is not as its checksum tells; None if it is, or has
    none."""
    try:
        for part in listing.checkpoints[version]:
            if part in listing.sums:
                check_checkpoint(part, storage.read(part), listing)
    except StorageError as error:
        if error.sqlstate != "XX001":
            raise
        return error
    return None


def _check_hint(storage: Storage, table_uri: str, checkpoints: Set[int]) -> None:
    """Remove the pointer to the last checkpoint unless it names one of ``checkpoints``: delta-rs
    would follow it. Without it readers list the log."""
    uri = f"{log_folder(table_uri)}/{_LAST}"
    content = storage.read_if_there(uri)
    if content is None:
        return
    try:
        if json.loads(content)["version"] in checkpoints:
            return
    except (ValueError, KeyError, TypeError):
        pass
    log.warning('file "%s" names no sound checkpoint; it is removed', uri)
    storage.remove(uri)


def _delta_rs(storage: Storage, table_uri: str) -> DeltaRs:
    if storage.is_local:
        return DeltaRs(local_path(table_uri))
    return DeltaRs(table_uri, storage_options=delta_rs_options(table_uri))


def remove_expired_entries(storage: Storage, table_uri: str, properties: Mapping[str, str]) -> int:
    """Remove log files past "delta.logRetentionDuration"; return how many.

    Also remove temporary files of killed processes: neither Delta's log cleanup nor VACUUM looks at
    hidden names.

    All versions since the newest checkpoint that is older than the retention can still be read.
    """
    if storage.is_local:
        _remove_abandoned(table_uri)
    if properties.get(_CLEANUP, "true").lower() == "false":
        return 0
    horizon = time.time() - interval_seconds(properties.get(_LOG_RETENTION, _DEFAULT_RETENTION))
    folder = log_folder(table_uri)
    with storage_errors("clean up log", table_uri):
        checkpoints = list_log(storage, table_uri).checkpoints
        names, modified = _files(storage, folder)
        first = max(
            (v for v, parts in checkpoints.items() if _older(map(_name, parts), modified, horizon)),
            default=0,
        )
        expired = [n for n in names if _version(n) < first and _older([n], modified, horizon)]
    for name in expired:
        storage.remove(f"{folder}/{name}")
    return len(expired)


def _files(storage: Storage, folder: str) -> tuple[list[str], Callable[[str], float]]:
    """Return the names in a folder, and a function that returns when a file was modified: on a
    local disk each time takes a call of its own, and there may be a hundred thousand files."""
    if storage.is_local:
        path = Path(local_path(folder))
        with os.scandir(path) as found:
            return [entry.name for entry in found], lambda name: (path / name).stat().st_mtime
    times = {i.base_name: i.mtime.timestamp() for i in storage.list(folder) if i.mtime is not None}
    return list(times), lambda name: times.get(name, math.inf)


def _remove_abandoned(table_uri: str) -> None:
    horizon = time.time() - _ABANDONED_S
    for uri in (log_folder(table_uri), table_uri):
        with storage_errors("clean up directory", uri), os.scandir(local_path(uri)) as found:
            for entry in found:
                if not _TEMPORARY.match(entry.name):
                    continue
                with contextlib.suppress(FileNotFoundError):  # its writer has finished
                    if entry.stat().st_mtime < horizon:
                        Path(entry.path).unlink()


def longer_retentions(properties: Mapping[str, str], seconds: int) -> dict[str, str]:
    """Return new values for the retentions that are below ``seconds``. Raises StorageError."""
    short = [
        name
        for name in RETENTIONS
        if interval_seconds(properties.get(name, _SHORTER_DEFAULT)) < seconds
    ]
    return dict.fromkeys(short, f"interval {seconds} seconds")


def interval_seconds(text: str) -> float:
    """Return the seconds of a table property such as "interval 1 week" (CalendarInterval without
    months). Raises StorageError."""
    parts = _PART.findall(text.lower().removeprefix("interval").strip())
    try:
        return sum(int(number) * _SECONDS[unit] for number, unit in parts)
    except KeyError as error:
        raise StorageError(f'interval "{text}" has an unknown unit: {error}') from None


def _older(names: Iterable[str], modified: Callable[[str], float], horizon: float) -> bool:
    return all(modified(name) < horizon for name in names)


def _name(uri: str) -> str:
    return uri.rpartition("/")[2]


def _version(name: str) -> float:
    """Return the version in a log file's name; infinity if there is none."""
    match = _VERSIONED.match(name)
    return int(match[1]) if match else math.inf
