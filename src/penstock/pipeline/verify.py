"""The proof of a batch: what tasks found against what the fold expects.

In: NetChanges and the results of their job. Out: per table the positions that go, or a
ReplicationConflict that names table and keys. The fold assumes that every row which it removes
exists exactly once and that no row which it inserts does; only here is that known. Rows that are
missing are no error: ``apply`` has them folded out first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from pyroaring import BitMap

from penstock.errors import ReplicationConflict
from penstock.lakehouse.bitmaps import bitmap_of, numbers_of
from penstock.pipeline.columns import Integers, rank
from penstock.pipeline.conflict import conflict
from penstock.pipeline.known_hits import FileName
from penstock.pipeline.net_change import LocalRows, NetChange
from penstock.pipeline.tasks import HISTORY, Candidates, Located, Written

MISSING = "could not find the row to be updated or deleted"
REPEATED = "more than one row has the key"


def positions_to_delete(
    table: str,
    net: NetChange,
    results: Sequence[Located | Candidates | Written],
    local: Callable[[Integers], LocalRows],
) -> Mapping[FileName, BitMap]:
    """Positions of the rows that go, by file. ``local``: the rows that are there of these of
    ``net.absent``. Raises ReplicationConflict."""
    if net.copies is not None:
        return _choose(table, net, [r for r in results if isinstance(r, Candidates)])
    located = [r for r in results if isinstance(r, Located)]
    found, repeated = BitMap(), BitMap()
    for result in located:
        here = BitMap.deserialize(result.found)
        repeated |= BitMap.deserialize(result.repeated) | (here & found)
        found |= here
    wanted = BitMap(range(net.removed.num_rows))
    if exist := found - wanted:
        assert net.exists is not None
        numbers = numbers_of(exist) - net.removed.num_rows
        raise net.exists(table, numbers, local(numbers))
    findings = [
        (what, _with_numbers(net.removed, numbers))
        for what, numbers in ((MISSING, wanted - found), (REPEATED, repeated & wanted))
        if numbers
    ]
    if findings:
        raise conflict(table, findings)
    _check_completed(table, net, results)
    return {(r.part, r.path): p for r in located if (p := BitMap.deserialize(r.positions))}


def missing_rows(
    net: NetChange, results: Sequence[Located | Candidates | Written]
) -> np.ndarray | None:
    """For each row of ``net.removed`` how many of it the table lacks; None: it has them all, and
    that is no answer to a question."""
    count = net.removed.num_rows
    if net.copies is None:
        lacking = np.ones(count, np.int64)
        lacking[numbers_of(_found(results) & BitMap(range(count)))] = 0
    else:
        probes = [r.probe for r in results if isinstance(r, Candidates)]
        probe = np.concatenate([np.empty(0, np.int64), *probes])
        lacking = np.maximum(net.copies - np.bincount(probe, minlength=count), 0)
    return lacking if lacking.any() or net.asks else None


def lacks_rows(net: NetChange, results: Sequence[Located | Candidates | Written]) -> bool:
    """Whether a row of ``net.removed``, which have a key, was not found."""
    count = net.removed.num_rows
    return bool(len(_found(results) & BitMap(range(count))) < count)


def _found(results: Sequence[Located | Candidates | Written]) -> BitMap:
    """Probe rows that were found, of rows with a key."""
    return BitMap.union(
        BitMap(), *(BitMap.deserialize(r.found) for r in results if isinstance(r, Located))
    )


def existing_rows(
    net: NetChange, results: Sequence[Located | Candidates | Written]
) -> np.ndarray | None:
    """The rows of ``net.absent`` that the table has, where that is no error; None: there are
    none."""
    if net.existing is None:
        return None
    exist = _found(results) - BitMap(range(net.removed.num_rows))
    return numbers_of(exist) - net.removed.num_rows if exist else None


def _with_numbers(keys: pa.Table, numbers: BitMap) -> pa.Table:
    return keys.take(pa.array(np.array(numbers, np.int64)))


def _check_completed(
    table: str, net: NetChange, results: Sequence[Located | Candidates | Written]
) -> None:
    expected = net.rows_completed
    mine = (r for r in results if isinstance(r, Written) and r.part != HISTORY)
    completed = sum(r.completed for r in mine)
    if completed != expected:
        raise ReplicationConflict(
            f'{completed} of {expected} rows of table "{table}" with values that the publisher did '
            "not send were completed",
        )


def _choose(table: str, net: NetChange, results: Sequence[Candidates]) -> Mapping[FileName, BitMap]:
    """Of equal rows take as many as are to go, in the order of files and positions."""
    assert net.copies is not None
    results = sorted(results, key=lambda result: (result.part, result.path))
    nothing = [np.empty(0, np.int64)]
    probe = np.concatenate([result.probe for result in results] or nothing)
    position = np.concatenate([result.position for result in results] or nothing)
    file = np.repeat(np.arange(len(results)), [len(result.probe) for result in results])
    order = np.argsort(probe, kind="stable")
    taken = order[rank(probe[order]) < net.copies[probe[order]]]
    lacking = np.bincount(probe[taken], minlength=len(net.copies)) < net.copies
    if lacking.any():
        raise conflict(table, [(MISSING, net.removed.filter(pa.array(lacking)))])
    return {
        (result.part, result.path): bitmap_of(goes)
        for number, result in enumerate(results)
        if len(goes := position[taken[file[taken] == number]])
    }
