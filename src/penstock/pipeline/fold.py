"""Fold: reduce the change batches of one table to their net effect on it.

The ChangeBatches of one relation, in order and with the positions of TRUNCATEs, become a NetChange.
Values are picked by position from the Arrow columns in which they came, so no type is converted.
Fold assumes that every row that a change names exists and that new keys do not; ``apply`` verifies
this. If rows are missing, ``apply`` folds again without their changes, which PostgreSQL skips, too.
If existing keys are not an error, ``apply`` folds again and passes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.catalog.pg_subscription import DEFAULTS, LakeOptions
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
from penstock.pipeline.columns import Integers, Mask, signs
from penstock.pipeline.conflict import ERROR, KEEP_LOCAL, key_exists
from penstock.pipeline.duck import connection
from penstock.pipeline.history import OldRows, versions
from penstock.pipeline.key_events import (
    CREATE,
    REMOVE,
    KeyEvents,
    KeyTotals,
    kind,
    position,
)
from penstock.pipeline.lineage import (
    NONE_ENDED,
    DeletedRows,
    Lineage,
    changes_of_missing,
    duplicates,
    ended,
    in_the_way,
    trace,
)
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

_NONE: Final = np.empty(0, np.int64)


def fold(
    batches: Sequence[ChangeBatch],
    schema: TableSchema,
    *,
    truncates: Sequence[int] = (),
    from_sequence: int = 0,
    with_versions: bool = False,
    stamped: Stamped = unstamped,
    options: LakeOptions = DEFAULTS,
    draw: Draw = no_draw,
) -> NetChange:
    """Return the net effect of ``batches`` and of TRUNCATEs at the message sequences ``truncates``.

    ``batches``: of one relation, perhaps with several versions of its definition. ``schema``: the
    target's, which has the columns of all these versions. Changes and TRUNCATEs below
    ``from_sequence`` are skipped: the table has them already. ``schema.key`` == () makes the table
    a multiset. ``with_versions``: also return every version of a row; then no change may precede a
    TRUNCATE. ``stamped``: makes the metadata columns. ``options``: the subscription's.
    With ``conflict_resolution`` an inserted key may exist already. With ``soft_delete`` rows that
    existed before the run stay when they are deleted; the schema has ``deleted_at``, and no
    TRUNCATE is given. ``draw``: returns values of sequences for inserted rows, in the order of
    changes.

    Raises ReplicationConflict if a key is inserted twice or an inserted row lacks a value,
    RelationChanged if changes do not fit the target's columns or do not identify rows as the target
    does, ProtocolViolation if a needed tuple was not sent.
    """
    table = batches[0].relation.qualified_name if batches else ""
    valid = [sequence for sequence in truncates if sequence >= from_sequence]
    start = max([from_sequence, *valid])
    changes = unify(table, schema, batches, start, stamped, draw)
    _check_tuples(table, schema, [b for b in batches if _finds_rows(b, start)], changes)
    truncate = bool(valid)
    if schema.key:
        return _KeyedFold(table, schema, changes, truncate, with_versions, options).net()
    if changes.unchanged:
        raise _value_not_sent(table, next(iter(changes.unchanged)))
    return fold_multiset(table, schema, changes, truncate, with_versions, options)


def _finds_rows(batch: ChangeBatch, start: int) -> bool:
    """Return whether changes of the batch need old rows."""
    return bool(np.any(batch.operation[batch.sequence >= start] != INSERT))


def _check_tuples(
    table: str, schema: TableSchema, batches: Sequence[ChangeBatch], changes: Changes
) -> None:
    """Check that old tuples identify rows as the target does (logicalrep_rel_mark_updatable)."""
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
    """Return the error of worker.c, check_relation_updatable."""
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
    """The fold of a table with a key. ``skipped``: the changes left out so far; ``resolved``: the
    changes found so far whose new key exists already; ``replaces``: changes whose row replaces an
    existing row; ``again``: those whose row replaces a row of the run; ``searched``: no change of a
    missing row is left among those whose order shows one."""

    table: str
    schema: TableSchema
    changes: Changes
    truncate: bool
    with_versions: bool
    options: LakeOptions
    skipped: Skipped | None = None
    resolved: Met | None = None
    replaces: Mask | None = None
    again: Mask | None = None
    searched: bool = False

    def net(self) -> NetChange:
        table, schema, changes = self.table, self.schema, self.changes
        events = KeyEvents(schema.key, changes)
        totals = events.totals()
        if not self.searched and (
            np.any(totals.balance != _expected(totals)) or events.are_out_of_order()
        ):
            if not self.truncate and (self._keeps_local or np.any(totals.existed)):
                return self._asked(events, totals)
            if len(changes_of_missing(*events.grouped(), _NONE, self.truncate)):
                return self._without(_NONE)
        twice, local = self._made_twice(events, totals)
        if len(twice) and self._keeps_local:
            return self._kept(position(twice), local)
        if len(twice):
            met = self._mask(position(twice))
            again = met if self.again is None else self.again | met
            return replace(self, again=again, resolved=self._told(met, local)).net()
        if not self._follows(totals):
            return self._without(_NONE)
        there = totals.existed | self._replaced(totals.first)
        found = np.sort(totals.first[there])
        removed = events.keys(found)
        made = np.sort(totals.first[~there])
        absent = events.keys(made)
        last = np.sort(position(totals.last[totals.exists]))
        dead = self._dead(events, found)
        rows, incomplete = _versions(table, *dead.with_rows(changes, last), events, found)
        every = _every_version(table, changes, events, found) if self.with_versions else None
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
            if self.options.conflict_resolution == ERROR
            else lambda at, there: self._existing(made[at], found, _by_change(made, there)),
        )

    def _dead(self, events: KeyEvents, found: Integers) -> _Dead:
        """Return the deleted rows that existed before the run, or that replaced such a row."""
        if not self.options.soft_delete or not np.any(self.changes.operation == DELETE):
            return _Dead(NONE_ENDED)
        every = ended(*events.grouped())
        return _Dead(every.take(np.isin(every.origin, found)))

    def _follows(self, totals: KeyTotals) -> bool:
        """Return whether the changes of each key alternate and, after a TRUNCATE, begin with an
        insert. If not, there are changes of missing rows."""
        emptied = self.truncate and np.any(totals.existed)
        more = totals.balance - _expected(totals)
        again = 0 if self.again is None else np.count_nonzero(self.again)
        return bool(np.all(more >= 0) and more.sum() == again and not emptied)

    def _made_twice(self, events: KeyEvents, totals: KeyTotals) -> tuple[Integers, LocalRows]:
        """Return the events that create a key for which an earlier change has made a row, and these
        earlier rows. Raises ReplicationConflict if that is an error."""
        if not np.any(totals.balance > _expected(totals)):
            return _NONE, {}
        event, key = events.grouped()
        if self._told_enough and self._keeps_local:
            there = totals.first[totals.existed & (not self.truncate)]
            met = find_existing_keys(event, key, there)
            return met * 4 + CREATE, {}
        twice = duplicates(event, key)
        made = position(in_the_way(event, key, twice, self._keeps_local))
        if self.again is not None:
            new = ~self.again[position(twice)]
            twice, made = twice[new], made[new]
        told = (self.changes.told(at, self.schema.key)[0] for at in made[:KEPT].tolist())
        rows = (LocalRow(row, of_run=True) for row in told)
        local = dict(zip(position(twice[:KEPT]).tolist(), rows, strict=False))
        if len(twice) and self.options.conflict_resolution == ERROR:
            raise self._exists(self.table, twice, events.keys(twice), local)
        return twice, local

    def _exists(self, table: str, event: Integers, keys: pa.Table, local: LocalRows) -> KeyExists:
        """Return the error for keys that exist. ``event``: the CREATEs of ``keys``, in order. The
        message shows the first of their rows as the publisher sent it."""
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
        """Fold again without changes of missing rows. ``missing``: first events of keys that have
        no row."""
        events = KeyEvents(self.schema.key, self.changes)
        event, key = events.grouped()
        gone = changes_of_missing(event, key, missing, self.truncate)
        if not len(gone):
            raise self._out_of_order()
        if not np.isin(gone * 4 + CREATE, event).any():
            return self._left_out(gone)
        # The new key of a skipped change may have a row, which later changes find.
        totals = events.totals()
        there = totals.existed | self._replaced(totals.first)
        held = _NONE if self.truncate else totals.first[there]
        unknown = _NONE if self.truncate else totals.first[~there]
        visited = visit(event, key, np.setdiff1d(held, missing), unknown, self._keeps_local)
        return self._asked(events, totals) if visited is None else self._left_out(visited.missing)

    def _asked(self, events: KeyEvents, totals: KeyTotals) -> NetChange:
        """Return a net change that asks at once for all keys that changes may have to find in the
        target, or may meet there. One after the other would take a search for each link of a chain
        of changed keys."""
        event, key = events.grouped()
        asked = totals.existed | self._replaced(totals.first)
        asked |= np.isin(position(totals.first) * 4 + REMOVE, event) | self._keeps_local
        first = np.sort(totals.first[asked])

        def without(lacking: Integers) -> NetChange:
            visited = visit(event, key, first[lacking == 0], (), self._keeps_local)
            assert visited is not None
            if not self._keeps_local:
                return self._left_out(visited.missing)
            # A row that is kept has its old key, with which later changes find it.
            made = zip(visited.existing[:KEPT].tolist(), visited.met[:KEPT].tolist(), strict=True)
            local = {
                at: LocalRow(self.changes.told(by, self.schema.key)[0], of_run=True)
                for at, by in made
                if by >= 0
            }
            return self._left_out(visited.missing, visited.existing, local)

        keys, none = events.keys(first), self.changes.new.slice(0, 0)
        return NetChange(
            *(self.table, self.schema, len(self.changes), none, keys, keys.slice(0, 0)),
            skipped=self.skipped,
            resolved=self.resolved,
            asks=True,
            without=without,
        )

    def _out_of_order(self) -> ProtocolViolation:
        return ProtocolViolation(f'changes of table "{self.table}" do not follow from one another')

    @property
    def _keeps_local(self) -> bool:
        return self.options.conflict_resolution == KEEP_LOCAL

    def _left_out(
        self, gone: Integers, kept: Integers = _NONE, local: LocalRows = MappingProxyType({})
    ) -> NetChange:
        """Fold again without the changes at ``gone``, which found no rows, and those at ``kept``,
        which met the rows ``local``."""
        left_out, met = self._mask(gone), self._mask(kept)
        skipped, resolved = self.skipped, self.resolved
        if len(gone):
            more = self.changes.skipped(left_out, self.schema.key)
            skipped = more if skipped is None else skipped.with_more(more)
        if len(kept):
            resolved = self._told(met, local)
        rest = self._rest(~(left_out | met))
        return replace(rest, skipped=skipped, resolved=resolved, searched=True).net()

    def _differs(self, event: Integers, local: LocalRows) -> OriginDiffers:
        """Report changes of rows that others have written. ``event``: the first events of the rows'
        keys. Replaced rows have already been reported."""
        found = position(event[kind(event) != CREATE])
        return self.changes.differs(self._mask(found), self.schema.key, local)

    def _existing(self, there: Integers, found: Integers, local: LocalRows) -> NetChange:
        """Fold again with existing keys. ``there``: first events of keys that the run creates
        although the target has them (in the rows ``local``); ``found``: first events of the run's
        other keys that the target has."""
        at = position(there)
        if self.options.conflict_resolution == KEEP_LOCAL and self._told_enough:
            events = KeyEvents(self.schema.key, self.changes)
            at = find_existing_keys(*events.grouped(), np.concatenate([there, found]))
        if self.options.conflict_resolution == KEEP_LOCAL:
            return self._kept(at, local)
        met = self._mask(at)
        replaces = met if self.replaces is None else self.replaces | met
        return replace(self, replaces=replaces, resolved=self._told(met, local)).net()

    def _kept(self, at: Integers, local: LocalRows) -> NetChange:
        """Fold again without the changes at ``at``: later changes then change the existing rows."""
        met = self._mask(at)
        return replace(self._rest(~met), resolved=self._told(met, local)).net()

    @property
    def _told_enough(self) -> bool:
        """Return whether enough changes were reported. Each report shows the existing row, which
        takes one fold per link of a chain of conflicts. After KEPT reports the rest is found at
        once, without rows."""
        return self.resolved is not None and len(self.resolved.at) >= KEPT

    def _told(self, met: Mask, local: LocalRows) -> Met:
        more = self.changes.met(met, self.schema.key, local)
        return more if self.resolved is None else self.resolved.with_more(more)

    def _rest(self, kept: Mask) -> _KeyedFold:
        replaces = None if self.replaces is None else self.replaces[kept]
        again = None if self.again is None else self.again[kept]
        return replace(self, changes=self.changes.take(kept), replaces=replaces, again=again)

    def _mask(self, at: Integers) -> Mask:
        mask = np.zeros(len(self.changes), bool)
        mask[at] = True
        return mask


def _expected(totals: KeyTotals) -> Integers:
    """Return the balance of each key whose changes alternate."""
    return totals.exists.astype(np.int64) - totals.existed


@dataclass(frozen=True)
class _Dead:
    """The rows that stay after their deletion."""

    rows: DeletedRows

    def with_rows(self, changes: Changes, last: Integers) -> tuple[Changes, Integers]:
        """Return the changes, and the positions of those that write rows: ``last``, and those that
        wrote the last versions of dead rows, which get the metadata columns of the DELETEs."""
        touched = self.rows.last >= 0
        if not touched.any():
            return changes, last
        wrote, source = self.rows.last[touched], np.arange(len(changes))
        source[wrote] = self.rows.by[touched]
        new = restamped(changes.new, changes.stamps, source, changes.new)
        return replace(changes, new=new), np.sort(np.concatenate([last, wrote]))

    def untouched(self, changes: Changes, found: Integers) -> EndedRows | None:
        """Return the dead rows that the run only deleted, without changing them before. ``found``:
        first events of the keys of old rows."""
        alone = self.rows.take(self.rows.last < 0)
        if not len(alone.by):
            return None
        stamps = changes.new.select(changes.stamps).take(pa.array(alone.by))
        return EndedRows(np.searchsorted(found, alone.origin), stamps)


def _by_change(made: Integers, local: LocalRows) -> LocalRows:
    """Return ``local`` by positions of changes, instead of by indexes into the events ``made``."""
    return {int(position(made[number])): row for number, row in local.items()}


def _versions(
    table: str, changes: Changes, last: Integers, events: KeyEvents, found: Integers
) -> tuple[pa.Table, Incomplete | None]:
    """Return the row versions that the changes at ``last`` write: complete and incomplete ones."""
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
    """Return the error for an unchanged TOASTed value of a new row: pgoutput sends an UPDATE that
    moves a row into a row filter as an INSERT, without the value."""
    return ReplicationConflict(
        f'the publisher did not send column "{column}" of a row new to table "{table}"',
        detail="An UPDATE moved the row into the publication's row filter; its unchanged TOASTed "
        "value is sent only if it is part of the replica identity. Later ones are sent after ALTER "
        "TABLE ... REPLICA IDENTITY FULL at the publisher.",
    )


# Changes of a run visited one after the other, as PostgreSQL's apply worker does. They are found
# from the key events of the run and the keys that have a row before it.


@dataclass(frozen=True)
class Visited:
    """The positions of changes whose row is missing, and of others whose new key exists. ``met``:
    of each of these, the position of the change that made the row with its key, -1 for none."""

    missing: Integers
    existing: Integers
    met: Integers


def visit(
    event: Integers, key: Integers, there: Integers, unknown: Collection[int], keeps_local: bool
) -> Visited | None:
    """Visit the changes in order. Return None if a change has to find a row whose key is unknown,
    or may be skipped because its new key exists.

    ``event``, ``key``: from ``KeyEvents.grouped``; ``there``: the keys that have a row before the
    run; ``unknown``: keys that may have one. ``keeps_local``: a change whose new key exists is
    skipped: its row keeps its key, with which a later change may conflict.
    """
    order = np.argsort(event)
    event, key = event[order], key[order]
    at = position(event)
    moves = np.append(False, at[1:] == at[:-1])  # the CREATE of a change of the key
    held, doubtful = set(there.tolist()), set(np.asarray(unknown).tolist())
    missing: list[int] = []
    existing: list[int] = []
    met: list[int] = []
    made: dict[int, int] = {}
    former: int | None = None
    for what, row, change, moved in zip(
        *(kind(event).tolist(), key.tolist(), at.tolist(), moves.tolist()), strict=True
    ):
        if what == CREATE:
            if moved and former is None:
                continue
            if moved and keeps_local and row in doubtful:
                return None
            exists = row in held
            if exists:
                existing.append(change)
                met.append(made.get(row, -1))
            if exists and keeps_local:
                if former is not None and moved:
                    held.add(former)
                continue
            held.add(row)
            made[row] = change
            doubtful.discard(row)
            continue
        if row in doubtful:
            return None
        former = row if row in held else None
        if former is None:
            missing.append(change)
        elif what == REMOVE:
            held.discard(row)
    return Visited(*(np.array(found, np.int64) for found in (missing, existing, met)))


def find_existing_keys(event: Integers, key: Integers, there: Integers) -> Integers:
    """Return the positions of changes that are skipped because their new key exists
    (``keep_local``). Arguments as for ``visit``."""
    visited = visit(event, key, there, (), keeps_local=True)
    assert visited is not None
    return visited.existing


# Fold of a table without a key: its rows are a multiset.
#
# The old tuples of the run are whole rows (REPLICA IDENTITY FULL), or the run has inserts only.
# ``removed`` of its NetChange holds whole rows without generated columns, each with the number of
# equal rows to remove.


def fold_multiset(
    table: str,
    schema: TableSchema,
    changes: Changes,
    truncate: bool,
    with_versions: bool = False,
    options: LakeOptions = DEFAULTS,
) -> NetChange:
    """Count how often each distinct row is inserted and deleted. A row that is inserted and then
    deleted is not written at all.

    A row that is deleted and then inserted is removed and written: this checks that it exists.
    ``changes`` has no unknown cells. ``options``: as for ``fold``; a dead row is written from the
    old tuple of its DELETE, which is a whole row.
    """
    return _MultisetFold(table, schema, changes, truncate, with_versions, options).net()


@dataclass(frozen=True)
class _MultisetFold:
    """The fold of a table without a key. ``skipped``: the changes left out so far."""

    table: str
    schema: TableSchema
    changes: Changes
    truncate: bool
    with_versions: bool
    options: LakeOptions
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
        if self.options.soft_delete:
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
        """Return the rows that changes remove, and how often each is removed."""
        old = self._numbers[len(self.changes) :]
        return np.unique(old[self.changes.operation != INSERT], return_counts=True)

    def _asked(self) -> NetChange:
        """Return a net change that asks for the counts of all removed rows at once."""
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
        """Fold again without the changes that do not find their rows. ``stock``: row -> its number
        in the table; of rows not listed it has as many as the run removes."""
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
    """Return the mask of changes that find their rows, visited in order. A change finds a row in
    the table, or a row made by an earlier change of the mask. ``stock``: row -> its number in the
    table, for each row of which the table has too few."""
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
    """Return whether a kept change removes a row that a skipped change would have made, if the
    number of such rows in the table is unknown."""
    count = len(changes)
    made = numbers[:count][~kept & (changes.operation != DELETE)]
    taken = numbers[count:][kept & (changes.operation != INSERT)]
    unknown = np.setdiff1d(made, list(stock))
    return bool(np.isin(taken, unknown).any())


def _dead(changes: Changes, old: pa.Table, numbers: Callable[[], Integers]) -> pa.Table:
    """Return the dead rows, with the metadata columns of their DELETEs."""
    if not np.any(changes.operation == DELETE):
        return old.slice(0, 0)
    at = _shown_and_deleted(changes, numbers())
    return restamped(old.take(pa.array(at)), changes.stamps, at, changes.new)


def _shown_and_deleted(changes: Changes, numbers: Integers) -> Integers:
    """Return the positions of the DELETEs of rows that existed before the run, even if the run has
    updated them. Of equal rows, those that the run inserted are deleted first."""
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


# Equal rows of a run of changes, and how the run changes their counts.
#
# The rows that changes make and remove, as columns, get numbers and counts. Equal rows are the same
# to the last bit: NULL equals NULL and NaN equals NaN, but 0 does not equal -0, even if the type's
# operator says so, because readers see which of the two is left.


def _lent(both: pa.Table, changes: Changes) -> tuple[pa.Table, str]:
    """Return inserted (sign 1) and removed rows (-1), and the SQL expressions that are equal for
    equal rows."""
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
    """Return, for each distinct row, its first position in ``both`` (ascending), the number of its
    copies to be written, and the number of the table's copies to be removed. ``numbered``: calls
    ``numbers``."""
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
    """Return, for each of ``rows``, how far its count falls below the count before the run."""
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
    """Return, for each row of ``both``, the position by which ``counts`` names it; -1 if the row is
    neither inserted nor removed."""
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
