"""A PostgreSQL 18 that says what a row filter is, and DuckDB that says what ours is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import duckdb
import psycopg
import pyarrow as pa

from penstock.attribute import Attribute
from penstock.errors import PenstockError
from penstock.publication.relation_sync import any_of
from penstock.publication.row_filter import RowFilter, compile_row_filter
from penstock.sql.to_duckdb import fmgr
from penstock.sql.to_duckdb.pg_proc import PYTHON
from server_rows import arrow_arrays

Verdict = tuple[str, str, str | None]
"""SQLSTATE, message, detail."""


@dataclass(frozen=True)
class Row:
    """What PostgreSQL says of one filter: its text, or why it is refused."""

    text: str | None
    verdict: Verdict | None


class World:
    """One table in PostgreSQL and the same rows as Arrow columns in DuckDB."""

    def __init__(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        self._connection = connection
        self._duckdb = duckdb.connect(config={"threads": 1, "autoload_known_extensions": False})
        fmgr.register(self._duckdb, PYTHON)
        self.columns: list[Attribute] = []
        self.rows = 0
        self.error = ""

    def create(
        self, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str | None]]
    ) -> None:
        """``columns``: names and types; ``rows``: PostgreSQL's text of every value."""
        run = self._connection.execute
        run("DROP TABLE IF EXISTS tb")
        run(f"CREATE TABLE tb (id serial, {', '.join(f'{n} {t}' for n, t in columns)})")
        names = ", ".join(name for name, _ in columns)
        with (
            self._connection.cursor() as cursor,
            cursor.copy(f"COPY tb ({names}) FROM STDIN") as copy,
        ):
            for row in rows:
                copy.write_row(row)
        found = run(
            "SELECT attname, atttypid::int8, atttypmod FROM pg_attribute"
            " WHERE attrelid = 'tb'::regclass AND attnum > 0 ORDER BY attnum"
        ).fetchall()
        self.columns = [Attribute(str(n), int(o), int(m)) for n, o, m in found]  # type: ignore[call-overload]
        self.rows = len(rows)
        self._duckdb.register("tb", self._arrow())

    def _arrow(self) -> pa.Table:
        types = [(column.type_oid, column.typmod) for column in self.columns]
        arrays = arrow_arrays(self._connection, "SELECT * FROM tb ORDER BY id", types)
        return pa.table(arrays, [column.name for column in self.columns])

    def postgres_says(self, text: str) -> Row:
        """CREATE PUBLICATION and pg_get_expr, taken back."""
        run = self._connection.execute
        run("BEGIN")
        try:
            run(f"CREATE PUBLICATION p FOR TABLE tb WHERE ({text})")
            found = run("SELECT pg_get_expr(prqual, prrelid) FROM pg_publication_rel").fetchone()
            assert found is not None
            return Row(str(found[0]), None)
        except psycopg.Error as error:
            diag = error.diag
            return Row(None, (str(diag.sqlstate), str(diag.message_primary), diag.message_detail))
        finally:
            run("ROLLBACK")

    def we_say(self, text: str) -> RowFilter | Verdict:
        try:
            return compile_row_filter(text, self.columns, table="public.tb")
        except PenstockError as error:
            return error.sqlstate, error.message, error.detail

    def shown(self, number: int, names: frozenset[str]) -> list[object]:
        """Columns with types and values of one row, for messages."""
        if not names:
            return []
        listed = sorted(names)
        found = self._connection.execute(
            f"SELECT {', '.join(f'pg_typeof({n}), {n}::text' for n in listed)} FROM tb"
            f" WHERE id = {number}"
        ).fetchone()
        return list(found or ())

    def postgres_rows(self, text: str, where: str = "") -> list[bool | None] | None:
        """The filter of every row; None when it raises."""
        try:
            found = self._connection.execute(f"SELECT ({text}) FROM tb {where} ORDER BY id")
            return [cast(bool | None, value) for (value,) in found.fetchall()]
        except psycopg.Error as error:
            self.error = str(error)
            return None

    def theirs(self, text: str, where: str) -> str | None:
        """What PostgreSQL prints of an expression over one row; None when it raises."""
        try:
            found = self._connection.execute(f"SELECT ({text})::text FROM tb {where}").fetchone()
        except psycopg.Error:
            return None
        assert found is not None
        return cast("str | None", found[0])

    def our_rows(self, predicate: str, where: str = "") -> list[bool | None] | None:
        found = self._ours(f"SELECT {predicate} FROM tb {where} ORDER BY id")
        return None if found is None else [cast(bool | None, value) for (value,) in found]

    def taken(self, found: RowFilter, where: str = "") -> list[object] | None:
        """The ids of the rows that the filter takes, found as they are for subscribers."""
        condition = any_of([found])
        rows = self._ours(
            f"SELECT id FROM (SELECT * FROM tb {where}) WHERE {condition} ORDER BY id"
        )
        return None if rows is None else [id_ for (id_,) in rows]

    def _ours(self, query: str) -> list[tuple[object, ...]] | None:
        try:
            return self._duckdb.execute(query).fetchall()
        except duckdb.Error as error:
            self.error = str(error)
            return None


def is_our_refusal(verdict: RowFilter | Verdict) -> bool:
    """Whether it is a thing that PostgreSQL may take and we say that we do not."""
    return (
        isinstance(verdict, tuple)
        and verdict[0] in ("0A000", "54001")
        and not verdict[1].startswith(("invalid publication", "set-returning"))
    )
