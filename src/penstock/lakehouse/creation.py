"""The first log entry of a new table.

In: a schema's JSON, a protocol, properties. Out: the actions of version 0. Putting them is left to
whoever creates the table.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from penstock.lakehouse import actions
from penstock.lakehouse.actions import Action


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
