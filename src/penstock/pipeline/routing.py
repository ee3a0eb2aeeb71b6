"""Routing of rows to partitions (execPartition.c, ExecFindPartition; get_partition_for_tuple).

A ``Level`` is a partitioned table with the bounds of its partitions, which may be levels
themselves. It gives each Arrow row the number of its leaf, or raises an error in PostgreSQL's
words. All writers use it: copies, batches of subscriptions and statements, in the driver, in tasks
and as a function inside a Spark job. Values compare as in PostgreSQL: NaN is the greatest number, 0
equals -0, text is compared as bytes (collation C). The maker of the levels decides what may be a
partition key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import FeatureNotSupported, ReplicationConflict
from penstock.lakehouse.schema import Column
from penstock.pgtypes.hash_functions import Hashes, row_hashes
from penstock.pgtypes.pg_type import NAME, TEXT, UUID, VARCHAR
from penstock.pgtypes.text_output import text_output
from penstock.pipeline.columns import Integers, Mask
from penstock.pipeline.conflict import shown_value
from penstock.sql.grammar.partition_bound import Limit
from penstock.sql.text.quoting import quote_identifier

CHECK_VIOLATION: Final = "23514"
_BY_TEXT: Final = frozenset({NAME, TEXT, VARCHAR, UUID})
"""The types that are kept as strings and compare as strings."""
NOWHERE: Final = -1
"""The number of rows that belong to no leaf."""


End: TypeAlias = "pa.Scalar | Limit"


@dataclass(frozen=True)
class ListBound:
    """The bound of a LIST partition. ``values``: its values other than NULL; ``null``: whether NULL
    belongs to the partition."""

    values: pa.Array
    null: bool


@dataclass(frozen=True)
class RangeBound:
    """Rows from ``lower`` up to, but not including, ``upper``; none with a NULL."""

    lower: tuple[End, ...]
    upper: tuple[End, ...]


@dataclass(frozen=True)
class HashBound:
    """Rows whose hash modulo ``modulus`` is ``remainder``."""

    modulus: int
    remainder: int


Bound = ListBound | RangeBound | HashBound


@dataclass(frozen=True)
class Level:
    """A partitioned table. ``key``: the columns of its partition key, whose types are known.
    ``partitions``: each bound with the number of its leaf, or with a further level; ``default``:
    the leaf or level for rows within no bound; None if there is no default partition."""

    relation: str
    key: tuple[Column, ...]
    partitions: tuple[tuple[Bound, int | Level], ...]
    default: int | Level | None = None

    @property
    def columns(self) -> frozenset[str]:
        """The names, in the rows, of all columns used for routing, here and below."""
        found = {column.name for column in self.key}
        for below in (*(to for _, to in self.partitions), self.default):
            if isinstance(below, Level):
                found |= below.columns
        return frozenset(found)

    def find(self, rows: pa.Table) -> Integers:
        """Return the number of each row's leaf, ``NOWHERE`` for a row that belongs to none."""
        found: Integers = np.full(rows.num_rows, NOWHERE, np.int64)
        self._assign(_Rows(rows), np.ones(rows.num_rows, bool), found)
        return found

    def leaves(self, rows: pa.Table) -> Integers:
        """Return the number of each row's leaf. Raises ReplicationConflict (23514), in PostgreSQL's
        words, for the first row that belongs nowhere."""
        found = self.find(rows)
        wrong = np.flatnonzero(found == NOWHERE)
        if len(wrong):
            raise self.nowhere(rows.slice(int(wrong[0]), 1))
        return found

    def nowhere(self, row: pa.Table) -> ReplicationConflict:
        """Return the error for one row that belongs nowhere."""
        return self._nowhere(_Rows(row))

    def _assign(self, rows: _Rows, mine: Mask, found: Integers) -> None:
        for to, taken in self._divided(rows, mine):
            if isinstance(to, Level):
                to._assign(rows, taken, found)
            elif to is not None:
                found[taken] = to

    def _divided(self, rows: _Rows, mine: Mask) -> Iterator[tuple[int | Level | None, Mask]]:
        """Yield each partition that takes some of the rows ``mine``, with the mask of these rows;
        None instead of a partition for rows that none takes."""
        left = mine
        hashes = self._hashes(rows) if _hashed(self.partitions) else None
        for bound, to in self.partitions:
            taken = left & self._takes(rows, bound, hashes)
            if taken.any():
                yield to, taken
                left = left & ~taken
                if not left.any():
                    return
        if left.any():
            yield self.default, left

    def _hashes(self, rows: _Rows) -> Hashes:
        return row_hashes([(rows.plain(column), column.attribute.type_oid) for column in self.key])

    def _takes(self, rows: _Rows, bound: Bound, hashes: Hashes | None) -> Mask:
        match bound:
            case HashBound(modulus, remainder):
                assert hashes is not None
                hit: Mask = hashes % np.uint64(modulus) == np.uint64(remainder)
                return hit
            case ListBound(values, null):
                column = rows.comparable(self.key[0])
                known = _mask(pc.is_in(column, value_set=comparable(values)))
                valid = rows.valid(self.key[0])
                belongs: Mask = np.where(valid, known, null)
                return belongs
        known = np.logical_and.reduce([rows.valid(column) for column in self.key])
        columns = [rows.comparable(column) for column in self.key]
        within: Mask = known & _at_least(columns, bound.lower)
        return within & ~_at_least(columns, bound.upper)

    def _nowhere(self, rows: _Rows) -> ReplicationConflict:
        """Return the error for one row that belongs nowhere; it names the lowest level reached."""
        for to, _ in self._divided(rows, np.ones(1, bool)):
            if isinstance(to, Level):
                return to._nowhere(rows)
        cells = [text_output(rows.plain(column))[0].as_py() for column in self.key]
        values = map(shown_value, cells)
        names = ", ".join(quote_identifier(column.source) for column in self.key)
        return ReplicationConflict(
            f'no partition of relation "{self.relation}" found for row',
            detail=f"Partition key of the failing row contains ({names}) = ({', '.join(values)}).",
            hint="Make a partition for it: CREATE TABLE ... PARTITION OF, or ALTER TABLE ... "
            "ATTACH PARTITION.",
            sqlstate=CHECK_VIOLATION,
        )


class _Rows:
    """The columns of the rows by name, each prepared once."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._plain: dict[str, pa.Array] = {}
        self._comparable: dict[str, pa.Array] = {}

    def plain(self, column: Column) -> pa.Array:
        if column.name not in self._plain:
            found = self._rows.column(column.name)
            joined = found.combine_chunks()
            if isinstance(joined, pa.ChunkedArray):  # older Arrow, and no chunk at all
                joined = pa.concat_arrays(joined.chunks or [pa.array([], found.type)])
            self._plain[column.name] = joined
        return self._plain[column.name]

    def comparable(self, column: Column) -> pa.Array:
        if column.name not in self._comparable:
            self._comparable[column.name] = comparable(self.plain(column))
        return self._comparable[column.name]

    def valid(self, column: Column) -> Mask:
        return _mask(pc.is_valid(self.plain(column)))


def check_comparable(column: str, type_oid: int, kind: pa.DataType) -> None:
    """Raise FeatureNotSupported for a column whose values are not ordered as in PostgreSQL."""
    if pa.types.is_list(kind):
        detail = "Arrays are not compared here."
    elif pa.types.is_string(kind) and type_oid not in _BY_TEXT:
        detail = "Its type is kept as text, whose order is another one."
    else:
        return
    raise FeatureNotSupported(
        f'writing to tables that are partitioned by a column like "{column}" is not supported',
        detail=detail,
    )


def comparable(array: pa.Array) -> pa.Array:
    """Return the same values in a type whose order and equality in Arrow are PostgreSQL's."""
    if pa.types.is_boolean(array.type):
        return array.cast(pa.int8())
    if not pa.types.is_floating(array.type):
        return array
    numbers = array.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
    numbers[np.isnan(numbers)] = np.nan  # one NaN for all, with a positive sign
    bits = numbers.view(np.int64)
    ordered = np.where(bits < 0, bits ^ np.iinfo(np.int64).max, bits)
    return pa.array(ordered, mask=~_mask(pc.is_valid(array)))


def _at_least(columns: Sequence[pa.Array], side: Sequence[End]) -> Mask:
    """Return the mask of rows at a bound or above it, comparing column by column."""
    above = np.zeros(len(columns[0]), bool)
    equal = np.ones(len(columns[0]), bool)
    for column, end in zip(columns, side, strict=True):
        if end is Limit.MINVALUE:
            return above | equal
        if end is Limit.MAXVALUE:
            return above
        value = comparable(pa.array([end.as_py()], end.type))[0]
        above = above | (equal & _mask(pc.greater(column, value)))
        equal = equal & _mask(pc.equal(column, value))
    return above | equal


def _hashed(partitions: Sequence[tuple[Bound, int | Level]]) -> bool:
    return any(isinstance(bound, HashBound) for bound, _ in partitions)


def _mask(array: pa.Array) -> Mask:
    return np.asarray(array.fill_null(False).to_numpy(zero_copy_only=False), bool)


def by_leaf(numbers: Integers) -> Mapping[int, Integers]:
    """Return the positions of each leaf's rows, without leaves that have none."""
    if not len(numbers):
        return {}
    order = np.argsort(numbers, kind="stable")
    found, starts = np.unique(numbers[order], return_index=True)
    return dict(zip(found.tolist(), np.split(order, starts[1:]), strict=True))
