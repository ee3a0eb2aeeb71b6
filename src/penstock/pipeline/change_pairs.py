"""Old and new rows of one change as pairs: by their key, and as the writer has told it.

In: the tables ``went`` and ``came`` of DuckDB, files of pairs (``lakehouse.row_pairs``). Out: a
condition that joins the two. Pairs that were told are believed as far as the rows are there, and as
far as they can be applied in any order: a new key that was nobody's before, an old one that is
nobody's now. Rows whose keys went from one to the other are paired by key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import duckdb
import pyarrow as pa

from penstock.errors import StorageError
from penstock.identifiers import quoted
from penstock.lakehouse.batches import read_batches
from penstock.lakehouse.files import open_parquet
from penstock.lakehouse.row_pairs import NEW, OLD, PairFile
from penstock.pipeline.change_item import (
    ChangeItem,
    StoredRows,
    needed_columns,
    read_stored,
)
from penstock.pipeline.duck import read_into
from penstock.pipeline.scan import ScanColumn

log = logging.getLogger(__name__)

PAIR: Final = '"penstock: pair"'
"""Column: the number of the pair that a row without a key belongs to."""
_NO_FILE: Final = "58P01"

Counted = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Pairing:
    """``same``: whether ``o`` of ``went`` and ``n`` of ``came`` are one row; None: none are.
    ``moved``: whether its key has changed; None: no key has."""

    same: str | None
    moved: str | None = None


def pair_schema(item: ChangeItem) -> pa.Schema:
    """Columns of the table ``pairs``: keys, or whole rows where there is no key."""
    columns = _identifying(item)
    return pa.schema([(side + c.name, c.type) for side in (OLD, NEW) for c in columns])


def load_pairs(item: ChangeItem, duck: duckdb.DuckDBPyConnection, counted: Counted) -> bool:
    """Table ``pairs``; False without it: nobody told any, or they are gone, or of other columns.

    ``counted``: what is read goes through it. Raises StorageError, and what ``counted`` raises.
    """
    if not item.pairs:
        return False
    schema = pair_schema(item)
    try:
        read_into(duck, "pairs", schema, counted(_rows(item.pairs, schema)))
    except _NotThere as error:
        log.debug("changes of %s are not paired: %s", item.table.name, error)
        return False
    return True


def load_lone_pairs(item: ChangeItem, duck: duckdb.DuckDBPyConnection) -> bool:
    """Table ``moved``: of the pairs those whose keys are in no other one, so that each of them can
    be sent whatever becomes of others. As ``load_pairs``."""
    if not load_pairs(item, duck, iter):
        return False
    olds, news = _names(item, OLD), _names(item, NEW)
    chained = (
        f"EXISTS (SELECT 1 FROM pairs q WHERE {_same('q', one, 'p', other)})"
        for one, other in ((olds, news), (news, olds))
    )
    duck.execute(
        f"CREATE OR REPLACE TEMP TABLE moved AS SELECT * FROM pairs p "
        f"WHERE NOT {' AND NOT '.join(chained)} "
        f"{_one_to_one(olds, news)}"
    )
    duck.execute("DROP TABLE pairs")
    return True


def lone_pairs(item: ChangeItem, duck: duckdb.DuckDBPyConnection) -> Iterator[pa.RecordBatch]:
    """The rows of ``moved``, a batch of a file at a time."""
    olds = _names(item, OLD)
    for batch in _rows(item.pairs, pair_schema(item)):
        duck.register("batch_of_pairs", batch)
        try:
            found = duck.sql(
                "SELECT p.* FROM batch_of_pairs p "
                f"WHERE EXISTS (SELECT 1 FROM moved m WHERE {_same('m', olds, 'p', olds)})"
            ).to_arrow_table()
        finally:
            duck.unregister("batch_of_pairs")
        yield from found.to_batches()


class _NotThere(Exception):
    """What was told cannot be read."""


def _rows(files: Sequence[PairFile | StoredRows], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for file in files:
        if isinstance(file, StoredRows):
            yield from read_stored(file, schema.names)
        else:
            yield from _read(file, schema)


def _read(file: PairFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    folder, _, name = file.uri.rpartition("/")
    try:
        with open_parquet(folder, name) as parquet:
            missing = [n for n in schema.names if n not in parquet.schema_arrow.names]
            if missing:
                raise _NotThere(f'no column "{missing[0]}"')
            for _, batch in read_batches(parquet, schema.names):
                try:
                    yield batch.select(schema.names).cast(schema)
                except pa.ArrowException as error:
                    raise _NotThere(str(error)) from None
    except StorageError as error:
        if error.sqlstate != _NO_FILE:
            raise
        raise _NotThere(error.message) from None


def take_whole_rows(
    item: ChangeItem, duck: duckdb.DuckDBPyConnection, row: str, compared: str
) -> bool:
    """Take the rows of ``pairs`` out of ``all_went`` and ``all_came``; False where they are not
    all there. ``compared``: what is compared of a row."""
    sides = (("all_went", OLD), ("all_came", NEW))
    for name, side in sides:
        lacking = f"SELECT {compared} FROM ({paired_rows(item, side)})"
        lacking += f" EXCEPT ALL SELECT {compared} FROM {name}"
        if duck.execute(f"SELECT 1 FROM ({lacking}) LIMIT 1").fetchall():
            return False
    for name, side in sides:
        rest = f"SELECT {compared} FROM {name} EXCEPT ALL "
        rest += f"SELECT {compared} FROM ({paired_rows(item, side)})"
        duck.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT {row} FROM ({rest})")
    return True


def paired_rows(item: ChangeItem, side: str) -> str:
    """The old or the new rows of ``pairs``, numbered, where there is no key."""
    columns = ", ".join(f"{quoted(side + c.name)} AS {quoted(c.name)}" for c in _identifying(item))
    return f"SELECT {columns}, rowid AS {PAIR} FROM pairs"


def pair_by_key(item: ChangeItem, duck: duckdb.DuckDBPyConnection, *, told: bool) -> Pairing:
    """``told``: there is a table ``pairs``, whose old rows get their new keys here."""
    key, olds, news = _names(item), _names(item, OLD), _names(item, NEW)
    same = _same("o", key, "n", key)
    if not told or not _load_moved(item, duck):
        return Pairing(same)
    new = (f"coalesce(p.{new}, o.{name}) AS {new}" for name, new in zip(key, news, strict=True))
    duck.execute(
        f"CREATE OR REPLACE TEMP TABLE went AS SELECT o.*, {', '.join(new)} FROM went o "
        f"LEFT JOIN moved p ON {_same('o', key, 'p', olds)}"
    )
    return Pairing(_same("o", news, "n", key), f"NOT ({same})")


def _load_moved(item: ChangeItem, duck: duckdb.DuckDBPyConnection) -> bool:
    """Table ``moved``: the pairs that can be sent as updates, in any order."""
    key, olds, news = _names(item), _names(item, OLD), _names(item, NEW)

    def there(rows: str, names: Sequence[str]) -> str:
        return f"EXISTS (SELECT 1 FROM {rows} r WHERE {_same('r', key, 'p', names)})"

    columns = ", ".join((*olds, *news))
    duck.execute(
        f"CREATE OR REPLACE TEMP TABLE moved AS SELECT {columns} FROM pairs p "
        f"WHERE {there('went', olds)} AND {there('came', news)} "
        f"AND NOT {there('came', olds)} AND NOT {there('went', news)} {_one_to_one(olds, news)}"
    )
    return bool(duck.execute("SELECT 1 FROM moved LIMIT 1").fetchall())


def _one_to_one(olds: Sequence[str], news: Sequence[str]) -> str:
    """Of pairs: no other one has the old key, nor the new one. A writer that tells of two may
    err."""
    once = (f"count(*) OVER (PARTITION BY {', '.join(names)}) = 1" for names in (olds, news))
    return f"QUALIFY {' AND '.join(once)}"


def _same(one: str, names: Sequence[str], other: str, others: Sequence[str]) -> str:
    """Whether the columns of two relations are equal."""
    pairs = zip(names, others, strict=True)
    return " AND ".join(f"{one}.{left} = {other}.{right}" for left, right in pairs)


def _names(item: ChangeItem, side: str = "") -> list[str]:
    """Names of the key's columns as DuckDB has them."""
    return [quoted(side + name) for name in item.table.key]


def _identifying(item: ChangeItem) -> list[ScanColumn]:
    return [c for c in needed_columns(item) if not item.table.key or c.name in item.table.key]
