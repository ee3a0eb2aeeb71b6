"""Fold: the change batches of one table to their net effect on it.

In: ChangeBatches of one relation in order, and where TRUNCATEs fell. Out: a NetChange. Keys are
grouped in DuckDB, which sees nothing but keys and positions; values are only ever picked by
position from the Arrow columns they came in, so no type is converted on the way. Assumes that
every row which a change names exists and no other does; ``apply`` proves it, and has it folded
again without the changes of rows that turn out to be missing, which PostgreSQL skips, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from penstock.errors import ProtocolViolation, ReplicationConflict, SchemaChanged
from penstock.lakehouse.schema import TableSchema
from penstock.pgoutput.columnar import ChangeBatch
from penstock.pipeline.changes import DELETE, INSERT, OLD_ROW, Changes, Stamped, unify, unstamped
from penstock.pipeline.columns import Integers, Mask
from penstock.pipeline.conflict import key_exists
from penstock.pipeline.history import OldRows, versions
from penstock.pipeline.key_events import CREATE, KeyEvents, KeyTotals, key_events, kind, position
from penstock.pipeline.lineage import Lineage, changes_of_missing, duplicates, trace
from penstock.pipeline.multiset import fold_multiset
from penstock.pipeline.net_change import Incomplete, NetChange, Skipped, Versions
from penstock.relation import ReplicaIdentity


def fold(
    batches: Sequence[ChangeBatch],
    schema: TableSchema,
    *,
    truncates: Sequence[int] = (),
    from_sequence: int = 0,
    with_versions: bool = False,
    stamped: Stamped = unstamped,
) -> NetChange:
    """The net effect of ``batches`` and of TRUNCATEs at the message sequences ``truncates``.

    ``batches``: of one relation, in the versions of its definition that the run saw; ``schema``:
    the target's, which holds the columns of all of them. Changes and TRUNCATEs below
    ``from_sequence`` are skipped: the table has them already. ``schema.key`` == () makes the table
    a multiset. ``with_versions``: also what becomes of rows in between; nothing may be before a
    TRUNCATE then. ``stamped``: what metadata columns hold.

    Raises ReplicationConflict where a key is inserted twice or an inserted row lacks a value,
    RelationChanged where changes do not fit the target's columns or do not identify rows as the
    target does, ProtocolViolation where a needed tuple was not sent.
    """
    table = batches[0].relation.qualified_name if batches else ""
    valid = [sequence for sequence in truncates if sequence >= from_sequence]
    changes = unify(table, schema, batches, max([from_sequence, *valid]), stamped)
    _check_tuples(table, schema, batches, changes)
    truncate = bool(valid)
    if schema.key:
        return _fold_keyed(table, schema, changes, truncate, with_versions)
    if changes.unchanged:
        raise _value_not_sent(table, next(iter(changes.unchanged)))
    return fold_multiset(table, schema, changes, truncate, with_versions)


def _check_tuples(
    table: str, schema: TableSchema, batches: Sequence[ChangeBatch], changes: Changes
) -> None:
    """Old tuples must identify rows as the target does (logicalrep_rel_mark_updatable)."""
    if np.all(changes.operation == INSERT):
        return
    source = {column.name: column.source for column in schema.columns}
    needed = {source[name] for name in schema.identity}
    for relation in {batch.relation for batch in batches}:
        sent = {attribute.name for attribute in relation.attributes}
        known = relation.key or relation.replica_identity is ReplicaIdentity.FULL
        if not known or needed & sent - set(relation.key):
            raise SchemaChanged(
                "publisher did not send replica identity column expected by the logical "
                f'replication target relation "{table}"',
                detail=f"Rows of the target are identified by {', '.join(sorted(needed))}.",
            )
    old = changes.old_kind != 0 if schema.key else changes.old_kind == OLD_ROW
    must = changes.operation == DELETE if schema.key else changes.operation != INSERT
    if np.any(must & ~old):
        raise ProtocolViolation(f'a change of table "{table}" came without its old tuple')


def _fold_keyed(
    table: str,
    schema: TableSchema,
    changes: Changes,
    truncate: bool,
    with_versions: bool,
    skipped: Skipped | None = None,
) -> NetChange:
    def without(missing: np.ndarray) -> NetChange:
        """Fold again; ``missing``: first events of keys that have no row."""
        with key_events(schema.key, changes) as events:
            gone = changes_of_missing(*events.grouped(), missing, truncate)
        left_out = np.zeros(len(changes), bool)
        left_out[gone] = True
        if not len(gone):
            raise ProtocolViolation(f'changes of table "{table}" do not follow from one another')
        more = changes.skipped(left_out, schema.key)
        all_of_them = more if skipped is None else skipped.with_more(more)
        left = changes.take(~left_out)
        return _fold_keyed(table, schema, left, truncate, with_versions, all_of_them)

    with key_events(schema.key, changes) as events:
        totals = events.totals()
        follows = _follows(table, changes, events, totals, truncate)
        found = np.sort(totals.first[totals.existed])
        removed = events.keys(found)
        made = np.sort(totals.first[~totals.existed])
        absent = events.keys(made)
        last = np.sort(position(totals.last[totals.exists]))
        if follows:
            rows, incomplete = _versions(table, changes, events, last, found)
            every = _every_version(table, changes, events, found) if with_versions else None
    if not follows:
        return without(np.empty(0, np.int64))
    return NetChange(
        table,
        schema,
        len(changes),
        rows,
        removed,
        absent.slice(0, 0) if truncate else absent,
        incomplete=incomplete,
        truncate=truncate,
        skipped=skipped,
        versions=every,
        without=lambda lacking: without(found[lacking > 0]),
        exists=lambda name, rows: _exists(name, changes, made[rows], absent.take(pa.array(rows))),
    )


def _follows(
    table: str,
    changes: Changes,
    events: KeyEvents,
    totals: KeyTotals,
    truncate: bool,
) -> bool:
    """Whether each key's changes alternate, and after a TRUNCATE begin with an insert; else some
    of them are of rows that are not there. Raises ReplicationConflict for a key inserted twice."""
    expected = totals.exists.astype(np.int64) - totals.existed
    if np.any(totals.balance > expected) and len(twice := duplicates(*events.grouped())):
        raise _exists(table, changes, twice, events.keys(twice))
    return bool(np.all(totals.balance == expected) and not (truncate and np.any(totals.existed)))


def _exists(table: str, changes: Changes, event: np.ndarray, keys: pa.Table) -> ReplicationConflict:
    """``event``: the CREATEs of ``keys``, in order. The first one is told of as it came."""
    row, identity = changes.told(int(position(event[0])), keys.column_names)
    return key_exists(table, keys, row, identity)


def _versions(
    table: str, changes: Changes, events: KeyEvents, last: np.ndarray, found: np.ndarray
) -> tuple[pa.Table, Incomplete | None]:
    """The new row versions, written by the changes at ``last``: complete ones, others."""
    gaps = {name: mask for name, mask in changes.unchanged.items() if mask[last].any()}
    if not gaps:
        whole = len(last) == changes.new.num_rows
        return (changes.new if whole else changes.new.take(pa.array(last))), None
    lineage = trace(*events.grouped(), last, gaps)
    rows = changes.new.take(pa.array(last))
    for name, sent in lineage.sent.items():
        at = rows.schema.get_field_index(name)
        cells = changes.new[name].take(pa.array(sent, mask=sent < 0))
        rows = rows.set_column(at, rows.schema.field(at), cells)
    lacking = {name: sent < 0 for name, sent in lineage.sent.items()}
    partial = np.logical_or.reduce(list(lacking.values()))
    if not partial.any():
        return rows, None
    for name, mask in lacking.items():
        if np.any(kind(lineage.origin[mask]) == CREATE):
            raise _value_not_sent(table, name)
    incomplete = Incomplete(
        rows.filter(pa.array(partial)),
        {name: mask[partial] for name, mask in lacking.items() if mask.any()},
        np.searchsorted(found, lineage.origin[partial]),
    )
    return rows.filter(pa.array(~partial)), incomplete


def _every_version(table: str, changes: Changes, events: KeyEvents, found: np.ndarray) -> Versions:
    def follow(last: Integers, gaps: Mapping[str, Mask]) -> Lineage:
        return trace(*events.grouped(), last, gaps)

    old_rows = OldRows(follow, found, lambda column: _value_not_sent(table, column))
    return versions(changes, old_rows)


def _value_not_sent(table: str, column: str) -> ReplicationConflict:
    """pgoutput: an UPDATE that moves a row into a row filter is sent as INSERT, without it."""
    return ReplicationConflict(
        f'the publisher did not send column "{column}" of a row new to table "{table}"',
        detail="An UPDATE moved the row into the publication's row filter; its unchanged TOASTed "
        "value is sent only if it is part of the replica identity. Later ones are sent after ALTER "
        "TABLE ... REPLICA IDENTITY FULL at the publisher.",
    )
