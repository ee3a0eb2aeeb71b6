"""The newest cut of a subscription, read as anybody can without Penstock: with delta-rs alone.

In: a warehouse's folder. Out: the LSN, the age and the Delta versions of the newest cut, and how
many there are; rows of a table at such a version.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from penstock.lsn import Lsn
from penstock.relation import qualified

_NEWEST = """
SELECT lsn, commit_time, table_schema, table_name, uri, version,
       (SELECT count(DISTINCT cut_time) FROM cuts WHERE subscription = '{0}') AS cuts
FROM cuts
WHERE subscription = '{0}'
  AND cut_time = (SELECT max(cut_time) FROM cuts WHERE subscription = '{0}')
"""


@dataclass(frozen=True)
class NewestCut:
    """``tables``: ``schema.table`` -> (uri, version). ``count``: cuts in the table by now."""

    lsn: Lsn
    commit_time: datetime | None
    count: int
    tables: Mapping[str, tuple[str, int]]


def newest_cut(warehouse: Path, subscription: str) -> NewestCut | None:
    """The newest cut, or None while there is none."""
    uri = warehouse / "_penstock" / "cuts"
    if not DeltaTable.is_deltatable(str(uri)):
        return None
    builder = QueryBuilder().register("cuts", DeltaTable(str(uri)))
    rows = pa.table(builder.execute(_NEWEST.format(subscription)).read_all()).to_pylist()
    if not rows:
        return None
    return NewestCut(
        lsn=Lsn(rows[0]["lsn"]),
        commit_time=rows[0]["commit_time"],
        count=rows[0]["cuts"],
        tables={
            qualified(row["table_schema"], row["table_name"]): (row["uri"], row["version"])
            for row in rows
            if row["uri"] is not None
        },
    )


def open_at(uri: str, version: int) -> DeltaTable:
    return DeltaTable(uri, version=version)


def batches(table: DeltaTable) -> Iterator[pa.RecordBatch]:
    """All live rows, deletion vectors applied."""
    found = QueryBuilder().register("t", table).execute("SELECT * FROM t")
    for batch in found:
        yield pa.record_batch(batch)
