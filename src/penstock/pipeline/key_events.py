"""Key events: the effects of changes on keys. DuckDB groups them by keys of any type.

From a run of changes and their key columns, DuckDB computes each distinct key's first and last
event and balance. It also lists all events with their key's number, to follow single rows. An event
is an integer: the position of a change * 4 + its effect on the key (REMOVE, TOUCH or CREATE). A
change of the key itself is two events: REMOVE of the old key, CREATE of the new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

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
    """The key events of one run of changes in DuckDB; made by ``key_events``."""

    def __init__(self, new: pa.Table, old: pa.Table | None, source: str) -> None:
        self._new = new
        self._old = old
        self._source = source
        self._columns = ", ".join(f"k{i}" for i in range(new.num_columns))

    def totals(self) -> KeyTotals:
        """Return first event, last event and balance of each distinct key, in no order."""
        result = self._fetch(
            "select min(event) as first, max(event) as last, "
            f"sum((event & 3) - 1)::bigint as balance from ({self._source}) "
            f"group by {self._columns}"
        )
        return KeyTotals(result["first"], result["last"], result["balance"])

    def grouped(self) -> tuple[Integers, Integers]:
        """Return all events and, aligned, the first event of the same key, which names the key."""
        result = self._fetch(
            f"select event, min(event) over (partition by {self._columns}) as key "
            f"from ({self._source})"
        )
        return result["event"], result["key"]

    def keys(self, event: Integers) -> pa.Table:
        """Return the keys of the events."""
        if self._old is None:
            return self._new.take(pa.array(position(event)))
        row = np.where(kind(event) == REMOVE, position(event) + self._new.num_rows, position(event))
        return pa.concat_tables([self._new, self._old]).take(pa.array(row))

    def _fetch(self, query: str) -> dict[str, Integers]:
        result = connection().execute(query).fetchnumpy()
        return {name: np.asarray(values, np.int64) for name, values in result.items()}


@contextmanager
def key_events(key: tuple[str, ...], changes: Changes) -> Iterator[KeyEvents]:
    """Yield the events of ``changes`` by the columns ``key``. Meanwhile DuckDB has the Arrow data
    registered."""
    new = changes.new.select(key)
    old = None if changes.old is None else changes.old.select(key)
    count = range(len(key))
    columns = {f"n{i}": new.column(i) for i in count}
    columns |= {"operation": pa.array(changes.operation), "i": pa.array(np.arange(len(changes)))}
    if old is not None:
        columns |= {f"o{i}": old.column(i) for i in count}
        columns["old_kind"] = pa.array(changes.old_kind)
    connection().register("changes", pa.table(columns))
    try:
        yield KeyEvents(new, old, _source(count, old is not None))
    finally:
        connection().unregister("changes")


def _source(count: range, has_old: bool) -> str:
    """Return SQL for all events: key columns k0, k1 ... and ``event``."""
    new = ", ".join(f"n{i} as k{i}" for i in count)
    if not has_old:
        what = f"case operation when {INSERT} then {CREATE} else {TOUCH} end"
        return f"select {new}, i * 4 + {what} as event from changes"
    old = ", ".join(f"o{i} as k{i}" for i in count)
    differs = " or ".join(f"n{i} is distinct from o{i}" for i in count)
    moved = f"(operation = {UPDATE} and old_kind <> 0 and ({differs}))"
    what = f"case when operation = {INSERT} or {moved} then {CREATE} else {TOUCH} end"
    return (
        f"select {new}, i * 4 + {what} as event from changes where operation <> {DELETE} "
        f"union all select {old}, i * 4 + {REMOVE} as event from changes "
        f"where operation = {DELETE} or {moved}"
    )
