"""Actions of Delta's log (protocol: "Actions") as JSON lines.

In: values of this room. Out: mappings for one log entry, and lines. Reading them back is ``state``.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, Final

from penstock.lakehouse import statistics
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.deletion_vectors import Descriptor

ENGINE: Final = "Penstock"

Action = Mapping[str, Any]


def now_ms() -> int:
    """Milliseconds since the Unix epoch, Delta's unit of time."""
    return time.time_ns() // 1_000_000


def add(file: DataFile, descriptor: Descriptor | None, *, data_change: bool) -> Action:
    """The add action of a file, with its vector's descriptor."""
    body: dict[str, Any] = {
        "path": file.path,
        "partitionValues": {},
        "size": file.size,
        "modificationTime": file.modification_time,
        "dataChange": data_change,
    }
    if descriptor:
        # The protocol asks for the rows of every file with a vector, also where its writer gave no
        # statistics; the vector leaves bounds wider than the rows that are left.
        stats = {"numRecords": file.rows, **file.stats, "tightBounds": False}
        body["stats"] = statistics.to_json(stats)
    elif file.stats:
        body["stats"] = statistics.to_json(file.stats)
    if file.tags:
        body["tags"] = dict(file.tags)
    if descriptor:
        body["deletionVector"] = dict(descriptor)
    return {"add": body}


def remove(file: DataFile, *, now: int, data_change: bool) -> Action:
    """The remove action of a file as it is in the current version."""
    body: dict[str, Any] = {
        "path": file.path,
        "deletionTimestamp": now,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": {},
        "size": file.size,
    }
    if file.tags:
        body["tags"] = dict(file.tags)
    if file.descriptor:
        body["deletionVector"] = dict(file.descriptor)
    return {"remove": body}


def txn(app_id: str, version: int, *, now: int) -> Action:
    """A transaction marker."""
    return {"txn": {"appId": app_id, "version": version, "lastUpdated": now}}


def commit_info(
    operation: str,
    *,
    now: int,
    user_metadata: Mapping[str, object],
    blind_append: bool,
    read_version: int | None,
) -> Action:
    """Who did what, for DESCRIBE HISTORY."""
    body: dict[str, Any] = {
        "timestamp": now,
        "operation": operation,
        "operationParameters": {},
        "isolationLevel": "Serializable",
        "isBlindAppend": blind_append,
        "engineInfo": ENGINE,
        "txnId": str(uuid.uuid4()),
    }
    if read_version is not None:
        body["readVersion"] = read_version
    if user_metadata:
        body["userMetadata"] = json.dumps(user_metadata)
    return {"commitInfo": body}


def lines(actions: Iterable[Action]) -> list[str]:
    """One compact JSON text per action."""
    return [json.dumps(action, separators=(",", ":")) for action in actions]
