"""Values of sequences (sequence.c, nextval_internal): each is given out once, even after a crash.

The store's row is some values (SEQ_LOG_VALS) ahead of those given out, to avoid a write for each. A
process that is killed leaves the remaining values as a gap, as in PostgreSQL; a process that closes
the catalog leaves no gap. If another process of the same store has changed the row, values continue
after the new row.
"""

from __future__ import annotations

import threading
from collections import abc
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from sqlalchemy import Connection

from penstock.catalog.pg_class import PgClass
from penstock.catalog.pg_sequence import PgSequence, Sequence
from penstock.catalog.store import Store
from penstock.errors import NotInPrerequisiteState, PenstockError
from penstock.relation import TableName
from penstock.sqlstate import (
    NumericValueOutOfRange,
    SequenceGeneratorLimitExceeded,
    UndefinedTable,
)

_LOGGED_AHEAD: Final = 32
"""SEQ_LOG_VALS"""


@dataclass
class SessionSequences:
    """The values that one session has got: the last value of each sequence, by its oid. ``last`` is
    the oid of the sequence that gave the latest value."""

    values: dict[int, int] = field(default_factory=dict)
    last: int | None = None

    def got(self, oid: int, value: int) -> None:
        """Record a value of nextval."""
        self.values[oid], self.last = value, oid

    def forget(self) -> None:
        """Forget all values (DISCARD SEQUENCES)."""
        self.values.clear()
        self.last = None


@dataclass(frozen=True, slots=True)
class _Reserved:
    """A sequence whose row in the store is ahead. ``row``: the store's row. ``last_value``,
    ``is_called``: the sequence's real state; ``left``: the number of values that can be given out
    before the row must be written again."""

    row: Sequence
    last_value: int
    is_called: bool
    left: int = 0


class Sequences:
    """The sequences of one node, for several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._reserved: dict[int, _Reserved] = {}

    def take(self, oid: int, count: int, session: SessionSequences) -> abc.Sequence[int]:
        """Take the next values. Raises UndefinedTable (42P01), SequenceGeneratorLimitExceeded
        (2200H); after an error no value is taken."""
        with self._lock:
            with self._store.read() as connection:
                known = self._known(_row(connection, oid))
            if known.left < count:
                values, known = self._logged(oid, count)
            else:
                values = _next(known, count)
                left = known.left - count
                known = replace(known, last_value=values[-1], is_called=True, left=left)
            self._reserved[oid] = known
        session.got(oid, values[-1])
        return values

    def next_values(self, table: TableName, column: str, count: int) -> abc.Sequence[int]:
        """Take values from the sequence of a table's column, for rows that no session writes.
        Raises as ``take``."""
        owned = self._of_table(table)
        oid = next((each.oid for each in owned if each.column == column), None)
        if oid is None:
            raise no_sequence(table[1], column, "Publish the column, or drop it here.")
        return self.take(oid, count, SessionSequences())

    def set(self, oid: int, value: int, session: SessionSequences, *, is_called: bool) -> int:
        """Set a value (setval). Raises UndefinedTable (42P01), NumericValueOutOfRange (22003)."""
        with self._lock, self._store.write() as connection:
            row = _row(connection, oid)
            if not row.minimum <= value <= row.maximum:
                raise NumericValueOutOfRange(
                    f'setval: value {value} is out of bounds for sequence "{row.name}" '
                    f"({row.minimum}..{row.maximum})"
                )
            PgSequence(connection).save(replace(row, last_value=value, is_called=is_called))
            self._reserved.pop(oid, None)
        if is_called:
            session.values[oid] = value
        return value

    def restart(self, oid: int) -> None:
        """Reset a sequence to its start (ResetSequence). Raises UndefinedTable (42P01)."""
        with self._lock, self._store.write() as connection:
            row = _row(connection, oid)
            PgSequence(connection).save(replace(row, last_value=row.start, is_called=False))
            self._reserved.pop(oid, None)

    def restart_all(self, table: TableName) -> None:
        """Reset the sequences of a table's columns."""
        for sequence in self._of_table(table):
            self.restart(sequence.oid)

    def _of_table(self, table: TableName) -> abc.Sequence[Sequence]:
        with self._store.read() as connection:
            found = PgClass(connection).find(*table)
            return () if found is None else PgSequence(connection).of_table(found.oid)

    def current(self, oid: int, session: SessionSequences) -> int:
        """Return the session's last value of a sequence (currval). Raises UndefinedTable (42P01),
        NotInPrerequisiteState (55000)."""
        with self._store.read() as connection:
            row = _row(connection, oid)
        if oid not in session.values:
            raise NotInPrerequisiteState(
                f'currval of sequence "{row.name}" is not yet defined in this session'
            )
        return session.values[oid]

    def last(self, session: SessionSequences) -> int:
        """Return the session's latest value of any sequence (lastval). Raises
        NotInPrerequisiteState (55000), also if the sequence was dropped."""
        if session.last is not None:
            with self._store.read() as connection:
                if PgSequence(connection).find_oid(session.last) is not None:
                    return session.values[session.last]
        raise NotInPrerequisiteState("lastval is not yet defined in this session")

    def state(self, oid: int) -> tuple[int, bool]:
        """Return the last value, and whether it was given out. Raises UndefinedTable (42P01)."""
        with self._lock, self._store.read() as connection:
            known = self._known(_row(connection, oid))
        return known.last_value, known.is_called

    def close(self) -> None:
        """Write the exact values back, if the store can be reached; then no gaps remain. Values may
        still be taken afterwards, and follow the earlier ones."""
        with self._lock, suppress(PenstockError):
            reserved, self._reserved = self._reserved, {}
            if not any(known.left for known in reserved.values()):
                return
            with self._store.write() as connection:
                for oid, known in reserved.items():
                    if PgSequence(connection).find_oid(oid) == known.row:
                        exact = replace(
                            known.row, last_value=known.last_value, is_called=known.is_called
                        )
                        PgSequence(connection).save(exact)

    def _known(self, row: Sequence) -> _Reserved:
        known = self._reserved.get(row.oid)
        if known is None or known.row != row:
            return _Reserved(row, row.last_value, row.is_called)
        return known

    def _logged(self, oid: int, count: int) -> tuple[abc.Sequence[int], _Reserved]:
        """Take values and reserve some more. The store records all of them first."""
        with self._store.write() as connection:
            known = self._known(_row(connection, oid))
            values = _next(known, count)
            known = replace(known, last_value=values[-1], is_called=True)
            more = list(islice(_following(known), _LOGGED_AHEAD))
            row = replace(known.row, last_value=(more or values)[-1], is_called=True)
            PgSequence(connection).save(row)
        return values, replace(known, row=row, left=len(more))


def no_sequence(table: str, column: str, hint: str) -> UndefinedTable:
    """Return the error for a column whose sequence this node lacks, because another node made the
    table."""
    return UndefinedTable(
        f'the sequence of column "{column}" of table "{table}" does not exist',
        hint=f"The table was made by another node. {hint}",
    )


def _row(connection: Connection, oid: int) -> Sequence:
    row = PgSequence(connection).find_oid(oid)
    if row is None:
        raise UndefinedTable(f"could not open relation with OID {oid}")
    return row


def _next(known: _Reserved, count: int) -> abc.Sequence[int]:
    row = known.row
    first = known.last_value + (row.increment if known.is_called else 0)
    straight = range(first, first + count * row.increment, row.increment)
    if row.minimum <= straight[0] <= row.maximum and row.minimum <= straight[-1] <= row.maximum:
        return straight
    found = list(islice(_following(known), count))
    if len(found) < count:
        what, bound = ("maximum", row.maximum) if row.increment > 0 else ("minimum", row.minimum)
        raise SequenceGeneratorLimitExceeded(
            f'nextval: reached {what} value of sequence "{row.name}" ({bound})'
        )
    return found


def values_after(row: Sequence, count: int) -> abc.Sequence[int]:
    """Return the next values of a sequence that nobody else uses. Raises
    SequenceGeneratorLimitExceeded (2200H)."""
    return _next(_Reserved(row, row.last_value, row.is_called), count)


def _following(known: _Reserved) -> Iterator[int]:
    """Yield the values after the last one, until the sequence is exhausted."""
    row, value = known.row, known.last_value
    if not known.is_called:
        yield value
    while True:
        value += row.increment
        if not row.minimum <= value <= row.maximum:
            if not row.cycle:
                return
            value = row.minimum if row.increment > 0 else row.maximum
        yield value
