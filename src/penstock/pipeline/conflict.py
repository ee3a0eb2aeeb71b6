"""How a conflict between a target table and the stream is reported.

In: the table's name, the keys concerned and what is wrong with them. Out: ReplicationConflict with
PostgreSQL's wording of keys (``Key (a, b)=(1, x)``). Resolving conflicts one by one is not here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from penstock.errors import ReplicationConflict

KEYS_NAMED: Final = 10
_VALUE_LENGTH: Final = 64

REMEDY: Final = (
    "Only its subscription may write to a replicated table. Find out who else wrote to it "
    "(DESCRIBE HISTORY), then restore it to the version before that (RESTORE TABLE ... TO VERSION "
    "AS OF ...; further back is refused, as it takes rows away that were replicated), ALTER "
    "SUBSCRIPTION ... ENABLE. Or copy it again: remove the table from the publication, ALTER "
    "SUBSCRIPTION ... REFRESH PUBLICATION, remove the target table, add the table to the "
    "publication and REFRESH once more."
)


def describe_keys(keys: pa.Table) -> str:
    """``Key (a, b)=(1, x), (2, y)`` of at most KEYS_NAMED rows, long values cut."""
    shown = keys.slice(0, KEYS_NAMED).to_pylist()
    values = ", ".join(f"({', '.join(_show(v) for v in row.values())})" for row in shown)
    more = keys.num_rows - len(shown)
    rest = f" and {more} more" if more > 0 else ""
    return f"Key ({', '.join(keys.column_names)})={values}{rest}"


def conflict(table: str, findings: Sequence[tuple[str, pa.Table]]) -> ReplicationConflict:
    """The error for ``findings``: pairs of what is wrong and the keys of which it is."""
    detail = "; ".join(f"{what}: {describe_keys(keys)}" for what, keys in findings)
    return ReplicationConflict(
        f'conflict detected on table "{table}": its rows and the publisher\'s changes disagree',
        detail=detail + ".",
        hint=REMEDY,
    )


def _show(value: object) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) <= _VALUE_LENGTH else text[:_VALUE_LENGTH] + "..."
