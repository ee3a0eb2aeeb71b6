"""Reports of conflicts between a target table and the stream.

This module builds a ReplicationConflict that names the table and, in PostgreSQL's words, the keys
(``Key (a, b)=(1, x)``). ``subscription.conflicts`` reports skipped changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from penstock.errors import InsertExists, KeyExists, ReplicationConflict, UpdateExists
from penstock.pgtypes.text_output import text_output
from penstock.pipeline.net_change import LocalRow

ERROR: Final = "error"
APPLY_REMOTE: Final = "apply_remote"
KEEP_LOCAL: Final = "keep_local"
CONFLICT_RESOLUTIONS: Final = (ERROR, APPLY_REMOTE, KEEP_LOCAL)
"""The resolutions for a change that gives a row an existing key. ``error``: stop the subscription;
``apply_remote``: replace the existing row; ``keep_local``: skip the change, and let later changes
of the key change the existing row."""
EXISTS: Final = "Key already exists"
KEYS_NAMED: Final = 10
_VALUE_LENGTH: Final = 64

REMEDY: Final = (
    "The target has rows that the publisher has not: somebody else has written to it (DESCRIBE "
    "HISTORY), rows were there before the subscription, or a publication leaves out delete or "
    "truncate. Delete the rows that are too many from the target."
)
_RESOLUTION: Final = (
    " Or set the subscription's option conflict_resolution to apply_remote or keep_local."
)


def describe_keys(keys: pa.Table) -> str:
    """Return ``Key (a, b)=(1, x), (2, y)`` for at most KEYS_NAMED rows, with long values cut."""
    shown = shown_rows(keys.slice(0, KEYS_NAMED))
    values = ", ".join(shown)
    more = keys.num_rows - len(shown)
    rest = f" and {more} more" if more > 0 else ""
    return f"Key ({', '.join(keys.column_names)})={values}{rest}"


def shown_rows(rows: pa.Table) -> list[str]:
    """Return ``(1, x, null)`` for each row. Output functions print the values; long ones are cut
    (execMain.c, ExecBuildSlotValueDescription)."""
    columns = [shown_values(column) for column in rows.columns]
    if not columns:
        return ["()"] * rows.num_rows
    return [f"({', '.join(values)})" for values in zip(*columns, strict=True)]


def shown_values(column: pa.ChunkedArray) -> list[str]:
    """Return the values of one column as ``shown_rows`` prints them."""
    return [shown_value(value) for value in text_output(column.combine_chunks()).to_pylist()]


def shown_value(value: bytes | None) -> str:
    """Return a value's text for a message: at most 64 bytes of it
    (ExecBuildSlotValueDescription)."""
    if value is None:
        return "null"
    if len(value) <= _VALUE_LENGTH:
        return value.decode()
    return value[:_VALUE_LENGTH].decode(errors="ignore") + "..."


def conflict(table: str, findings: Sequence[tuple[str, pa.Table]]) -> ReplicationConflict:
    """Return the error for ``findings``: pairs of a description and its keys."""
    detail = "; ".join(f"{what}: {describe_keys(keys)}" for what, keys in findings)
    return ReplicationConflict(
        f'conflict detected on table "{table}": its rows and the publisher\'s changes disagree',
        detail=detail + ".",
        hint=REMEDY,
    )


def key_exists(
    table: str,
    keys: pa.Table,
    remote_row: str,
    replica_identity: str | None,
    local: LocalRow | None,
) -> KeyExists:
    """Return PostgreSQL 18's report of a conflict (ReportApplyConflict). ``remote_row``: the row
    that the first change would have made; ``replica_identity``: the changed row's if the change is
    an UPDATE; both as ``shown_rows`` prints them. ``local``: the row that has the key. Callers that
    know the unique index and the origin add them to the first line of DETAIL."""
    kind: type[KeyExists] = InsertExists if replica_identity is None else UpdateExists
    which = "insert" if kind is InsertExists else "update"
    told = [describe_keys(keys.slice(0, 1))]
    told += [] if local is None else [f"existing local row {local.shown}"]
    told += [f"remote row {remote_row}"]
    if replica_identity is not None:
        told += [f"replica identity ({', '.join(keys.column_names)})={replica_identity}"]
    more = "" if keys.num_rows == 1 else f" There are more: {describe_keys(keys.slice(1))}."
    return kind(
        f'conflict detected on relation "{table}": conflict={which}_exists',
        detail=f"{EXISTS}.\n{'; '.join(told)}.{more}",
        hint=REMEDY + _RESOLUTION,
    )
