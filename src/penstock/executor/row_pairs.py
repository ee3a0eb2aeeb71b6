"""Pairs of old and new rows, for an UPDATE that changes columns of the replica identity.

Files of pairs are written before an UPDATE of one table runs; a mark in its Delta commit names
them. They are valid only for the version that was read here; with others, readers ignore them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from penstock.catalog import LakeTable
from penstock.executor.rows import Change, delta_table, quoted
from penstock.identifiers import quoted as duck_name
from penstock.lakehouse.files import WrittenFile
from penstock.lakehouse.row_pairs import NEW, OLD, pairs_folder
from penstock.lakehouse.storage import Storage
from penstock.pipeline.duck import connection
from penstock.pipeline.write_frame import write_frame
from penstock.walsender.commits import newest_version
from penstock.walsender.lake_columns import LakeColumn

_PAIRS: Final = "pairs"


def paired_columns(
    table: LakeTable, columns: Sequence[LakeColumn], changed: Collection[str]
) -> tuple[LakeColumn, ...]:
    """Return the columns that identify rows (the key, or all columns without a key) if one of them
    is changed, otherwise (). Output plugins see an UPDATE even without a replica identity.
    ``changed``: names in Delta."""
    key = table.identity or table.primary_key
    found = tuple(c for c in columns if not key or c.name in key)
    return found if any(c.delta in changed for c in found) else ()


def write_pairs(
    session: SparkSession,
    storage: Storage,
    table: LakeTable,
    columns: Sequence[LakeColumn],
    change: Change,
) -> tuple[int, list[WrittenFile]]:
    """Write the old and new values of ``columns`` for rows in which they differ. Return the version
    that was read and the files. Raises PySparkException."""
    version = newest_version(storage, table.uri or "") or 0
    values = ", ".join([*old_values(columns), *new_values(columns, dict(change.settings))])
    rows = f"SELECT {values} FROM {delta_table(table)} VERSION AS OF {version}{change.condition}"
    frame = session.sql(f"SELECT * FROM ({rows}) WHERE {differ(columns)}")
    folder = pairs_folder(table.uri or "")
    return version, write_frame(frame, storage, folder, pair_schema(columns))


def old_values(columns: Sequence[LakeColumn]) -> list[str]:
    """Return the old values as Spark SQL over the changed rows."""
    return [f"{quoted(c.delta)} AS {quoted(OLD + c.name)}" for c in columns]


def new_values(columns: Sequence[LakeColumn], settings: Mapping[str, str]) -> list[str]:
    """Return the new values as Spark SQL over the changed rows."""
    return [f"{settings.get(c.delta, quoted(c.delta))} AS {quoted(NEW + c.name)}" for c in columns]


def differ(columns: Sequence[LakeColumn]) -> str:
    """Return a condition in Spark SQL: old and new values differ."""
    same = (f"{quoted(OLD + c.name)} <=> {quoted(NEW + c.name)}" for c in columns)
    return f"NOT ({' AND '.join(same)})"


def distinct_rows(pairs: pa.Table, columns: Sequence[LakeColumn]) -> pa.Table:
    """Return the pairs whose old and new values differ."""
    same = (
        f"{duck_name(OLD + c.name)} IS NOT DISTINCT FROM {duck_name(NEW + c.name)}" for c in columns
    )
    duck = connection()
    duck.register(_PAIRS, pairs)
    try:
        kept = duck.sql(f"SELECT NOT ({' AND '.join(same)}) FROM {_PAIRS}").to_arrow_table()
    finally:
        duck.unregister(_PAIRS)
    return pairs.filter(kept.column(0))


def pair_schema(columns: Sequence[LakeColumn]) -> pa.Schema:
    """Return the schema of files of pairs."""
    return pa.schema([(side + c.name, c.type) for side in (OLD, NEW) for c in columns])
