"""Whether Delta tables hold the publisher's rows: read by other programs than ours, row by row.

In: a table at the publisher (psycopg), a Delta table (delta-rs, which knows deletion vectors). Out:
rows that are missing and rows too many, as multisets, so that doubled rows count.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from psycopg import sql
from psycopg.types.json import set_json_loads
from pyspark.sql.variant_utils import VariantUtils

from penstock.lakehouse.history_table import COMMIT_LSN, COMMIT_TIMESTAMP
from penstock.lakehouse.schema import DELETED_AT

_OURS: Final = (DELETED_AT, COMMIT_LSN, COMMIT_TIMESTAMP)
Row = tuple[Any, ...]

# What the type's output function says; a cast to text says something else of an inet. A
# row with a field that is NULL is not null, and not "IS NOT NULL" either.
_OUTPUT: Final[LiteralString] = "CASE WHEN {0} IS DISTINCT FROM NULL THEN format('%s', {0}) END"


@dataclass(frozen=True)
class Difference:
    """Rows of the publisher that Delta lacks, and rows that only Delta has (or has too often)."""

    table: str
    rows: int
    lost: Counter[Row]
    made_up: Counter[Row]

    def __bool__(self) -> bool:
        return bool(self.lost or self.made_up)

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.lost.total()} of {self.rows} rows lost {_some(self.lost)}, "
            f"{self.made_up.total()} rows too many {_some(self.made_up)}{self._unequal()}"
        )

    def _unequal(self) -> str:
        """Values that differ in a lost row and one too many that begin alike."""
        for lost in list(self.lost)[:100]:
            for found in self.made_up:
                if lost[:1] == found[:1] and len(lost) == len(found):
                    pairs = enumerate(zip(lost, found, strict=True))
                    return f"; unequal: {[(i, *pair) for i, pair in pairs if pair[0] != pair[1]]}"
        return ""


def query(statement: str, **tables: DeltaTable) -> pa.Table:
    """SQL over Delta tables at the versions they were opened at."""
    builder = QueryBuilder()
    for name, table in tables.items():
        builder.register(name, table)
    return pa.table(builder.execute(statement).read_all())


def delta_rows(uri: str, version: int | None = None) -> list[Row]:
    """All rows of a Delta table, columns in its own order."""
    found = query("SELECT * FROM t", t=DeltaTable(uri, version=version))
    return [tuple(map(_plain, row)) for row in _rows(found)]


def live_rows(uri: str, version: int | None = None) -> list[Row]:
    """Those of a table that may keep deleted ones, as the publisher has them."""
    table = DeltaTable(uri, version=version)
    ours = [field.name for field in table.schema().fields if field.name in _OURS]
    if not ours:
        return delta_rows(uri, version)
    live = f"{DELETED_AT} IS NULL" if DELETED_AT in ours else "true"
    kept = f"SELECT * EXCEPT ({', '.join(ours)}) FROM t WHERE {live}"
    return [tuple(map(_plain, row)) for row in _rows(query(kept, t=table))]


def live_columns(uri: str, version: int | None = None) -> tuple[str, ...]:
    """The columns of ``live_rows``."""
    names = (field.name for field in DeltaTable(uri, version=version).schema().fields)
    return tuple(name for name in names if name not in _OURS)


def publisher_rows(
    connection: psycopg.Connection[Any],
    table: str,
    *,
    columns: Sequence[str] = (),
    as_text: Collection[str] = (),
    where: str = "true",
) -> list[Row]:
    """Rows of ``schema.table`` at the publisher; ``columns``: a column list, ``where``: a filter.

    ``as_text``: columns of types that Penstock keeps as PostgreSQL's text.
    """
    set_json_loads(_text, connection)
    selected = sql.SQL(", ").join(
        sql.SQL(_OUTPUT if name in as_text else "{0}").format(sql.Identifier(name))
        for name in columns or column_names(connection, table)
    )
    statement = sql.SQL("SELECT {} FROM {} WHERE {}").format(
        selected,
        sql.Identifier(*table.split(".")),
        sql.SQL(where),
    )
    return [tuple(map(_plain, row)) for row in connection.execute(statement)]


def column_names(connection: psycopg.Connection[Any], table: str) -> list[str]:
    """Columns of ``schema.table`` at the publisher, in order."""
    rows = connection.execute(
        "SELECT column_name FROM information_schema.columns"
        " WHERE table_schema || '.' || table_name = %s ORDER BY ordinal_position",
        (table,),
    )
    return [str(name) for (name,) in rows]


def difference(table: str, publisher: Sequence[Row], delta: Sequence[Row]) -> Difference:
    """Compare two multisets of rows."""
    wanted, found = Counter(publisher), Counter(delta)
    return Difference(table, len(publisher), wanted - found, found - wanted)


def _rows(table: pa.Table) -> Iterator[Row]:
    if not table.num_columns:
        return iter([()] * table.num_rows)
    return zip(*(column.to_pylist() for column in table.columns), strict=True)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_plain, value))
    if isinstance(value, dict):  # a variant, as delta-rs gives it
        found = VariantUtils.to_python(value["value"], value["metadata"])
        return json.dumps(_ordered(found), ensure_ascii=False)
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, float) and value != value:
        return "NaN"
    return value


def _ordered(value: Any) -> Any:
    """With keys in jsonb's order."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: (len(key.encode()), key.encode()))
        return {key: _ordered(value[key]) for key in keys}
    return [_ordered(each) for each in value] if isinstance(value, list) else value


def _text(raw: bytes | str) -> str:
    return raw if isinstance(raw, str) else raw.decode()


def _some(rows: Counter[Row]) -> str:
    return "[" + ", ".join(repr(row)[:160] for row in list(rows)[:3]) + "]"
