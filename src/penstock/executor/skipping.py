"""Skipping of files that a statement need not read, by ``WHERE column = constant``.

The constants become keys, which ``pipeline.prune`` compares with the files' statistics. A file is
skipped only if the condition certainly holds for none of its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from penstock.walsender.lake_columns import LakeColumn


def wanted_keys(columns: Iterable[LakeColumn], equal: Iterable[tuple[str, str]]) -> pa.Table | None:
    """Return one row with the constants, by the names that statistics use; None if there is no
    usable constant.

    ``equal``: (column's name in PostgreSQL, constant), for integers and texts; the constant is a
    text.
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
