"""Tables and transactions for tests without a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.attribute import Attribute
from penstock.decoding import (
    Action,
    DecodedSlot,
    LogicalDecodingContext,
    OutputPlugin,
    RelationData,
    RowBatch,
    Transaction,
    TupleColumns,
)
from penstock.decoding.reorder_buffer import Item
from penstock.lsn import Lsn
from penstock.relation import Relation, ReplicaIdentity

ITEM = RelationData.of(
    Relation(
        16400,
        "public",
        "item",
        ReplicaIdentity.DEFAULT,
        (Attribute("id", 23, key=True), Attribute("name", 1043, 34), Attribute("big", 25)),
    ),
    primary_key=("id",),
)
BARE = RelationData.of(
    Relation(16401, "public", "Bare", ReplicaIdentity.NOTHING, (Attribute("n", 1700),))
)


def inserts(count: int, first: int = 1, lsn: int = 100) -> RowBatch:
    ids = pa.array(range(first, first + count), pa.int32())
    names = pa.array([f"n'{i}" if i % 3 else None for i in range(first, first + count)])
    big = pa.array(["b"] * count)
    columns = TupleColumns.typed(ITEM, [ids, names, big], count)
    return RowBatch(ITEM, Action.INSERT, columns, None, Lsn(lsn))


def transaction(*changes: Any, xid: int = 7, **fields: Any) -> Transaction:
    lsns = {"first_lsn": Lsn(100), "final_lsn": Lsn(200), "end_lsn": Lsn(208)}
    return Transaction(xid=xid, changes=changes, commit_time=0, **{**lsns, **fields})


SLOT = DecodedSlot("s", "p")
TWO_PHASE_SLOT = DecodedSlot("s", "p", two_phase=True)


def context(
    plugin: OutputPlugin, slot: DecodedSlot = SLOT, **fields: Any
) -> LogicalDecodingContext:
    return LogicalDecodingContext(plugin, slot, **fields)


def written(
    plugin: OutputPlugin, items: Sequence[Item], **fields: Any
) -> list[tuple[int, int, str | bytes]]:
    with context(plugin, **fields) as ctx:
        return [row for output in ctx.process(items) for row in output.rows()]


def texts(plugin: OutputPlugin, items: Sequence[Item], **fields: Any) -> list[str | bytes]:
    return [data for _, _, data in written(plugin, items, **fields)]
