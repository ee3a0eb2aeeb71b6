"""ALTER TABLE ... DROP COLUMN of the column that says which rows are deleted (``soft_delete``).

In: a table with its partitions, what a statement drops. Out: nothing, or an error: without the
column its dead rows would be rows like others, and found by their keys.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.compute as pc

from penstock.catalog import LakeTable
from penstock.commands.namespace import open_delta
from penstock.commands.scope import CommandScope
from penstock.errors import FeatureNotSupported, NotInPrerequisiteState
from penstock.lakehouse.schema import DELETED_AT
from penstock.lakehouse.table import DeltaTable
from penstock.pipeline.scan import ScanColumn, ScanFile, scan
from penstock.sql.text.quoting import quote_identifier


def check_none_dead(
    scope: CommandScope, members: Sequence[LakeTable], dropped: Sequence[str]
) -> None:
    """``members``: the table first. Raises NotInPrerequisiteState (55000)."""
    if DELETED_AT not in dropped:
        return
    tables = [_open(scope, member) for member in members]
    if tables[0] is None or tables[0].schema.deleted_at is None:
        return
    for table in tables:
        if table is not None and DELETED_AT in table.schema.by_source and _has_dead(table):
            name = f"{quote_identifier(members[0].schema)}.{quote_identifier(members[0].name)}"
            raise NotInPrerequisiteState(
                f'cannot drop column "{DELETED_AT}" of relation "{members[0].name}" because it has '
                "rows that the publisher has deleted",
                detail="Nothing else tells them from the others.",
                hint=f"DELETE FROM {name} WHERE {DELETED_AT} IS NOT NULL",
            )


def _open(scope: CommandScope, table: LakeTable) -> DeltaTable | None:
    try:
        return open_delta(scope, table)
    except FeatureNotSupported:
        return None  # its columns are not dropped here


def _has_dead(table: DeltaTable) -> bool:
    found = table.schema.by_source[DELETED_AT]
    column = ScanColumn(found.source, found.name, found.type)
    for file in table.files.values():
        nulls = (file.stats.get("nullCount") or {}).get(found.name)
        if file.live_rows and nulls != file.rows:
            for batch in scan(table.storage, table.uri, ScanFile.of(file), [column]):
                if pc.any(pc.is_valid(batch.column(0))).as_py():
                    return True
    return False
