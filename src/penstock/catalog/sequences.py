"""Values of sequences (sequence.c, nextval_internal): each is given out once, whatever happens.

In: the state store. Out: values, in the order of their sequence. A row of the store is ahead of
what was given out by some values (SEQ_LOG_VALS), so that it is not written for each; what a process
that was killed had left of them is a gap, as in PostgreSQL. One that is closed leaves none. Of
several processes with one store, who finds the row changed begins behind it.
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
    """What one session has got: the last value of each sequence by its oid, and of which one it got
    the last of all."""

    values: dict[int, int] = field(default_factory=dict)
    last: int | None = None

    def got(self, oid: int, value: int) -> None:
        """A value of nextval."""
        self.values[oid], self.last = value, oid

    def forget(self) -> None:
        """DISCARD SEQUENCES."""
        self.values.clear()
        self.last = None


@dataclass(frozen=True, slots=True)
class _Ahead:
    """``row``: as it is in the store. ``last_value``, ``is_called``: as they are; ``left``: how
    many more values the row is good for."""

    row: Sequence
    last_value: int
    is_called: bool
    left: int = 0


class Sequences:
    """Of one node; for several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._ahead: dict[int, _Ahead] = {}

    def take(self, oid: int, count: int, session: SessionSequences) -> abc.Sequence[int]:
        """The next values. Raises UndefinedTable (42P01), SequenceGeneratorLimitExceeded (2200H):
        none is taken then."""
        with self._lock:
            with self._store.read() as connection:
                known = self._known(_row(connection, oid))
            if known.left < count:
                values, known = self._logged(oid, count)
            else:
                values = _next(known, count)
                left = known.left - count
                known = replace(known, last_value=values[-1], is_called=True, left=left)
            self._ahead[oid] = known
        session.got(oid, values[-1])
        return values

    def next_values(self, table: TableName, column: str, count: int) -> abc.Sequence[int]:
        """Of the sequence of a table's column, for rows of no session. Raises as ``take``."""
        owned = self._of_table(table)
        oid = next((each.oid for each in owned if each.column == column), None)
        if oid is None:
            raise no_sequence(table[1], column, "Publish the column, or drop it here.")
        return self.take(oid, count, SessionSequences())

    def set(self, oid: int, value: int, session: SessionSequences, *, is_called: bool) -> int:
        """setval. Raises UndefinedTable (42P01), NumericValueOutOfRange (22003)."""
        with self._lock, self._store.write() as connection:
            row = _row(connection, oid)
            if not row.minimum <= value <= row.maximum:
                raise NumericValueOutOfRange(
                    f'setval: value {value} is out of bounds for sequence "{row.name}" '
                    f"({row.minimum}..{row.maximum})"
                )
            PgSequence(connection).save(replace(row, last_value=value, is_called=is_called))
            self._ahead.pop(oid, None)
        if is_called:
            session.values[oid] = value
        return value

    def restart(self, oid: int) -> None:
        """ResetSequence: as when it was made. Raises UndefinedTable (42P01)."""
        with self._lock, self._store.write() as connection:
            row = _row(connection, oid)
            PgSequence(connection).save(replace(row, last_value=row.start, is_called=False))
            self._ahead.pop(oid, None)

    def restart_all(self, table: TableName) -> None:
        """Those of a table's columns."""
        for sequence in self._of_table(table):
            self.restart(sequence.oid)

    def _of_table(self, table: TableName) -> abc.Sequence[Sequence]:
        with self._store.read() as connection:
            found = PgClass(connection).find(*table)
            return () if found is None else PgSequence(connection).of_table(found.oid)

    def current(self, oid: int, session: SessionSequences) -> int:
        """currval. Raises UndefinedTable (42P01), NotInPrerequisiteState (55000)."""
        with self._store.read() as connection:
            row = _row(connection, oid)
        if oid not in session.values:
            raise NotInPrerequisiteState(
                f'currval of sequence "{row.name}" is not yet defined in this session'
            )
        return session.values[oid]

    def last(self, session: SessionSequences) -> int:
        """lastval. Raises NotInPrerequisiteState (55000): of a sequence that was dropped, too."""
        if session.last is not None:
            with self._store.read() as connection:
                if PgSequence(connection).find_oid(session.last) is not None:
                    return session.values[session.last]
        raise NotInPrerequisiteState("lastval is not yet defined in this session")

    def state(self, oid: int) -> tuple[int, bool]:
        """The last value, and whether it was given out. Raises UndefinedTable (42P01)."""
        with self._lock, self._store.read() as connection:
            known = self._known(_row(connection, oid))
        return known.last_value, known.is_called

    def close(self) -> None:
        """Leave no gaps, if the store can be reached. Values that are asked for after this are
        behind those before it."""
        with self._lock, suppress(PenstockError):
            ahead, self._ahead = self._ahead, {}
            if not any(known.left for known in ahead.values()):
                return
            with self._store.write() as connection:
                for oid, known in ahead.items():
                    if PgSequence(connection).find_oid(oid) == known.row:
                        exact = replace(
                            known.row, last_value=known.last_value, is_called=known.is_called
                        )
                        PgSequence(connection).save(exact)

    def _known(self, row: Sequence) -> _Ahead:
        known = self._ahead.get(row.oid)
        if known is None or known.row != row:
            return _Ahead(row, row.last_value, row.is_called)
        return known

    def _logged(self, oid: int, count: int) -> tuple[abc.Sequence[int], _Ahead]:
        """Values with more behind them, all of which the store knows of first."""
        with self._store.write() as connection:
            known = self._known(_row(connection, oid))
            values = _next(known, count)
            known = replace(known, last_value=values[-1], is_called=True)
            more = list(islice(_following(known), _LOGGED_AHEAD))
            row = replace(known.row, last_value=(more or values)[-1], is_called=True)
            PgSequence(connection).save(row)
        return values, replace(known, row=row, left=len(more))


def no_sequence(table: str, column: str, hint: str) -> UndefinedTable:
    """Of a column that takes its values from one, in a table that another node has made."""
    return UndefinedTable(
        f'the sequence of column "{column}" of table "{table}" does not exist',
        hint=f"The table was made by another node. {hint}",
    )


def _row(connection: Connection, oid: int) -> Sequence:
    row = PgSequence(connection).find_oid(oid)
    if row is None:
        raise UndefinedTable(f"could not open relation with OID {oid}")
    return row


def _next(known: _Ahead, count: int) -> abc.Sequence[int]:
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
    """The next values of a sequence that is nobody else's. Raises SequenceGeneratorLimitExceeded
    (2200H)."""
    return _next(_Ahead(row, row.last_value, row.is_called), count)


def _following(known: _Ahead) -> Iterator[int]:
    """What comes after the last value; it ends where there is no more."""
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
