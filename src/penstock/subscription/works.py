"""What a share of a batch comes to: net changes of its table, to be carried out one by one.

In: a target with what is new to it, the transactions that its changes are of. Out: TableWorks in
their order: one as a rule. Where the table has a history, or deleted rows stay, or columns take
values of sequences, what comes before a TRUNCATE is not lost in one: changes before it and after it
are works of their own. So are those before and after the key of its rows has become another one:
each is found by the key of its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.lakehouse.defaults import Draw
from penstock.lakehouse.history_table import fit
from penstock.lakehouse.schema import TableSchema
from penstock.lsn import Lsn
from penstock.pgoutput.columnar import ChangeBatch
from penstock.pipeline.changes import DELETE, Stamped, stamp_of
from penstock.pipeline.fold import fold
from penstock.pipeline.history import HistoryWork, Stamps
from penstock.pipeline.net_change import NetChange
from penstock.pipeline.table_work import TableWork
from penstock.pipeline.versions import Versions
from penstock.sql.builtin.enum_types import known_enums
from penstock.subscription.relation_map import Share, first_message

_END: Final = np.iinfo(np.int64).max


def works_of(
    share: Share,
    keys: Sequence[tuple[str, ...]],
    stamps: Stamps,
    app_id: str,
    *,
    resolution: str,
    soft_delete: bool,
    draw: Draw,
) -> Iterator[TableWork]:
    """``keys``: of the table's rows, for each of the share's changes, by Delta names.
    ``resolution``, ``soft_delete``, ``draw``: as ``fold`` takes them. Raises what that raises, and
    ``fit``."""
    target = share.target
    schema, history, first = target.table.schema, target.history, share.first
    if history is not None:
        fit(history, target.table.name, schema)
        marker = history.transaction_version(app_id)
        first = first_message(stamps.chunk, None if marker is None else Lsn(marker), stamps.end)
    for run, key in _by_key(share, keys):
        keyed = schema if key is None else TableSchema(schema.columns, key)
        yield from _works(run, keyed, first, stamps, resolution, soft_delete, draw)


def _works(
    share: Share,
    schema: TableSchema,
    first: int,
    stamps: Stamps,
    resolution: str,
    soft_delete: bool,
    draw: Draw,
) -> Iterator[TableWork]:
    """``first``: the first message that the history, if there is one, has not."""
    target, history = share.target, share.target.history
    segments = _segments(share)
    if history is None and not ((soft_delete or target.draws) and share.truncates):
        segments = iter([(share.changes, share.truncates, share.first)])
    for changes, truncates, start in segments:
        if share.restarts.intersection(truncates):
            target.restart()
        to = None
        if history is not None:
            to = HistoryWork(history, stamps, first, truncates[-1] if truncates else None)
        if truncates and soft_delete:
            net = _all_deleted(target.table.name, schema, truncates[-1], stamps.columns)
            yield TableWork(target.table, net, leaves=target.leaves, history=to)
            if not changes:
                continue
            truncates = ()
            to = None if history is None else HistoryWork(history, stamps, first)
        with known_enums(target.enums):
            net = fold(
                changes,
                schema,
                truncates=truncates,
                from_sequence=start,
                with_versions=history is not None,
                stamped=stamps.columns,
                resolution=resolution,
                soft_delete=soft_delete,
                draw=draw,
            )
        yield TableWork(target.table, net, leaves=target.leaves, history=to)


def _all_deleted(table: str, schema: TableSchema, truncate: int, stamped: Stamped) -> NetChange:
    """A TRUNCATE is a DELETE of all rows where deleted ones stay."""
    sequence = np.array([truncate])
    given = stamped(sequence)
    values = {c.name: stamp_of(c, given, np.array([DELETE])) for c in schema.stamps}
    nothing = schema.arrow().empty_table()
    keys, none = nothing.select(list(schema.identity)), np.empty(0, np.int64)
    return NetChange(
        table,
        schema,
        0,
        nothing,
        keys,
        keys,
        versions=Versions(none, none, nothing, none, {}, none),
        all_ended=pa.table({name: array for name, array in values.items() if array is not None}),
    )


def _by_key(
    share: Share, keys: Sequence[tuple[str, ...]]
) -> Iterator[tuple[Share, tuple[str, ...] | None]]:
    """The parts of a share whose rows have one key; None: there is no row."""
    begins = [n for n, key in enumerate(keys) if n == 0 or key != keys[n - 1]]
    if len(begins) < 2:
        yield share, keys[0] if keys else None
        return
    changes, ends = share.changes, [*begins[1:], len(keys)]
    starts = [share.first, *(int(changes[n].sequence[0]) for n in begins[1:]), _END]
    for number, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        start, stop = starts[number : number + 2]
        truncates = tuple(each for each in share.truncates if start <= each < stop)
        yield (
            replace(share, first=start, changes=changes[begin:end], truncates=truncates),
            keys[begin],
        )


def _segments(share: Share) -> Iterator[tuple[tuple[ChangeBatch, ...], tuple[int, ...], int]]:
    """Changes with the TRUNCATE that they come after, if one, and where they begin."""
    starts = [share.first, *share.truncates]
    ends = [*share.truncates, _END]
    for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
        parts = (_between(batch, start, end) for batch in share.changes)
        changes = tuple(part for part in parts if len(part))
        if changes or number:
            yield changes, (start,) if number else (), start


def _between(batch: ChangeBatch, start: int, end: int) -> ChangeBatch:
    low, high = np.searchsorted(batch.sequence, (start, end))
    here = slice(low, high)
    return ChangeBatch(
        batch.relation,
        batch.sequence[here],
        batch.operation[here],
        batch.new.slice(low, high - low),
        {name: mask[here] for name, mask in batch.unchanged.items()},
        None if batch.old is None else batch.old.slice(low, high - low),
        batch.old_kind[here],
    )
