"""Cuts as values and as rows of the cuts table.

In: an LSN with tables and versions, or rows that were read. Out: rows to append, Cut values.
Reading and committing is ``cuts``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        ("subscription_id", pa.string()),
        ("table_id", pa.string()),
    ]
)
"""The last two came later: tables from before get them with their next commit."""


@dataclass(frozen=True, slots=True)
class CutOwner:
    """Whose cuts: a subscription's name, for readers, and its app id, which is never used again."""

    name: str
    id: str


@dataclass(frozen=True)
class CutTable:
    """A table of a cut: where it lies, and the Delta version to read.

    ``id``: the Delta table's own (metaData.id); None in cuts from before it was recorded.
    """

    uri: str
    version: int
    id: str | None = None


@dataclass(frozen=True)
class Cut:
    """All tables of a subscription at one LSN; ``tables`` by (schema, table)."""

    subscription: str
    lsn: Lsn
    commit_time: datetime | None
    tables: Mapping[TableName, CutTable]
    cut_time: datetime


def rows_of(
    owner: CutOwner,
    lsn: Lsn,
    commit_time_us: int | None,
    cut_time: datetime,
    tables: Mapping[TableName, CutTable],
) -> pa.Table:
    """The rows of a cut; one row without a table where no table is ready yet."""
    named: list[tuple[str | None, str | None, str | None, int | None, str | None]] = [
        (*name, t.uri, t.version, t.id) for name, t in tables.items()
    ]
    cells = named or [(None, None, None, None, None)]
    count = len(cells)
    schemas, names, uris, versions, ids = zip(*cells, strict=True)
    commit_time = pa.scalar(commit_time_us, pa.int64()).cast(TIMESTAMP)
    same = {
        "subscription": owner.name,
        "lsn": int(lsn),
        "lsn_text": str(lsn),
        "commit_time": commit_time,
        "cut_time": cut_time,
        "subscription_id": owner.id,
    }
    each = {
        "table_schema": schemas,
        "table_name": names,
        "uri": uris,
        "version": versions,
        "table_id": ids,
    }
    arrays = [
        pa.repeat(pa.scalar(same[f.name], f.type), count)
        if f.name in same
        else pa.array(each[f.name], f.type)
        for f in SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def whole_rows(rows: pa.Table) -> pa.Table:
    """Rows of a file that may lack the newer columns, in SCHEMA."""
    missing = [field for field in SCHEMA if field.name not in rows.column_names]
    for field in missing:
        rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows.select(SCHEMA.names)


def with_owners(rows: pa.Table, owners: Sequence[CutOwner]) -> pa.Table:
    """Rows without an owner's id go to the subscription that has their name now."""
    ids = {owner.name: owner.id for owner in owners}
    named = [ids.get(name) for name in rows["subscription"].to_pylist()]
    filled = pc.coalesce(rows["subscription_id"], pa.array(named, pa.string()))
    return rows.set_column(SCHEMA.get_field_index("subscription_id"), "subscription_id", filled)


def of_owner(rows: pa.Table, owner: CutOwner) -> pa.Table:
    """The rows of one subscription, told by its id."""
    return rows.filter(pc.equal(rows["subscription_id"], owner.id))


def rename_owner(rows: pa.Table, owner: CutOwner) -> pa.Table:
    """With the owner's name in its rows."""
    own = pc.fill_null(pc.equal(rows["subscription_id"], owner.id), False)
    position = rows.schema.get_field_index("subscription")
    names = pc.if_else(own, pa.scalar(owner.name, pa.string()), rows["subscription"])
    return rows.set_column(position, rows.schema.field(position), names)


def not_of_others(rows: pa.Table, owner: CutOwner) -> pa.Array:
    """A mask without the rows of others that had the owner's name."""
    another_name = pc.not_equal(rows["subscription"], owner.name)
    its_own = pc.fill_null(pc.equal(rows["subscription_id"], owner.id), False)
    return pc.or_(another_name, its_own)


def without_others(rows: pa.Table, owner: CutOwner, living: Sequence[CutOwner]) -> pa.Table:
    """Without the rows of others that had the owner's name and are not living; those of the
    living get their own names."""
    for other in living:
        rows = rename_owner(rows, other)
    return rows.filter(not_of_others(rows, owner))


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
            (row["table_schema"], row["table_name"]): CutTable(
                row["uri"], row["version"], row["table_id"]
            )
            for row in rows
            if row["uri"] is not None
        },
        cut_time=first["cut_time"],
    )


def all_cuts(rows: pa.Table) -> tuple[Cut, ...]:
    """The cuts among rows of one subscription, the oldest first."""
    found: list[Cut] = []
    while (cut := last_cut(rows)) is not None:
        found.append(cut)
        rows = rows.filter(pc.less(rows["cut_time"], pa.scalar(cut.cut_time, TIMESTAMP)))
    return tuple(reversed(found))


def names_table(rows: pa.Table, table: TableName) -> pa.Array:
    """A mask of the rows of a table."""
    schema, name = table
    same = pc.and_(pc.equal(rows["table_schema"], schema), pc.equal(rows["table_name"], name))
    return pc.fill_null(same, False)


def newest_cuts(rows: pa.Table, keep: int, since: datetime) -> pa.Array:
    """A mask of the rows of the newest ``keep`` cuts of each subscription, and all ``since``."""
    owners = pc.coalesce(rows["subscription_id"], rows["subscription"])
    cuts = pa.table({"owner": owners, "cut_time": rows["cut_time"]})
    ordered = (
        cuts.group_by(["owner", "cut_time"])
        .aggregate([])
        .sort_by([("owner", "ascending"), ("cut_time", "descending")])
    )
    limits: dict[str, datetime] = {}
    seen: dict[str, int] = {}
    for cut in ordered.to_pylist():
        owner = cut["owner"]
        seen[owner] = seen.get(owner, 0) + 1
        if seen[owner] <= keep:
            limits[owner] = min(cut["cut_time"], since)
    known = pc.index_in(owners, pa.array(limits.keys(), pa.string()))
    oldest = pa.array(limits.values(), TIMESTAMP).take(known.combine_chunks())
    return pc.greater_equal(rows["cut_time"], oldest)
