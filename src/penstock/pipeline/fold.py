"""Fold: the change batches of one table to their net effect on it.

In: ChangeBatches of one relation in order, and where TRUNCATEs fell. Out: a NetChange. Keys are
grouped in DuckDB, which sees nothing but keys and positions; values are only ever picked by
position from the Arrow columns they came in, so no type is converted on the way. Assumes that
every row which a change names exists and no other does; ``apply`` proves it, and has it folded
again without the changes of rows that turn out to be missing, which PostgreSQL skips, too, and,
where that is no error, with what is known of keys that turn out to be there already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from penstock.errors import KeyExists, ProtocolViolation, ReplicationConflict, SchemaChanged
from penstock.lakehouse.defaults import Draw, no_draw
from penstock.lakehouse.schema import TableSchema
from penstock.pgoutput.columnar import ChangeBatch
from penstock.pipeline.changes import (
    DELETE,
    INSERT,
    OLD_ROW,
    Changes,
    Stamped,
    restamped,
    unify,
    unstamped,
)
from penstock.pipeline.columns import Integers, Mask
from penstock.pipeline.conflict import ERROR, KEEP_LOCAL, key_exists
from penstock.pipeline.history import OldRows, versions
from penstock.pipeline.key_events import CREATE, KeyEvents, KeyTotals, key_events, kind, position
from penstock.pipeline.lineage import (
    NONE_ENDED,
    Ended,
    Lineage,
    changes_of_missing,
    duplicates,
    ended,
    in_the_way,
    trace,
)
from penstock.pipeline.met_in_order import met_in_order
from penstock.pipeline.multiset import fold_multiset
from penstock.pipeline.net_change import (
    KEPT,
    EndedRows,
    Incomplete,
    LocalRow,
    LocalRows,
    Met,
    NetChange,
    OriginDiffers,
    Skipped,
)
from penstock.pipeline.versions import Versions
from penstock.relation import ReplicaIdentity


def fold(
    batches: Sequence[ChangeBatch],
    schema: TableSchema,
    *,
    truncates: Sequence[int] = (),
    from_sequence: int = 0,
    with_versions: bool = False,
    stamped: Stamped = unstamped,
    resolution: str = ERROR,
    soft_delete: bool = False,
    draw: Draw = no_draw,
) -> NetChange:
    """The net effect of ``batches`` and of TRUNCATEs at the message sequences ``truncates``.

    ``batches``: of one relation, in the versions of its definition that the run saw; ``schema``:
    the target's, which holds the columns of all of them. Changes and TRUNCATEs below
    ``from_sequence`` are skipped: the table has them already. ``schema.key`` == () makes the table
    a multiset. ``with_versions``: also what becomes of rows in between; nothing may be before a
    TRUNCATE then. ``stamped``: what metadata columns hold. ``resolution``: one of
    CONFLICT_RESOLUTIONS, for a key that is inserted where the table has it. ``soft_delete``: rows
    that were there before the run stay when they are deleted; the schema has ``deleted_at``, and no
    TRUNCATE is given. ``draw``: values of sequences for inserted rows, in the order of changes.

    Raises ReplicationConflict where a key is inserted twice or an inserted row lacks a value,
    RelationChanged where changes do not fit the target's columns or do not identify rows as the
    target does, ProtocolViolation where a needed tuple was not sent.
    """
    table = batches[0].relation.qualified_name if batches else ""
    valid = [sequence for sequence in truncates if sequence >= from_sequence]
    start = max([from_sequence, *valid])
    changes = unify(table, schema, batches, start, stamped, draw)
    _check_tuples(table, schema, [b for b in batches if _finds_rows(b, start)], changes)
    truncate = bool(valid)
    if schema.key:
        return _KeyedFold(
            *(table, schema, changes, truncate, with_versions, resolution, soft_delete)
        ).net()
    if changes.unchanged:
        raise _value_not_sent(table, next(iter(changes.unchanged)))
    return fold_multiset(table, schema, changes, truncate, with_versions, soft_delete=soft_delete)


def _finds_rows(batch: ChangeBatch, start: int) -> bool:
    """Whether changes of it need old rows."""
    return bool(np.any(batch.operation[batch.sequence >= start] != INSERT))


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
        full = relation.replica_identity is ReplicaIdentity.FULL
        known = full or (relation.key and schema.key)
        if not known or needed & sent - set(relation.key):
            raise _not_updatable(table, schema, needed)
    old = changes.old_kind != 0 if schema.key else changes.old_kind == OLD_ROW
    must = changes.operation == DELETE if schema.key else changes.operation != INSERT
    if np.any(must & ~old):
        raise ProtocolViolation(f'a change of table "{table}" came without its old tuple')


def _not_updatable(table: str, schema: TableSchema, needed: set[str]) -> SchemaChanged:
    """worker.c, check_relation_updatable."""
    target = f'logical replication target relation "{table}"'
    if schema.key:
        return SchemaChanged(
            f"publisher did not send replica identity column expected by the {target}",
            detail=f"Rows of the target are identified by {', '.join(sorted(needed))}.",
        )
    return SchemaChanged(
        f"{target} has neither REPLICA IDENTITY index nor PRIMARY KEY and published relation does "
        "not have REPLICA IDENTITY FULL"
    )


@dataclass(frozen=True)
class _KeyedFold:
    """The fold of a table with a key. ``skipped``, ``resolved``: what was left out, or is known of
    the target, by now; ``replaces``: changes that make a row in the place of one that is there."""

    table: str
    schema: TableSchema
    changes: Changes
    truncate: bool
    with_versions: bool
    resolution: str
    soft_delete: bool
    skipped: Skipped | None = None
    resolved: Met | None = None
    replaces: Mask | None = None

    def net(self) -> NetChange:
        table, schema, changes = self.table, self.schema, self.changes
        with key_events(schema.key, changes) as events:
            totals = events.totals()
            twice, local = self._made_twice(events, totals)
            follows = not len(twice) and self._follows(totals)
            there = totals.existed | self._replaced(totals.first)
            found = np.sort(totals.first[there])
            removed = events.keys(found)
            made = np.sort(totals.first[~there])
            absent = events.keys(made)
            last = np.sort(position(totals.last[totals.exists]))
            if follows:
                dead = self._dead(events, found)
                rows, incomplete = _versions(table, *dead.with_rows(changes, last), events, found)
                every = (
                    _every_version(table, changes, events, found) if self.with_versions else None
                )
        if len(twice):
            return self._kept(position(twice), local)
        if not follows:
            return self._without(np.empty(0, np.int64))
        return NetChange(
            table,
            schema,
            len(changes),
            rows,
            removed,
            absent.slice(0, 0) if self.truncate else absent,
            incomplete=incomplete,
            truncate=self.truncate,
            skipped=self.skipped,
            versions=every,
            ended=dead.untouched(changes, found),
            without=lambda lacking: self._without(found[lacking > 0]),
            exists=lambda name, at, there: self._exists(
                name, made[at], absent.take(pa.array(at)), _by_change(made, there)
            ),
            resolved=self.resolved,
            differs=lambda at, there: self._differs(found[at], _by_change(found, there)),
            existing=None
            if self.resolution == ERROR
            else lambda at, there: self._existing(made[at], found, _by_change(made, there)),
        )

    def _dead(self, events: KeyEvents, found: Integers) -> _Dead:
        """Rows that were there before, or have taken the place of one that was, and are deleted."""
        if not self.soft_delete or not np.any(self.changes.operation == DELETE):
            return _Dead(NONE_ENDED)
        every = ended(*events.grouped())
        return _Dead(every.take(np.isin(every.origin, found)))

    def _follows(self, totals: KeyTotals) -> bool:
        """Whether each key's changes alternate, and after a TRUNCATE begin with an insert; else
        some of them are of rows that are not there."""
        expected = totals.exists.astype(np.int64) - totals.existed
        emptied = self.truncate and np.any(totals.existed)
        return bool(np.all(totals.balance == expected) and not emptied)

    def _made_twice(self, events: KeyEvents, totals: KeyTotals) -> tuple[Integers, LocalRows]:
        """Events that make a row of a key that has one by an earlier change, where that is no
        error, and those rows. Raises ReplicationConflict where it is."""
        expected = totals.exists.astype(np.int64) - totals.existed
        if not np.any(totals.balance > expected):
            return np.empty(0, np.int64), {}
        event, key = events.grouped()
        if self._told_enough:
            there = totals.first[totals.existed & (not self.truncate)]
            met = met_in_order(event, key, there)
            return met * 4 + CREATE, {}
        twice = duplicates(event, key)
        made = position(in_the_way(event, key, twice[:KEPT]))
        told = (self.changes.told(at, self.schema.key)[0] for at in made.tolist())
        rows = (LocalRow(row, of_run=True) for row in told)
        local = dict(zip(position(twice[:KEPT]).tolist(), rows, strict=True))
        if len(twice) and self.resolution != KEEP_LOCAL:
            raise self._exists(self.table, twice, events.keys(twice), local)
        return twice, local

    def _exists(self, table: str, event: Integers, keys: pa.Table, local: LocalRows) -> KeyExists:
        """``event``: the CREATEs of ``keys``, in order. The first one is told of as it came."""
        first = int(position(event[0]))
        row, identity = self.changes.told(first, keys.column_names)
        error = key_exists(table, keys, row, identity, local.get(first))
        error.met = self.changes.met(self._mask(position(event)), self.schema.key, local)
        return error

    def _replaced(self, event: Integers) -> Mask:
        if self.replaces is None:
            return np.zeros(len(event), bool)
        result: Mask = (kind(event) == CREATE) & self.replaces[position(event)]
        return result

    def _without(self, missing: Integers) -> NetChange:
        """Fold again; ``missing``: first events of keys that have no row."""
        with key_events(self.schema.key, self.changes) as events:
            gone = changes_of_missing(*events.grouped(), missing, self.truncate)
        if not len(gone):
            raise ProtocolViolation(
                f'changes of table "{self.table}" do not follow from one another'
            )
        left_out = self._mask(gone)
        more = self.changes.skipped(left_out, self.schema.key)
        skipped = more if self.skipped is None else self.skipped.with_more(more)
        return replace(self._rest(~left_out), skipped=skipped).net()

    def _differs(self, event: Integers, local: LocalRows) -> OriginDiffers:
        """``event``: those that found the rows. Of one that was replaced is told already."""
        found = position(event[kind(event) != CREATE])
        return self.changes.differs(self._mask(found), self.schema.key, local)

    def _existing(self, there: Integers, found: Integers, local: LocalRows) -> NetChange:
        """Fold again; ``there``: first events of keys that are made and that the target has, in the
        rows ``local``; ``found``: of those that it has, too."""
        at = position(there)
        if self.resolution == KEEP_LOCAL and self._told_enough:
            with key_events(self.schema.key, self.changes) as events:
                at = met_in_order(*events.grouped(), np.concatenate([there, found]))
        if self.resolution == KEEP_LOCAL:
            return self._kept(at, local)
        met = self._mask(at)
        replaces = met if self.replaces is None else self.replaces | met
        return replace(self, replaces=replaces, resolved=self._told(met, local)).net()

    def _kept(self, at: Integers, local: LocalRows) -> NetChange:
        """Fold again without such changes: what follows is of the rows that are there."""
        met = self._mask(at)
        return replace(self._rest(~met), resolved=self._told(met, local)).net()

    @property
    def _told_enough(self) -> bool:
        """Of each change that is left out the row in its way is told, which takes a fold for each
        link of a chain; from here on all of them are found at once."""
        return self.resolved is not None and len(self.resolved.at) >= KEPT

    def _told(self, met: Mask, local: LocalRows) -> Met:
        more = self.changes.met(met, self.schema.key, local)
        return more if self.resolved is None else self.resolved.with_more(more)

    def _rest(self, kept: Mask) -> _KeyedFold:
        replaces = None if self.replaces is None else self.replaces[kept]
        return replace(self, changes=self.changes.take(kept), replaces=replaces)

    def _mask(self, at: Integers) -> Mask:
        mask = np.zeros(len(self.changes), bool)
        mask[at] = True
        return mask


@dataclass(frozen=True)
class _Dead:
    """Rows that stay when they are deleted."""

    rows: Ended

    def with_rows(self, changes: Changes, last: Integers) -> tuple[Changes, Integers]:
        """``last``, the changes that write rows, with those that wrote the last versions of dead
        rows before; these get the metadata columns of the DELETEs."""
        touched = self.rows.last >= 0
        if not touched.any():
            return changes, last
        wrote, source = self.rows.last[touched], np.arange(len(changes))
        source[wrote] = self.rows.by[touched]
        new = restamped(changes.new, changes.stamps, source, changes.new)
        return replace(changes, new=new), np.sort(np.concatenate([last, wrote]))

    def untouched(self, changes: Changes, found: Integers) -> EndedRows | None:
        """Those that nothing was changed of. ``found``: first events of the keys of old rows."""
        alone = self.rows.take(self.rows.last < 0)
        if not len(alone.by):
            return None
        stamps = changes.new.select(changes.stamps).take(pa.array(alone.by))
        return EndedRows(np.searchsorted(found, alone.origin), stamps)


def _by_change(made: Integers, local: LocalRows) -> LocalRows:
    """``local``: by numbers of the events ``made``."""
    return {int(position(made[number])): row for number, row in local.items()}


def _versions(
    table: str, changes: Changes, last: Integers, events: KeyEvents, found: Integers
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
