"""Cuts as values and as rows of the cuts table.

In: an LSN with tables and versions, or rows that were read. Out: rows to append, Cut values.
Reading and committing is ``cuts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.lakehouse.delta_types import TIMESTAMP
from penstock.lsn import Lsn
from penstock.relation import TableName

SCHEMA: Final = pa.schema(
    [
        ("subscription", pa.string()),
        ("lsn", pa.int64()),
        ("lsn_text", pa.string()),
        ("commit_time", TIMESTAMP),
        ("cut_time", TIMESTAMP),
        ("table_schema", pa.string()),
        ("table_name", pa.string()),
        ("uri", pa.string()),
        ("version", pa.int64()),
    ]
)


@dataclass(frozen=True)
class CutTable:
    """A table of a cut: where it lies, and the Delta version to read."""

    uri: str
    version: int


@dataclass(frozen=True)
class Cut:
    """All tables of a subscription at one LSN; ``tables`` by (schema, table)."""

    subscription: str
    lsn: Lsn
    commit_time: datetime | None
    tables: Mapping[TableName, CutTable]
    cut_time: datetime


def rows_of(
    subscription: str,
    lsn: Lsn,
    commit_time_us: int | None,
    cut_time: datetime,
    tables: Mapping[TableName, CutTable],
) -> pa.Table:
    """The rows of a cut; one row without a table where no table is ready yet."""
    named: list[tuple[str | None, str | None, str | None, int | None]] = [
        (*name, t.uri, t.version) for name, t in tables.items()
    ]
    cells = named or [(None, None, None, None)]
    count = len(cells)
    schemas, names, uris, versions = zip(*cells, strict=True)
    columns = [
        [subscription] * count,
        [int(lsn)] * count,
        [str(lsn)] * count,
        pa.array([commit_time_us] * count, pa.int64()).cast(TIMESTAMP),
        [cut_time] * count,
        schemas,
        names,
        uris,
        versions,
    ]
    arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def last_cut(rows: pa.Table) -> Cut | None:
    """The newest cut among rows of one subscription."""
    if rows.num_rows == 0:
        return None
    rows = rows.filter(pc.equal(rows["cut_time"], pc.max(rows["cut_time"]))).to_pylist()
    first = rows[0]
    return Cut(
        subscription=first["subscription"],
        lsn=Lsn(first["lsn"]),
        commit_time=first["commit_time"],
        tables={
            (row["table_schema"], row["table_name"]): CutTable(row["uri"], row["version"])
            for row in rows
            if row["uri"] is not None
        },
        cut_time=first["cut_time"],
    )


def newest_cuts(rows: pa.Table, keep: int) -> pa.Array:
    """A mask of the rows of the newest ``keep`` cuts of each subscription."""
    cuts = rows.select(["subscription", "cut_time"]).group_by(["subscription", "cut_time"])
    ordered = cuts.aggregate([]).sort_by(
        [("subscription", "ascending"), ("cut_time", "descending")]
    )
    limits: dict[str, datetime] = {}
    seen: dict[str, int] = {}
    for cut in ordered.to_pylist():
        name = cut["subscription"]
        seen[name] = seen.get(name, 0) + 1
        if seen[name] <= keep:
            limits[name] = cut["cut_time"]
    oldest = [limits.get(name) for name in rows["subscription"].to_pylist()]
    return pc.greater_equal(rows["cut_time"], pa.array(oldest, TIMESTAMP))
