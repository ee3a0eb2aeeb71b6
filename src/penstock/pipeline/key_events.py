"""Key events: the effects of changes on keys.

From a run of changes and their key columns come each distinct key's first and last event and
balance, and all events with their key, to follow single rows. An event is an integer: the position
of a change * 4 + its effect on the key (REMOVE, TOUCH or CREATE). A change of the key itself is two
events: REMOVE of the old key, CREATE of the new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.changes import DELETE, INSERT, UPDATE, Changes
from penstock.pipeline.columns import Integers, Mask
from penstock.pipeline.duck import connection

REMOVE: Final = 0
TOUCH: Final = 1
CREATE: Final = 2


def position(event: Integers) -> Integers:
    """Return the positions of the changes that made the events."""
    return event >> 2


def kind(event: Integers) -> Integers:
    """Return REMOVE, TOUCH or CREATE for each event."""
    return event & 3


@dataclass(frozen=True)
class KeyTotals:
    """Totals of each distinct key. ``balance``: creates - removes; ``first``, ``last``: events."""

    first: Integers
    last: Integers
    balance: Integers

    @property
    def existed(self) -> Mask:
        """Keys that had a row before the first change."""
        result: Mask = kind(self.first) != CREATE
        return result

    @property
    def exists(self) -> Mask:
        """Keys that have a row after the last change."""
        result: Mask = kind(self.last) != REMOVE
        return result


class KeyEvents:
    """The key events of one run of changes, by the columns ``key``."""

    def __init__(self, key: Sequence[str], changes: Changes) -> None:
        new = changes.new.select(key)
        old = None if changes.old is None else changes.old.select(key)
        self._keys = new if old is None else pa.concat_tables([new, old])
        self._new_rows = new.num_rows
        number = key_numbers(self._keys)
        self._event, row = _events(changes, number)
        self._number = number[row]

    def totals(self) -> KeyTotals:
        """Return first event, last event and balance of each distinct key, in no order."""
        seen = self._first >= 0
        last = np.empty_like(self._first)
        last[self._number] = self._event  # of several events of a key, the last one stays
        balance = np.bincount(self._number, kind(self._event) - TOUCH, len(last)).astype(np.int64)
        return KeyTotals(self._first[seen], last[seen], balance[seen])

    def are_out_of_order(self) -> bool:
        """Return whether a key is removed or changed while it has no row, or created while it has
        one, as far as the run tells. Totals do not tell if both happen to a key."""
        makes = kind(self._event) != TOUCH
        several = np.bincount(self._number, makes) > 1
        if not several.any():
            return False
        ours = several[self._number]
        number = self._number[ours]
        order = np.argsort(number, kind="stable")
        number, what = number[order], kind(self._event[ours][order])
        has_row = what[:-1] != REMOVE
        return bool(np.any((number[1:] == number[:-1]) & (has_row == (what[1:] == CREATE))))

    def grouped(self) -> tuple[Integers, Integers]:
        """Return all events and, aligned, the first event of the same key, which names the key."""
        return self._event, self._first[self._number]

    def keys(self, event: Integers) -> pa.Table:
        """Return the keys of the events."""
        return self._keys.take(pa.array(_rows(event, self._new_rows)))

    @cached_property
    def _first(self) -> Integers:
        """The first event of each key by its number; -1 if no event has the key."""
        first = np.full(int(self._number.max(initial=-1)) + 1, -1, np.int64)
        first[self._number[::-1]] = self._event[::-1]
        return first


def _events(changes: Changes, number: Integers) -> tuple[Integers, Integers]:
    """Return all events in order, and the row of each one's key among the new and old rows.
    ``number``: the number of each row's key."""
    operation, count = changes.operation, len(changes)
    at = np.arange(count)
    deletes, creates = operation == DELETE, operation == INSERT
    removes = deletes
    if changes.old is not None:
        differs = number[:count] != number[count:]
        moves = (operation == UPDATE) & (changes.old_kind != 0) & differs
        creates, removes = creates | moves, deletes | moves
    made = (at * 4 + np.where(creates, CREATE, TOUCH))[~deletes]
    event = np.concatenate([made, at[removes] * 4 + REMOVE])
    event.sort(kind="stable")
    return event, _rows(event, count)


def _rows(event: Integers, new_rows: int) -> Integers:
    """Return the row of each event's key: among the new rows, or behind them among the old ones."""
    return np.where(kind(event) == REMOVE, position(event) + new_rows, position(event))


# Numbers of keys. Equal is what DuckDB groups: NULL equals NULL, NaN equals NaN, and 0 equals -0.


def key_numbers(keys: pa.Table) -> Integers:
    """Return a number from 0 on for each row, the same for equal keys and no others."""
    whole, *rest = (_numbers(column) for column in keys.columns)
    for column in rest:
        both = whole * (int(column.max(initial=0)) + 1) + column
        whole = _numbers(pa.chunked_array([pa.array(both)]))
    return whole


def _numbers(column: pa.ChunkedArray) -> Integers:
    if pa.types.is_floating(column.type):
        nan = pa.scalar(float("nan"), column.type)
        column = pc.if_else(pc.is_nan(column), nan, pc.add(column, pa.scalar(0.0, column.type)))
    try:
        found = column.dictionary_encode("encode")  # all chunks share a dictionary
    except pa.ArrowNotImplementedError:  # nested values
        return _grouped_by_duckdb(column)
    numbers = [np.asarray(chunk.indices, np.int64) for chunk in found.chunks]
    return np.concatenate([np.empty(0, np.int64), *numbers])


def _grouped_by_duckdb(column: pa.ChunkedArray) -> Integers:
    rows = pa.table({"key": column, "i": pa.array(np.arange(len(column)))})
    connection().register("keys", rows)
    try:
        found = connection().execute("select i, min(i) over (partition by key) as first from keys")
        result = found.fetchnumpy()
    finally:
        connection().unregister("keys")
    first = np.empty(len(column), np.int64)
    first[result["i"]] = result["first"]
    return first
