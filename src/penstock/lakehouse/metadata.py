"""The metadata of a new table, and of a table whose columns change (protocol: "Change Metadata").

In: a schema's JSON, a protocol, properties; or the state of now and the columns that are to be.
Out: actions for the log. What others have written to metadata and properties stays. Putting the
actions is left to the caller.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.lakehouse import actions, protocol
from penstock.lakehouse.actions import Action
from penstock.lakehouse.schema import KEY, TableSchema, alter_schema_json
from penstock.lakehouse.state import TableState


def first_entry(
    schema_json: str, protocol: Mapping[str, Any], properties: Mapping[str, str]
) -> list[Action]:
    """commitInfo, protocol and metaData of a table without partitions and rows."""
    now = actions.now_ms()
    metadata = {
        "id": str(uuid.uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_json,
        "partitionColumns": [],
        "configuration": dict(properties),
        "createdTime": now,
    }
    info = actions.commit_info(
        "CREATE TABLE", now=now, user_metadata={}, blind_append=True, read_version=None
    )
    return [info, {"protocol": dict(protocol)}, {"metaData": metadata}]


def change_metadata(
    state: TableState, schema: TableSchema, told: Mapping[str, Sequence[str]], kept: int | None
) -> list[Action]:
    """``told``: property -> names of columns, all of them. ``kept``: how many of the columns, the
    first ones, are there already; None: it is another table in the place of this one."""
    found: list[Action] = []
    if schema.needs_timestamp_ntz:
        wider = protocol.with_timestamp_ntz(state.protocol)
        if wider is not None:
            found.append({"protocol": wider})
    metadata: dict[str, Any] = dict(state.metadata)
    configuration = {k: v for k, v in state.properties.items() if k not in told}
    configuration |= {name: json.dumps(columns) for name, columns in told.items() if columns}
    metadata["configuration"] = configuration
    if kept is None or list(schema.key) != json.loads(configuration.get(KEY, "[]")):
        configuration[KEY] = json.dumps(schema.key)
    columns = schema.columns
    metadata["schemaString"] = (
        schema.delta_json()
        if kept is None
        else alter_schema_json(metadata["schemaString"], columns[:kept], columns[kept:])
    )
    found.append({"metaData": {k: v for k, v in metadata.items() if v is not None}})
    return found
