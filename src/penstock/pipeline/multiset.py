"""Fold of a table without a key: its rows are a multiset.

In: a run of changes whose old tuples are whole rows (REPLICA IDENTITY FULL), or inserts only. Out:
a NetChange whose ``removed`` are whole rows but for generated columns, each with the number of
equal ones that are to go. Equal rows are the same to the last bit: NULL is NULL, NaN is NaN, but 0
is not -0, whatever a type's equality says, because readers see which of the two is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa

from penstock.errors import ProtocolViolation
from penstock.lakehouse.schema import TableSchema
from penstock.pipeline.changes import DELETE, INSERT, Changes, restamped
from penstock.pipeline.columns import Integers, Mask, signs
from penstock.pipeline.duck import connection
from penstock.pipeline.history import versions
from penstock.pipeline.net_change import NetChange, Skipped


def fold_multiset(
    table: str,
    schema: TableSchema,
    changes: Changes,
    truncate: bool,
    with_versions: bool = False,
    skipped: Skipped | None = None,
    *,
    soft_delete: bool = False,
) -> NetChange:
    """Count each distinct row's coming and going; what comes and goes again is not done at all.

    What goes and comes again is removed and written: whether it is there is seen that way only.
    ``changes`` has no unknown cells. ``soft_delete``: as ``fold`` says; a row that stays is written
    as its DELETE has it, which is whole.
    """
    nothing = schema.arrow().empty_table().select(list(schema.identity))
    every = versions(changes) if with_versions else None
    if changes.old is None or np.all(changes.operation == INSERT):
        return NetChange(
            *(table, schema, len(changes), changes.new, nothing, nothing),
            truncate=truncate,
            skipped=skipped,
            versions=every,
        )
    both = pa.concat_tables([changes.new, changes.old])
    compared = both.select(list(schema.identity))
    numbers = cache(lambda: _numbers(compared, changes))
    index, came, gone = _counts(compared, changes, numbers)
    comes, goes = came > 0, gone > 0

    def without(lacking: np.ndarray) -> NetChange:
        few = lacking > 0
        there = (gone[goes] - lacking)[few]
        stock = dict(zip(index[goes][few].tolist(), there.tolist(), strict=True))
        kept = _having_rows(changes, numbers(), stock)
        if kept.all():
            raise ProtocolViolation(f'changes of table "{table}" do not follow from one another')
        more = replace(changes.skipped(~kept, schema.identity), whole_rows=True)
        all_of_them = more if skipped is None else skipped.with_more(more)
        left = changes.take(kept)
        return fold_multiset(
            *(table, schema, left, truncate, with_versions, all_of_them), soft_delete=soft_delete
        )

    rows = both.take(pa.array(np.repeat(index[comes], came[comes])))
    if soft_delete:
        rows = pa.concat_tables([rows, _dead(changes, changes.old, numbers)])
    if truncate and goes.any():
        return without(gone[goes])
    return NetChange(
        *(table, schema, len(changes), rows),
        both.take(pa.array(index[goes])).select(list(schema.identity)),
        nothing,
        copies=gone[goes],
        truncate=truncate,
        skipped=skipped,
        versions=every,
        without=without,
    )


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


def _counts(
    both: pa.Table, changes: Changes, numbers: Callable[[], Integers]
) -> tuple[Integers, Integers, Integers]:
    """Per distinct row one position of it in ``both`` (ascending), how many of it are to be
    written, and how many are taken that were there before the run. ``numbers``: ``_numbers``."""
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
        gone[mixed] = _taken(numbers(), index[mixed])
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


def _numbers(both: pa.Table, changes: Changes) -> Integers:
    """For each row of ``both`` the position that ``_counts`` names it by; -1: it is none."""
    rows, same = _lent(both, changes)
    result = _query(
        rows,
        f"select i, min(i) over (partition by {same}) as row from changes where sign <> 0",
    )
    numbers = np.full(both.num_rows, -1, np.int64)
    numbers[np.asarray(result["i"], np.int64)] = result["row"]
    return numbers


def _query(rows: pa.Table, query: str) -> dict[str, np.ndarray]:
    connection().register("changes", rows)
    try:
        found: dict[str, np.ndarray] = connection().execute(query).fetchnumpy()
    finally:
        connection().unregister("changes")
    return found


def _having_rows(changes: Changes, numbers: Integers, stock: dict[int, int]) -> Mask:
    """The changes that find their rows, one after the other: made by a change of the run that did,
    or in the table. ``stock``: how many of a row there were, of those that there were too few of.
    """
    count = len(changes)
    new, old = numbers[:count].tolist(), numbers[count:].tolist()
    made: Counter[int] = Counter()
    kept = np.ones(count, bool)
    for at, operation in enumerate(changes.operation.tolist()):
        if operation != INSERT:
            row = old[at]
            if made[row]:
                made[row] -= 1
            elif stock.get(row) == 0:
                kept[at] = False
                continue
            elif row in stock:
                stock[row] -= 1
        if operation != DELETE:
            made[new[at]] += 1
    return kept


def _dead(changes: Changes, old: pa.Table, numbers: Callable[[], Integers]) -> pa.Table:
    """The rows that stay, with the metadata columns of their DELETEs."""
    if not np.any(changes.operation == DELETE):
        return old.slice(0, 0)
    at = _shown_and_deleted(changes, numbers())
    return restamped(old.take(pa.array(at)), changes.stamps, at, changes.new)


def _shown_and_deleted(changes: Changes, numbers: Integers) -> Integers:
    """Positions of the DELETEs of rows that were there before the run, whatever they were like
    then. Of equal rows those go first that the run has brought."""
    count = len(changes)
    new, old = numbers[:count].tolist(), numbers[count:].tolist()
    brought: Counter[int] = Counter()
    found: list[int] = []
    for at, operation in enumerate(changes.operation.tolist()):
        fresh = operation == INSERT
        if not fresh and brought[old[at]]:
            brought[old[at]] -= 1
            fresh = True
        if fresh and operation != DELETE:
            brought[new[at]] += 1
        elif not fresh and operation == DELETE:
            found.append(at)
    return np.array(found, np.int64)
