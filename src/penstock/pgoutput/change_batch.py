"""Insert, Update and Delete messages of one relation to a ChangeBatch.

In: which messages of a buffer, and the definition that holds for them. Out: a ChangeBatch. Finding
those messages is left to ``columnar``.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import ProtocolViolation
from penstock.pgoutput.change_reader import expected_new, unchanged_in_old_tuple
from penstock.pgoutput.chunk import ChangeBatch
from penstock.pgoutput.columns import Readers, record_batch
from penstock.pgoutput.tuple_walk import UNCHANGED, CellColumn, walk_tuples
from penstock.relation import Relation

INSERT: Final = ord("I")
UPDATE: Final = ord("U")
DELETE: Final = ord("D")

TUPLE_KIND_AT: Final = 5
"""Behind the message's type and the relation's OID."""

_NEW: Final = ord("N")
_OLD_KEY: Final = ord("K")
_OLD_ROW: Final = ord("O")


def change_batch(
    relation: Relation,
    sequence: NDArray[np.int64],
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    find: Readers,
) -> ChangeBatch:
    """Decode messages, all of this relation. ``starts``, ``ends``: of each message in ``buffer``.

    Raises ProtocolViolation, ValueNotRepresentable.
    """
    operation = buffer[starts]
    old_kind = _old_kind(operation, buffer[starts + TUPLE_KIND_AT])
    has_old, has_new = old_kind != 0, operation != DELETE
    tuple_at = starts + TUPLE_KIND_AT + 1
    count, width = len(starts), len(relation.attributes)

    old = None
    if has_old.any():
        columns, behind = walk_tuples(buffer, tuple_at[has_old], ends[has_old], width)
        if any(column.mask(UNCHANGED).any() for column in columns):
            raise unchanged_in_old_tuple()
        tuple_at[has_old] = _new_tuple_behind(buffer, behind, ends[has_old], has_new[has_old])
        old = record_batch(relation, _spread(columns, has_old), count, buffer, find)

    columns, behind = walk_tuples(buffer, tuple_at[has_new], ends[has_new], width)
    _finished(behind, ends[has_new])
    columns = _spread(columns, has_new)
    new = record_batch(relation, columns, count, buffer, find)
    masks = (column.mask(UNCHANGED) for column in columns)
    unchanged = {
        attribute.name: mask
        for attribute, mask in zip(relation.attributes, masks, strict=True)
        if mask.any()
    }
    return ChangeBatch(relation, sequence, operation, new, unchanged, old, old_kind)


def _old_kind(operation: NDArray[np.uint8], tuple_kind: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Kind of the old tuple that each message begins with, 0 where it begins with the new one."""
    old = (tuple_kind == _OLD_KEY) | (tuple_kind == _OLD_ROW)
    if (old & (operation == INSERT)).any() or (~old & (tuple_kind != _NEW)).any():
        wrong = np.where(operation == INSERT, tuple_kind != _NEW, ~old & (tuple_kind != _NEW))
        raise expected_new(chr(tuple_kind[wrong][0]))
    if (~old & (operation == DELETE)).any():
        raise ProtocolViolation("expected action 'O' or 'K', got N")
    return np.where(old, tuple_kind, 0).astype(np.uint8)


def _new_tuple_behind(
    buffer: NDArray[np.uint8],
    behind: NDArray[np.int64],
    end: NDArray[np.int64],
    followed: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Where the new tuple begins behind an old one; messages that end there are checked for it."""
    _finished(behind[~followed], end[~followed])
    if (behind[followed] >= end[followed]).any():
        raise ProtocolViolation("insufficient data left in message")
    kind = buffer[behind[followed]]
    if (kind != _NEW).any():
        raise expected_new(chr(kind[kind != _NEW][0]))
    return behind + 1


def _finished(behind: NDArray[np.int64], end: NDArray[np.int64]) -> None:
    if (behind > end).any():
        raise ProtocolViolation("insufficient data left in message")
    if (behind < end).any():
        raise ProtocolViolation("invalid message format")


def _spread(columns: list[CellColumn], where: NDArray[np.bool_]) -> list[CellColumn]:
    return columns if where.all() else [column.spread(where) for column in columns]
