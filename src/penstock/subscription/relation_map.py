"""The relation map: share out the changes of a chunk among the tables (relation.c:
logicalrep_rel_open).

From a decoded chunk each open target gets the changes that its table does not hold yet, or an error
if a relation is not the one that was copied. Each change is read with the Relation message that is
valid at its place in the stream. Changes that a table holds already were checked when they were
applied, and are not checked again.

A relation is identified by its OID. A known OID under another name is a renamed table; another OID
under a known name is another table. PostgreSQL matches names, so it stops in the first case and
mixes rows of two tables in the second. Penstock stops in both cases and records the conflict, so
that REFRESH PUBLICATION copies the table again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from penstock.errors import PenstockError, SchemaChanged
from penstock.lsn import Lsn
from penstock.pgoutput.columnar import ChangeBatch, DecodedChunk, Unreadable
from penstock.relation import Relation
from penstock.subscription.target import Target
from penstock.subscription.targets import Targets


@dataclass(frozen=True)
class Share:
    """The changes of a chunk that are new to a target, from the message ``first`` on.

    ``truncates``: sequence numbers of its TRUNCATEs. ``restarts``: sequence numbers of the
    TRUNCATEs that restart the sequences of the target's columns. ``rows``: the number of changes.
    ``error``: why the changes do not belong to this table, or cannot be read.
    """

    target: Target
    first: int
    changes: tuple[ChangeBatch, ...]
    truncates: tuple[int, ...]
    error: PenstockError | None = None
    restarts: frozenset[int] = frozenset()

    @property
    def rows(self) -> int:
        return sum(int(np.count_nonzero(c.sequence >= self.first)) for c in self.changes)


@dataclass
class _Seen:
    """All messages of one relation in a chunk."""

    changes: list[ChangeBatch] = field(default_factory=list)
    truncates: list[tuple[int, Relation]] = field(default_factory=list)
    unreadable: list[Unreadable] = field(default_factory=list)

    def definitions(self, first: int) -> Iterator[Relation]:
        """Yield the definitions that are valid for messages from ``first`` on."""
        yield from (c.relation for c in self.changes if int(c.sequence[-1]) >= first)
        yield from (u.relation for u in self.unreadable if int(u.sequence[-1]) >= first)
        yield from (relation for sequence, relation in self.truncates if sequence >= first)


def shares(decoded: DecodedChunk, targets: Targets, open_end: Lsn) -> Iterator[Share]:
    """Yield a share for each target with new changes; it has an error if the target cannot take
    them.

    ``open_end``: end LSN of the transaction after the chunk's last commit.
    """
    for oid, seen in _by_relation(decoded).items():
        target, error = targets.of(oid), None
        if target is None:
            target, error = _namesake(decoded, targets, oid, seen, open_end)
        if target is None:
            continue
        first = first_message(decoded, target.marker, open_end)
        changes = tuple(c for c in seen.changes if int(c.sequence[-1]) >= first)
        truncates = tuple(sequence for sequence, _ in seen.truncates if sequence >= first)
        error = error or _error(targets, target, seen, first)
        if changes or truncates or error is not None:
            restarts = decoded.restarts.intersection(truncates if target.draws else ())
            yield Share(target, first, changes, truncates, error, restarts)


def _error(targets: Targets, target: Target, seen: _Seen, first: int) -> PenstockError | None:
    for relation in seen.definitions(first):
        if relation.table_name != target.rel.table_name:
            return _rename_error(targets, target, relation)
    unreadable = (u.error for u in seen.unreadable if int(u.sequence[-1]) >= first)
    return next(unreadable, None)


def first_message(decoded: DecodedChunk, marker: Lsn | None, open_end: Lsn) -> int:
    """Return the first message of the first transaction that ended after ``marker``.

    Transactions come in commit order, so the table already has all earlier transactions.
    """
    if marker is None:
        return 0
    done = int(np.searchsorted(decoded.end_lsn, marker, side="right"))
    if done < len(decoded.end_lsn):
        return int(decoded.commit_sequence[done - 1]) + 1 if done else 0
    if open_end > marker:
        return int(decoded.commit_sequence[-1]) + 1 if done else 0
    return np.iinfo(np.int64).max


def _by_relation(decoded: DecodedChunk) -> dict[int, _Seen]:
    found: dict[int, _Seen] = {}
    for change in decoded.changes:
        found.setdefault(change.relation.oid, _Seen()).changes.append(change)
    for run in decoded.unreadable:
        found.setdefault(run.relation.oid, _Seen()).unreadable.append(run)
    for truncate in decoded.truncates:
        for relation in truncate.relations:
            seen = found.setdefault(relation.oid, _Seen())
            seen.truncates.append((truncate.sequence, relation))
    return found


def _namesake(
    decoded: DecodedChunk, targets: Targets, oid: int, seen: _Seen, open_end: Lsn
) -> tuple[Target | None, PenstockError | None]:
    """Return the target with the name of an unbound relation, and the error if it is bound to
    another relation.

    No target is returned for relations that are not in the subscription: their changes are ignored,
    as by PostgreSQL. A target that an older state store left unbound is bound to the first relation
    of its name.
    """
    for relation in seen.definitions(0):
        target = targets.named(relation.table_name)
        if target is None:
            targets.ignore(relation)
            continue
        first = first_message(decoded, target.marker, open_end)
        if relation in seen.definitions(first):
            if target.rel.relid is not None:
                return target, _another(targets, target, relation)
            targets.bind(target, oid)  # cannot clash: ``of`` has found no target for this OID
            return target, None
    return None, None


def _rename_error(targets: Targets, target: Target, relation: Relation) -> SchemaChanged:
    name = target.rel.qualified_name
    error = SchemaChanged(
        f'logical replication target relation "{relation.qualified_name}" does not exist',
        detail=f'At the publisher, table "{name}" (OID {relation.oid}) was renamed to '
        f'"{relation.qualified_name}".',
    )
    if targets.named(relation.table_name) is not None:
        error = SchemaChanged(
            f'relation "{relation.qualified_name}" is the one that was copied as "{name}"',
            detail=f"Tables have exchanged their names at the publisher (OID {relation.oid}).",
        )
    targets.record_conflict(target, error)
    return error


def _another(targets: Targets, target: Target, relation: Relation) -> SchemaChanged:
    error = SchemaChanged(
        f'relation "{relation.qualified_name}" is not the one that was copied',
        detail=f"That one had OID {target.rel.relid}, this one has OID {relation.oid}: it was "
        "dropped and created again, or tables were renamed.",
    )
    targets.record_conflict(target, error)
    return error
