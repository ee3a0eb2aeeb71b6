"""Actions of a Delta log (protocol: "Actions", "Change Metadata") as JSON lines.

The functions build the actions of a log entry from values of this room, and turn them into lines.
Metadata and properties that other writers have set are kept. The caller puts the lines into the
log; ``state`` reads actions back.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from penstock.lakehouse import protocol, statistics
from penstock.lakehouse.checksums import sealed
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.schema import KEY, TableSchema, alter_schema_json
from penstock.lakehouse.schema_changes import has_wider, with_types
from penstock.lakehouse.state import TableState
from penstock.lakehouse.table_layout import (
    CLUSTERING,
    NO_LAYOUT,
    TableLayout,
    clustering_configuration,
)

ENGINE: Final = "Penstock"

Action = Mapping[str, Any]


def now_ms() -> int:
    """Return the milliseconds since the Unix epoch, Delta's unit of time."""
    return time.time_ns() // 1_000_000


def add(file: DataFile, *, data_change: bool) -> Action:
    """Return the add action of a file. Its vector, if any, must have a descriptor."""
    body: dict[str, Any] = {
        "path": file.path,
        "partitionValues": dict(file.partition_values or {}),
        "size": file.size,
        "modificationTime": file.modification_time,
        "dataChange": data_change,
    }
    if file.descriptor:
        # The protocol wants numRecords for every file with a vector, even if its writer gave no
        # statistics. The bounds are no longer tight: they include deleted rows.
        stats = {"numRecords": file.rows, **file.stats, "tightBounds": False}
        body["stats"] = statistics.to_json(stats)
    elif file.stats:
        body["stats"] = statistics.to_json(file.stats)
    if file.tags:
        body["tags"] = dict(file.tags)
    if file.descriptor:
        body["deletionVector"] = dict(file.descriptor)
    if file.clustering_provider:
        body["clusteringProvider"] = file.clustering_provider
    return {"add": body}


def remove(file: DataFile, *, now: int, data_change: bool) -> Action:
    """Return the remove action of a file as it is in the current version."""
    body: dict[str, Any] = {
        "path": file.path,
        "deletionTimestamp": now,
        "dataChange": data_change,
        "extendedFileMetadata": True,
        "partitionValues": dict(file.partition_values or {}),
        "size": file.size,
    }
    if file.tags:
        body["tags"] = dict(file.tags)
    if file.descriptor:
        body["deletionVector"] = dict(file.descriptor)
    return {"remove": body}


def txn(app_id: str, version: int, *, now: int) -> Action:
    """Return a transaction marker."""
    return {"txn": {"appId": app_id, "version": version, "lastUpdated": now}}


def commit_info(
    operation: str,
    *,
    user_metadata: Mapping[str, object],
    blind_append: bool,
    read_version: int | None,
) -> Action:
    """Return the commitInfo action, which DESCRIBE HISTORY shows."""
    body: dict[str, Any] = {
        "timestamp": now_ms(),
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
    """Return one compact JSON text per action; in commitInfo, if it is the first, the checksum of
    them all."""
    return sealed([json.dumps(action, separators=(",", ":")) for action in actions])


def first_entry(
    schema_json: str,
    protocol: Mapping[str, Any],
    properties: Mapping[str, str],
    layout: TableLayout = NO_LAYOUT,
) -> list[Action]:
    """Return commitInfo, protocol, metaData and domainMetadata of a table without rows."""
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_json,
        "partitionColumns": list(layout.partition_by),
        "configuration": dict(properties),
        "createdTime": now_ms(),
    }
    info = commit_info("CREATE TABLE", user_metadata={}, blind_append=True, read_version=None)
    entry: list[Action] = [info, {"protocol": dict(protocol)}, {"metaData": metadata}]
    if layout.cluster_by:
        domain = {
            "domain": CLUSTERING,
            "configuration": clustering_configuration(layout),
            "removed": False,
        }
        entry.append({"domainMetadata": domain})
    return entry


def change_metadata(
    state: TableState,
    schema: TableSchema,
    told: Mapping[str, Sequence[str]],
    kept: int | None,
    properties: Mapping[str, str],
) -> list[Action]:
    """Return the actions that give a table the columns of ``schema``.

    ``told``: property -> the names of all columns that it lists. ``kept``: the number of leading
    columns that exist already; None if another table replaces this one.
    ``properties``: other properties to set.
    """
    metadata: dict[str, Any] = dict(state.metadata)
    configuration = {k: v for k, v in state.properties.items() if k not in told}
    configuration.update(properties)
    features = [protocol.TIMESTAMP_NTZ] if schema.needs_timestamp_ntz else []
    features += [protocol.VARIANT_TYPE] if schema.has_variants else []
    if kept is not None and has_wider(metadata["schemaString"], schema.columns[:kept]):
        features.append(protocol.TYPE_WIDENING)
        configuration[protocol.ENABLE_WIDENING] = "true"
    more = protocol.with_features(state.protocol, features)
    found: list[Action] = [] if more is None else [{"protocol": more}]
    configuration |= {name: json.dumps(columns) for name, columns in told.items() if columns}
    metadata["configuration"] = configuration
    if kept is None or list(schema.key) != json.loads(configuration.get(KEY, "[]")):
        configuration[KEY] = json.dumps(schema.key)
    columns = schema.columns
    metadata["schemaString"] = (
        schema.delta_json()
        if kept is None
        else with_types(
            alter_schema_json(metadata["schemaString"], columns[:kept], columns[kept:]), columns
        )
    )
    found.append({"metaData": {k: v for k, v in metadata.items() if v is not None}})
    return found


# Marks in the user metadata of the node's commits, a JSON object. One mark says that a commit is a
# TRUNCATE, which is published as such and not as deletes of its rows. Another says which commits
# belong to one transaction. Other writers may put any text there; it is ignored unless it is an
# object with one of our names. Spark takes the text from
# ``spark.databricks.delta.commitInfo.userMetadata``. ``row_pairs`` has marks of its own.

_OURS: Final = "penstock."
"""The prefix of all our names."""
_GROUP: Final = "penstock.transaction"


def user_metadata(actions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return our marks in a commit's user metadata; empty if it has none."""
    for action in actions:
        found = _parse((action.get("commitInfo") or {}).get("userMetadata"))
        if found:
            return found
    return {}


def group_mark(group: str) -> Mapping[str, object]:
    """Return the mark for each commit of one transaction over several tables."""
    return {_GROUP: group}


def group_of(actions: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the name that all commits of one transaction share; None for a single commit."""
    group = user_metadata(actions).get(_GROUP)
    return group if isinstance(group, str) else None


def _parse(text: Any) -> Mapping[str, Any]:
    if not isinstance(text, str) or _OURS not in text:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


_BLOCK: Final = "penstock.block"
_UNDONE: Final = "penstock.undone"


def block_mark(group: str, relations: Iterable[int], *, undone: bool = False) -> Mapping[str, Any]:
    """Return the mark for each commit of a transaction block over several tables.

    ``relations``: oids of all its tables; ``undone``: this commit undoes one of the block.
    """
    mark = {**group_mark(group), _BLOCK: sorted(relations)}
    return {**mark, _UNDONE: True} if undone else mark


def block_of(actions: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Return the oids of all tables of a commit's block; empty unless the block has several."""
    found = user_metadata(actions).get(_BLOCK)
    if not isinstance(found, list) or group_of(actions) is None:
        return frozenset()
    return frozenset(oid for oid in found if isinstance(oid, int))


def is_undone(actions: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a commit undoes another commit of its block."""
    return user_metadata(actions).get(_UNDONE) is True


_TRUNCATE: Final = "penstock.truncate"
_RELATIONS: Final = "penstock.relations"
MARK: Final[Mapping[str, object]] = {_TRUNCATE: True}
"""User metadata of a commit that removes every existing row."""


def grouped_mark(group: str, relations: Iterable[int]) -> Mapping[str, object]:
    """Return the mark for each of several tables that one transaction empties together.

    ``relations``: oids of all of them, including partitioned tables.
    """
    return {**MARK, **group_mark(group), _RELATIONS: sorted(relations)}


def emptied_with(actions: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Return the oids of all relations that the same TRUNCATE emptied; empty if not marked."""
    found = user_metadata(actions).get(_RELATIONS)
    if not isinstance(found, list):
        return frozenset()
    return frozenset(oid for oid in found if isinstance(oid, int))


def is_truncate(actions: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a commit is marked as a TRUNCATE."""
    return user_metadata(actions).get(_TRUNCATE) is True


_REVERSES: Final = "penstock.reverses"


def reversal_mark(versions: Iterable[int]) -> Mapping[str, object]:
    """Return the mark of a commit that undoes other commits of the same table."""
    return {_REVERSES: sorted(versions)}


def reversed_by(actions: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    """Return the versions whose commits a commit undoes."""
    found = user_metadata(actions).get(_REVERSES)
    return frozenset(found) if isinstance(found, list) else frozenset()
