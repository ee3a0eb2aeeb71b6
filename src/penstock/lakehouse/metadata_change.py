"""The metadata of a table's next version, where its columns change (protocol: "Change Metadata").

In: the state of now, the columns that are to be. Out: actions for the log. What others have
written to metadata and properties stays.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.lakehouse import protocol
from penstock.lakehouse.actions import Action
from penstock.lakehouse.schema import KEY, TableSchema, altered
from penstock.lakehouse.state import TableState


def changed_metadata(
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
        else altered(metadata["schemaString"], columns[:kept], columns[kept:])
    )
    found.append({"metaData": {k: v for k, v in metadata.items() if v is not None}})
    return found
