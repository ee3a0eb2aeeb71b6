"""Whether a Delta table at a cut holds the publisher's rows: every row, every column, as multisets.

In: a connection to the publisher, the tables of a cut. Out: one result per table, with examples of
rows that differ. Each side is read by a program that is not ours (libpq, delta-rs). Memory is a
few bytes per row; tables beyond ``limit`` rows are compared by their number of rows only.
"""

from __future__ import annotations

import decimal
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from psycopg.types.json import set_json_loads

from penstock.demo import cuts
from penstock.relation import qualified

Connection = psycopg.Connection[tuple[Any, ...]]
Row = tuple[Any, ...]

_TEXT_TYPES = {"text", "character varying", "character", "name", '"char"'}
_FETCH_ROWS = 5_000
_EXAMPLES = 3


@dataclass(frozen=True)
class ComparedTable:
    """A table as a publication gives it: ``columns`` empty means all, ``where`` its row filter."""

    schema: str
    name: str
    columns: tuple[str, ...] = ()
    where: str | None = None

    @property
    def full_name(self) -> str:
        return qualified(self.schema, self.name)


@dataclass(frozen=True)
class Result:
    """``missing``: rows that only the publisher has; ``extra``: rows that only Delta has."""

    table: str
    publisher_rows: int
    delta_rows: int
    missing: int = 0
    extra: int = 0
    examples: tuple[str, ...] = ()
    counted_only: bool = False

    @property
    def equal(self) -> bool:
        return self.publisher_rows == self.delta_rows and not self.missing and not self.extra


def published_tables(connection: Connection, publication: str) -> list[ComparedTable]:
    """The tables of a publication, with column lists and row filters where there are any."""
    # PostgreSQL 14 has neither column lists nor row filters.
    extra = ", attnames, rowfilter" if connection.info.server_version >= 150000 else ""
    query = (
        f"SELECT schemaname, tablename{extra} FROM pg_catalog.pg_publication_tables"
        " WHERE pubname = %s ORDER BY 1, 2"
    )
    rows = connection.execute(query, (publication,)).fetchall()
    return [
        ComparedTable(row[0], row[1], tuple(row[2] or ()), row[3]) if extra else ComparedTable(*row)
        for row in rows
    ]


def compare(
    connection: Connection, table: ComparedTable, uri: str, version: int, *, limit: int
) -> Result:
    """Compares one table with its Delta table at a version."""
    delta = cuts.open_at(uri, version)
    condition = sql.SQL(table.where or "true")
    name = sql.Identifier(table.schema, table.name)
    query = sql.SQL("SELECT count(*) FROM {} WHERE {}").format(name, condition)
    ((wanted,),) = connection.execute(query).fetchall()
    if wanted > limit:
        found = sum(batch.num_rows for batch in cuts.batches(delta))
        return Result(table.full_name, wanted, found, counted_only=True)
    fields = _source_fields(delta, table)
    balance: Counter[bytes] = Counter()
    rows = 0
    for row in _publisher_rows(connection, table, fields):
        balance[_digest(row)] += 1
        rows += 1
    found = 0
    for row in _delta_rows(delta, fields):
        balance[_digest(row)] -= 1
        found += 1
    differing = {digest: count for digest, count in balance.items() if count}
    return Result(
        table.full_name,
        rows,
        found,
        missing=sum(count for count in differing.values() if count > 0),
        extra=-sum(count for count in differing.values() if count < 0),
        examples=tuple(_examples(connection, table, delta, fields, differing)),
    )


@dataclass(frozen=True)
class _Field:
    """A column: its names at both ends, and its type in the lake."""

    source: str
    name: str
    type: pa.DataType


def _source_fields(delta: Any, table: ComparedTable) -> list[_Field]:
    """The lake's columns that the publication still has."""
    sources = {f.name: f.metadata.get("penstock.source", f.name) for f in delta.schema().fields}
    schema = pa.schema(delta.schema().to_arrow())
    fields = [_Field(sources[f.name], f.name, f.type) for f in schema]
    return [f for f in fields if not table.columns or f.source in table.columns]


def _publisher_rows(
    connection: Connection, table: ComparedTable, fields: Iterable[_Field]
) -> Iterator[Row]:
    types = _column_types(connection, table)
    columns = [_expression(field, types.get(field.source, "")) for field in fields]
    query = sql.SQL("SELECT {} FROM {} WHERE {}").format(
        sql.SQL(", ").join(columns),
        sql.Identifier(table.schema, table.name),
        sql.SQL(table.where or "true"),
    )
    with connection.transaction(), connection.cursor(name="penstock_demo") as cursor:
        set_json_loads(_as_text, cursor)
        cursor.itersize = _FETCH_ROWS
        cursor.execute(query)
        for row in cursor:
            yield tuple(map(_plain, row))


def _column_types(connection: Connection, table: ComparedTable) -> Mapping[str, str]:
    query = (
        "SELECT attname, pg_catalog.format_type(atttypid, NULL) FROM pg_catalog.pg_attribute"
        " WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
    )
    name = sql.Identifier(table.schema, table.name).as_string(connection)
    return dict(connection.execute(query, (name,)).fetchall())


def _expression(field: _Field, type_name: str) -> sql.Composable:
    """The column, as text where the lake holds PostgreSQL's text, and no rounding of real."""
    column = sql.Identifier(field.source)
    element = type_name.removesuffix("[]")
    if pa.types.is_list(field.type) or pa.types.is_large_list(field.type):
        kept, dimensions = field.type.value_type, "[]"
    else:
        kept, dimensions = field.type, ""
    if _is_string(kept) and element not in _TEXT_TYPES:
        if not dimensions:
            # The type's output function; a cast to text differs from it for inet, for one.
            output = "CASE WHEN {0} IS NOT NULL THEN pg_catalog.format('%s', {0}) END"
            return sql.SQL(output).format(column)
        return sql.SQL("{}::text[]").format(column)
    if pa.types.is_float32(kept):
        return sql.SQL("{}::float8" + dimensions).format(column)
    return column


def _is_string(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _delta_rows(delta: Any, fields: Iterable[_Field]) -> Iterator[Row]:
    for batch in cuts.batches(delta):
        columns = [batch.column(field.name).to_pylist() for field in fields]
        for row in zip(*columns, strict=True):
            yield tuple(map(_plain, row))


def _plain(value: Any) -> Any:
    """One form for a value, whichever driver it came from."""
    if isinstance(value, list):
        return tuple(map(_plain, value))
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    return value


def _as_text(raw: str | bytes) -> str:
    return raw if isinstance(raw, str) else raw.decode()


def _digest(row: Row) -> bytes:
    return hashlib.blake2b(repr(row).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _examples(
    connection: Connection,
    table: ComparedTable,
    delta: Any,
    fields: Iterable[_Field],
    differing: Mapping[bytes, int],
) -> Iterator[str]:
    if not differing:
        return
    sides = (
        ("only at the publisher", _publisher_rows(connection, table, fields), 1),
        ("only in Delta", _delta_rows(delta, fields), -1),
    )
    for side, rows, sign in sides:
        shown = 0
        for row in rows:
            if shown < _EXAMPLES and differing.get(_digest(row), 0) * sign > 0:
                yield f"{side}: {repr(row)[:200]}"
                shown += 1
