"""Checkpoints of a table's log, and removal of what they make needless (protocol: "Checkpoints").

In: a table whose log has grown. Out: a checkpoint of its newest version, durable on return, and
fewer old entries. On a local warehouse delta-rs writes it (it keeps deletion vectors, transaction
markers and unexpired tombstones, in milliseconds); elsewhere Delta itself does both
(``log.SparkLogStore``).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deltalake import DeltaTable as DeltaRs
from deltalake.exceptions import DeltaError

from penstock.errors import StorageError
from penstock.lakehouse.log import list_log, log_folder
from penstock.lakehouse.storage import Storage, local_path, storage_errors

_LOG_RETENTION: Final = "delta.logRetentionDuration"
_DEFAULT_RETENTION: Final = "interval 30 days"
_CLEANUP: Final = "delta.enableExpiredLogCleanup"
_LAST: Final = "_last_checkpoint"
_TEMPORARY: Final = re.compile(r"^\..+\.[0-9a-f]{32}\.tmp$")
_ABANDONED_S: Final = 3600.0
"""A temporary file of this age has no writer; one that comes back gets an error and tries again."""
_VERSIONED: Final = re.compile(
    r"^\.?(\d{20})\.(?:json|crc|checkpoint\.[\w.-]*parquet|\d{20}\.compacted\.json)(?:\.crc)?$"
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


def write_local_checkpoint(storage: Storage, table_uri: str) -> None:
    """Write a checkpoint of the newest version of a local table. Raises StorageError."""
    folder = Path(local_path(log_folder(table_uri)))
    # Hadoop's local file system keeps checksums beside its files and would reject our new ones
    (folder / f".{_LAST}.crc").unlink(missing_ok=True)
    with storage_errors("write checkpoint", table_uri):
        try:
            table = DeltaRs(local_path(table_uri))
            table.create_checkpoint()
        except DeltaError as error:
            raise StorageError(f'could not write checkpoint of "{table_uri}": {error}') from error
    for part in list_log(storage, table_uri).checkpoints.get(table.version(), ()):
        storage.sync_file(part)
    storage.sync_file(f"{log_folder(table_uri)}/{_LAST}")
    storage.sync_folder(log_folder(table_uri))


def remove_expired_entries(storage: Storage, table_uri: str, properties: Mapping[str, str]) -> int:
    """Remove log files past "delta.logRetentionDuration"; returns how many.

    Temporary files of processes that were killed go too: neither Delta's log cleanup nor VACUUM
    looks at hidden names.

    What is kept can still be read: every version from the newest checkpoint that is itself older
    than the retention onward.
    """
    _remove_abandoned(table_uri)
    if properties.get(_CLEANUP, "true").lower() == "false":
        return 0
    horizon = time.time() - interval_seconds(properties.get(_LOG_RETENTION, _DEFAULT_RETENTION))
    with storage_errors("clean up log", table_uri):
        folder = local_path(log_folder(table_uri))
        checkpoints = list_log(storage, table_uri).checkpoints
        first = max((v for v, parts in checkpoints.items() if _older(parts, horizon)), default=0)
        expired = [path for path in _before(folder, first) if path.stat().st_mtime < horizon]
        for path in expired:
            path.unlink(missing_ok=True)
    return len(expired)


def _remove_abandoned(table_uri: str) -> None:
    horizon = time.time() - _ABANDONED_S
    for uri in (log_folder(table_uri), table_uri):
        with storage_errors("clean up directory", uri), os.scandir(local_path(uri)) as found:
            for entry in found:
                if _TEMPORARY.match(entry.name) and entry.stat().st_mtime < horizon:
                    Path(entry.path).unlink(missing_ok=True)


def interval_seconds(text: str) -> float:
    """Seconds of a table property such as "interval 1 week" (CalendarInterval without months)."""
    parts = _PART.findall(text.lower().removeprefix("interval").strip())
    try:
        return sum(int(number) * _SECONDS[unit] for number, unit in parts)
    except KeyError as error:
        raise StorageError(f'interval "{text}" has an unknown unit: {error}') from None


def _older(parts: tuple[str, ...], horizon: float) -> bool:
    return all(Path(local_path(part)).stat().st_mtime < horizon for part in parts)


def _before(folder: str, version: int) -> list[Path]:
    with os.scandir(folder) as found:
        names = [entry.name for entry in found]
    matches = ((name, _VERSIONED.match(name)) for name in names)
    return [Path(folder) / name for name, match in matches if match and int(match[1]) < version]
