"""The first log entry of a table that the node makes.

In: columns, how rows are laid out. Out: actions of version 0, or a refusal of what Delta would not
take.
"""

from __future__ import annotations

import json
from typing import Final

from penstock.lakehouse import protocol
from penstock.lakehouse.actions import Action, first_entry
from penstock.lakehouse.checkpoint import RETENTIONS
from penstock.lakehouse.schema import KEY, SOURCE, TableSchema
from penstock.lakehouse.statistics import INDEXED_COLUMNS
from penstock.lakehouse.table_layout import TableLayout, check_new_layout

RETENTION: Final = "interval 2 days"
"""How long old log entries and removed files of new tables serve readers of old cuts. A table with
several commits a second has hundreds of thousands of both in a week, Delta's default."""

_INDEXED: Final = "delta.dataSkippingNumIndexedCols"


def new_table_entry(name: str, schema: TableSchema, layout: TableLayout) -> list[Action]:
    """Raises FeatureNotSupported where it cannot be laid out so."""
    check_new_layout(name, layout, schema.arrow())
    return first_entry(
        schema.delta_json(),
        protocol.for_new_table(
            timestamp_ntz=schema.needs_timestamp_ntz,
            clustered=bool(layout.cluster_by),
            variants=schema.has_variants,
        ),
        {
            protocol.ENABLE_VECTORS: "true",
            **dict.fromkeys(RETENTIONS, RETENTION),
            KEY: json.dumps(schema.key),
            SOURCE: name,
            **_more_indexed(schema, layout),
        },
        layout,
    )


def _more_indexed(schema: TableSchema, layout: TableLayout) -> dict[str, str]:
    """Where Delta would keep no statistics of what it is to cluster by."""
    names = [column.name for column in schema.columns]
    count = max((names.index(name) + 1 for name in layout.cluster_by), default=0)
    return {_INDEXED: str(count)} if count > INDEXED_COLUMNS else {}
