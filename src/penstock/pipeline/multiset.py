"""Fold of a table without a key: its rows are a multiset.

In: a run of changes whose old tuples are whole rows (REPLICA IDENTITY FULL), or inserts only. Out:
a NetChange whose ``removed`` are whole rows but for generated columns, each with the number of
equal ones that are to go.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from penstock.errors import ProtocolViolation
from penstock.lakehouse.schema import TableSchema
from penstock.pipeline.changes import DELETE, INSERT, Changes, restamped
from penstock.pipeline.columns import Integers, Mask
from penstock.pipeline.equal_rows import counts, numbers
from penstock.pipeline.history import versions
from penstock.pipeline.net_change import NetChange, Skipped


def fold_multiset(
    table: str,
    schema: TableSchema,
    changes: Changes,
    truncate: bool,
    with_versions: bool = False,
    *,
    soft_delete: bool = False,
) -> NetChange:
    """Count each distinct row's coming and going; what comes and goes again is not done at all.

    What goes and comes again is removed and written: whether it is there is seen that way only.
    ``changes`` has no unknown cells. ``soft_delete``: as ``fold`` says; a row that stays is written
    as its DELETE has it, which is whole.
    """
    return _MultisetFold(table, schema, changes, truncate, with_versions, soft_delete).net()


@dataclass(frozen=True)
class _MultisetFold:
    """``skipped``: what was left out by now."""

    table: str
    schema: TableSchema
    changes: Changes
    truncate: bool
    with_versions: bool
    soft_delete: bool
    skipped: Skipped | None = None

    def net(self) -> NetChange:
        changes = self.changes
        if changes.old is None or np.all(changes.operation == INSERT):
            return self._net(changes.new, self._nothing)
        both = self._both
        index, came, gone = counts(self._compared, changes, lambda: self._numbers)
        comes, goes = came > 0, gone > 0
        if self.truncate and goes.any():
            taken, _ = self._taken()
            return self._folded_out(_stock(taken, np.zeros_like(taken)))
        rows = both.take(pa.array(np.repeat(index[comes], came[comes])))
        if self.soft_delete:
            rows = pa.concat_tables([rows, _dead(changes, changes.old, lambda: self._numbers)])
        index, gone = index[goes], gone[goes]

        def without(lacking: Integers) -> NetChange:
            few = lacking > 0
            return self._folded_out(_stock(index[few], (gone - lacking)[few]))

        removed = self._compared.take(pa.array(index))
        return replace(self._net(rows, removed), copies=gone, without=without)

    def _net(self, rows: pa.Table, removed: pa.Table) -> NetChange:
        return NetChange(
            *(self.table, self.schema, len(self.changes), rows, removed, self._nothing),
            truncate=self.truncate,
            skipped=self.skipped,
            versions=versions(self.changes) if self.with_versions else None,
        )

    @property
    def _nothing(self) -> pa.Table:
        return self.schema.arrow().empty_table().select(list(self.schema.identity))

    @cached_property
    def _both(self) -> pa.Table:
        return pa.concat_tables([self.changes.new, self.changes.old])

    @property
    def _compared(self) -> pa.Table:
        return self._both.select(list(self.schema.identity))

    @cached_property
    def _numbers(self) -> Integers:
        return numbers(self._compared, self.changes)

    def _taken(self) -> tuple[Integers, Integers]:
        """The rows that changes take, and how often."""
        old = self._numbers[len(self.changes) :]
        return np.unique(old[self.changes.operation != INSERT], return_counts=True)

    def _asked(self) -> NetChange:
        """How many there are of each row that the run takes: one question for all of them."""
        row, most = self._taken()
        net = self._net(self.changes.new.slice(0, 0), self._compared.take(pa.array(row)))
        return replace(
            net,
            versions=None,
            copies=most,
            asks=True,
            without=lambda lacking: self._folded_out(_stock(row, most - lacking)),
        )

    def _folded_out(self, stock: Mapping[int, int]) -> NetChange:
        """Fold again without the changes that do not find their rows. ``stock``: how many there
        are of some rows; of the others there are enough for what the run takes of them."""
        changes = self.changes
        kept = _having_rows(changes, self._numbers, dict(stock))
        if kept.all():
            raise ProtocolViolation(
                f'changes of table "{self.table}" do not follow from one another'
            )
        if _takes_what_was_not_made(changes, self._numbers, kept, stock):
            return self._asked()
        more = replace(changes.skipped(~kept, self.schema.identity), whole_rows=True)
        skipped = more if self.skipped is None else self.skipped.with_more(more)
        return replace(self, changes=changes.take(kept), skipped=skipped).net()


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


def _stock(rows: Integers, there: Integers) -> dict[int, int]:
    return dict(zip(rows.tolist(), there.tolist(), strict=True))


def _takes_what_was_not_made(
    changes: Changes, numbers: Integers, kept: Mask, stock: Mapping[int, int]
) -> bool:
    """Whether a change takes a row that one which finds no row would have made, and nobody has
    looked how many of that row there are."""
    count = len(changes)
    made = numbers[:count][~kept & (changes.operation != DELETE)]
    taken = numbers[count:][kept & (changes.operation != INSERT)]
    unknown = np.setdiff1d(made, list(stock))
    return bool(np.isin(taken, unknown).any())


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
