"""Rows of a run of changes that are the same, and what becomes of how many there are of each.

In: the rows that changes make and take, as columns. Out: numbers and counts. Equal rows are the
same to the last bit: NULL is NULL, NaN is NaN, but 0 is not -0, whatever a type's equality says,
because readers see which of the two is left.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from penstock.pipeline.changes import DELETE, INSERT, Changes
from penstock.pipeline.columns import Integers, signs
from penstock.pipeline.duck import connection


def _lent(both: pa.Table, changes: Changes) -> tuple[pa.Table, str]:
    """Rows that come (sign 1) and go (-1), and SQL of what makes two of them the same."""
    count = len(changes)
    sign = np.repeat(np.array([1, -1], np.int8), count)
    sign[:count][changes.operation == DELETE] = 0
    sign[count:][changes.operation == INSERT] = 0
    names = [f"c{i}" for i in range(both.num_columns)]
    rows = both.rename_columns(names).append_column("sign", pa.array(sign))
    rows = rows.append_column("i", pa.array(np.arange(len(sign))))
    return rows, ", ".join([*names, *signs(zip(names, both.schema.types, strict=True))])


def counts(
    both: pa.Table, changes: Changes, numbered: Callable[[], Integers]
) -> tuple[Integers, Integers, Integers]:
    """Per distinct row one position of it in ``both`` (ascending), how many of it are to be
    written, and how many are taken that were there before the run. ``numbered``: ``numbers``."""
    rows, same = _lent(both, changes)
    result = _query(
        rows,
        "select min(i) as i, sum(sign)::bigint as balance, min(sign) <> max(sign) as both "
        f"from changes where sign <> 0 group by {same} order by 1",
    )
    index, balance = np.asarray(result["i"], np.int64), np.asarray(result["balance"], np.int64)
    gone = np.maximum(-balance, 0)
    mixed = np.asarray(result["both"], bool)
    if mixed.any():
        gone[mixed] = _taken(numbered(), index[mixed])
    return index, balance + gone, gone


def _taken(numbers: Integers, rows: Integers) -> Integers:
    """For each of ``rows`` how far its count falls below the one before the run."""
    count = len(numbers) // 2
    events = np.stack([numbers[count:], numbers[:count]], axis=1).ravel()  # each old, new
    sign = np.tile(np.array([-1, 1], np.int64), count)
    ours = np.isin(events, rows)
    events, sign = events[ours], sign[ours]
    order = np.argsort(events, kind="stable")
    events, running = events[order], np.cumsum(sign[order])
    begins = np.searchsorted(events, rows)
    before = running[begins] - sign[order][begins]
    taken: Integers = np.maximum(before - np.minimum.reduceat(running, begins), 0)
    return taken


def numbers(both: pa.Table, changes: Changes) -> Integers:
    """For each row of ``both`` the position that ``counts`` names it by; -1: it is none."""
    rows, same = _lent(both, changes)
    result = _query(
        rows,
        f"select i, min(i) over (partition by {same}) as row from changes where sign <> 0",
    )
    found: Integers = np.full(both.num_rows, -1, np.int64)
    found[np.asarray(result["i"], np.int64)] = result["row"]
    return found


def _query(rows: pa.Table, query: str) -> dict[str, np.ndarray]:
    connection().register("changes", rows)
    try:
        found: dict[str, np.ndarray] = connection().execute(query).fetchnumpy()
    finally:
        connection().unregister("changes")
    return found
