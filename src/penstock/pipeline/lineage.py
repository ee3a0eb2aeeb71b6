"""Lineage of rows: follow rows through the changes of a run, to find unchanged TOASTed values.

The input is the key events of a run and masks of cells that were not sent. For each row that exists
in the end and each column with a mask, the result is the last change that sent the cell or, if none
did, the key that the row had before the run. A row keeps its cells when its key changes, and
several rows may have a key one after another, so cells belong to rows, not to keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from penstock.pipeline.columns import Integers, Mask
from penstock.pipeline.key_events import CREATE, REMOVE, kind, position


@dataclass(frozen=True)
class Lineage:
    """The lineage of row versions, one entry for each version asked for.

    ``sent``: column -> position of the change that gave its cell, -1 if no change of the run did up
    to that version.
    ``origin``: the first event of the row in the run: an INSERT's CREATE, or the first event of
    the key that the row had before the run.
    """

    sent: Mapping[str, Integers]
    origin: Integers


def trace(event: Integers, key: Integers, last: Integers, unchanged: Mapping[str, Mask]) -> Lineage:
    """Follow the row versions that the changes at the positions ``last`` wrote.

    ``event``, ``key``: as ``KeyEvents.grouped`` gives them; ``unchanged``: column -> mask over
    changes.
    """
    event, row, first = _by_row(event, key)
    group = np.cumsum(np.append(True, row[1:] != row[:-1])) - 1
    asked = _written_by(event, last)
    at = position(event)
    gives = kind(event) != REMOVE
    sent = {
        name: _running_max(np.where(gives & ~mask[at], at, -1), group)[asked]
        for name, mask in unchanged.items()
    }
    return Lineage(sent, first[row[asked]])


@dataclass(frozen=True)
class DeletedRows:
    """The rows that a DELETE of the run ends, one entry for each.

    ``origin``: as in ``Lineage``; ``by``: position of the DELETE; ``last``: position of the change
    that wrote the row's last version, -1 if no change of the run did.
    """

    origin: Integers
    by: Integers
    last: Integers

    def take(self, kept: Mask) -> DeletedRows:
        """Return the entries that a mask selects."""
        return DeletedRows(self.origin[kept], self.by[kept], self.last[kept])


NONE_ENDED: Final = DeletedRows(*(np.empty(0, np.int64) for _ in range(3)))


def ended(event: Integers, key: Integers) -> DeletedRows:
    """Return the rows that are deleted in the run, whether or not they existed before it.

    ``event``, ``key``: as ``KeyEvents.grouped`` gives them.
    """
    event, row, first = _by_row(event, key)
    new_row = np.append(True, row[1:] != row[:-1])
    group = np.cumsum(new_row) - 1
    gives = np.where(kind(event) != REMOVE, position(event), -1)
    last = _running_max(gives, group)
    # A row that moved to another key goes on with the CREATE there: its last event is no REMOVE.
    at = np.flatnonzero(np.append(new_row[1:], True) & (kind(event) == REMOVE))
    return DeletedRows(first[row[at]], position(event[at]), last[at])


def changes_of_missing(event: Integers, key: Integers, missing: Integers, begins: bool) -> Integers:
    """Return the positions of the changes of rows that do not exist. A change of their keys leads
    to further ones, which the result does not name.

    ``missing``: the first events of keys that have no row in the target. ``begins``: the run begins
    with an empty table, so that no key has a row. Events that follow a REMOVE without a CREATE
    find no row either.
    """
    order = np.lexsort((event, key))
    event, key = event[order], key[order]
    new_key = np.append(True, key[1:] != key[:-1])
    after_remove = np.append(False, kind(event[:-1]) == REMOVE) & ~new_key
    opens = new_key | after_remove | (kind(event) == CREATE)
    life = np.cumsum(opens) - 1
    first = event[opens]
    found = kind(first) != CREATE
    known = new_key[opens] & ~np.isin(first, missing) if not begins else np.zeros(len(first), bool)
    lost = found & ~known
    return np.unique(position(event[lost[life]]))


def duplicates(event: Integers, key: Integers) -> Integers:
    """Return the CREATE events of keys that have a row at that moment, judged by the run alone."""
    order = np.lexsort((event, key))
    event, key = event[order], key[order]
    same = key[1:] == key[:-1]
    there = same & (kind(event[:-1]) != REMOVE) & (kind(event[1:]) == CREATE)
    return np.sort(event[1:][there])


def _by_row(event: Integers, key: Integers) -> tuple[Integers, Integers, Integers]:
    """Return the events, row by row and in order; aligned with them, the numbers of their rows;
    and, by row number, the first event of each row."""
    order = np.lexsort((event, key))
    event, key = event[order], key[order]
    opens = np.append(True, key[1:] != key[:-1]) | (kind(event) == CREATE)
    life = np.cumsum(opens) - 1
    first = event[opens]
    root = _roots(event, life, first)
    order = np.lexsort((event, root[life]))
    return event[order], root[life][order], first


def in_the_way(event: Integers, key: Integers, twice: Integers, kept: bool) -> Integers:
    """Return, for each of ``duplicates``, the event that made the row with the same key. ``kept``:
    duplicates themselves make no row, since the row with their key stays."""
    order = np.lexsort((event, key))
    event = event[order]
    if not kept:
        by_event = np.argsort(event)
        before: Integers = event[by_event[np.searchsorted(event[by_event], twice)] - 1]
        return before
    gives = ~np.isin(event, twice)  # the first event of a key is no duplicate
    last = np.maximum.accumulate(np.where(gives, np.arange(len(event)), 0))
    by_event = np.argsort(event)
    found: Integers = event[last[by_event[np.searchsorted(event[by_event], twice)]]]
    return found


def _roots(event: Integers, life: Integers, first: Integers) -> Integers:
    """Return, for each life of a key, the life in which its row began.

    A life is the time from one CREATE of a key to the next. A life that a key change opened
    continues the life that the REMOVE of the same change ended; chains of pointers are halved until
    nothing moves.
    """
    removes = kind(event) == REMOVE
    at = position(event[removes])
    order = np.argsort(at)
    at, ended = at[order], life[removes][order]
    parent = np.arange(len(first))
    created = np.flatnonzero(kind(first) == CREATE)
    found = np.searchsorted(at, position(first[created]))
    continues = np.append(at, -1)[found] == position(first[created])
    parent[created[continues]] = ended[found[continues]]
    while True:
        further = parent[parent]
        if np.array_equal(further, parent):
            return parent
        parent = further


def _written_by(event: Integers, last: Integers) -> Integers:
    """Return the indexes of the events that made the rows written by the changes at ``last``."""
    gives = np.flatnonzero(kind(event) != REMOVE)
    at = position(event[gives])
    order = np.argsort(at)
    found: Integers = gives[order][np.searchsorted(at[order], last)]
    return found


def _running_max(value: Integers, group: Integers) -> Integers:
    """Return, at each entry, the largest value of its group so far (values are -1, 0, 1 ...);
    groups are numbered in order."""
    above = group * (int(value.max(initial=-1)) + 2)
    found: Integers = np.maximum.accumulate(value + above) - above
    return found
