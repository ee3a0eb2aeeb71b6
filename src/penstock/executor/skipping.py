"""Skip files that a statement with ``WHERE column = constant`` need not read.

``pipeline.prune`` compares the constants with the files' statistics. A file is skipped only if none
of its rows can meet the condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from penstock.walsender.lake_columns import LakeColumn


def wanted_keys(columns: Iterable[LakeColumn], equal: Iterable[tuple[str, str]]) -> pa.Table | None:
    """Return one row with the constants, in columns named as in the statistics; None if no constant
    can be used.

    ``equal``: (column's name in PostgreSQL, constant as text), for columns of integers and strings.
    """
    by_name = {column.name: column for column in columns}
    arrays: Mapping[str, pa.Array] = {
        by_name[name].stored: key
        for name, text in equal
        if (key := _key(by_name[name].type, text)) is not None
    }
    return pa.table(dict(arrays)) if arrays else None


def _key(type: pa.DataType, text: str) -> pa.Array | None:
    if pa.types.is_integer(type):
        return pa.array([int(text)], pa.int64())
    return pa.array([text], type) if pa.types.is_string(type) else None
