"""Row messages of pgoutput (proto.c, logicalrep_write_tuple).

In: one change, and how its table is published. Out: the message. Values are in binary where the
client wants it and the type has a binary form here, text otherwise.
"""

from __future__ import annotations

from penstock.decoding.publication_rules import Published
from penstock.decoding.reorder_buffer import Action, Change
from penstock.decoding.tuple_columns import Tuple, Unsent
from penstock.pgoutput.messages import Delete, Insert, OldTuple, Update
from penstock.pgoutput.tuple_data import NULL, UNCHANGED, Binary, Cell, Text, TupleData
from penstock.relation import ReplicaIdentity


def row_message(
    published: Published, change: Change, xid: int | None, *, binary: bool
) -> Insert | Update | Delete | None:
    """``xid``: in a block. None for a DELETE that has no old tuple, which nobody is told."""
    relation = published.relation
    full = relation.replica_identity is ReplicaIdentity.FULL
    kind = OldTuple.ROW if full else OldTuple.KEY
    old = None if change.old is None else _cells(published, change.old, binary)
    if change.action is Action.DELETE:
        return None if old is None else Delete(relation.oid, old, kind, xid)
    if change.new is None:
        return None
    new = _cells(published, change.new, binary)
    if change.action is Action.INSERT:
        return Insert(relation.oid, new, xid)
    if old is None:
        return Update(relation.oid, new, xid=xid)
    return Update(relation.oid, new, old, kind, xid)


def _cells(published: Published, row: Tuple, binary: bool) -> TupleData:
    return tuple(_cell(row, index, binary) for index in published.columns)


def _cell(row: Tuple, index: int, binary: bool) -> Cell:
    text = row.text(index)
    if text is Unsent.UNCHANGED_TOAST:
        return UNCHANGED
    if text is None or text is Unsent.NOT_SENT:
        return NULL
    raw = row.binary(index) if binary else None
    return Text(str(text).encode()) if raw is None else Binary(raw)
