"""A PostgreSQL 18 and DuckDB with the same tables: what both say of a query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import duckdb
import psycopg
import pyarrow as pa
from psycopg.pq import ExecStatus

from penstock.errors import FeatureNotSupported, PenstockError, UndefinedObject
from penstock.pgtypes.text_output import text_output
from penstock.pipeline.duck import query_error
from penstock.sql import RangeVar
from penstock.sql.grammar.parsenodes import SelectStmt
from penstock.sql.grammar.raw_statements import parse_query
from penstock.sql.to_duckdb import numeric_functions
from penstock.sql.to_duckdb.duckdb_query import CompiledQuery, compile_query
from penstock.sql.to_duckdb.session_values import SessionValues
from penstock.sql.typed.query_nodes import OutputColumn, Query
from penstock.sql.typed.select_analysis import analyze_select
from server_rows import arrow_arrays

Rows = list[tuple[bytes | None, ...]]


@dataclass(frozen=True)
class Result:
    """``columns``: names and type oids; or the error's SQLSTATE and message."""

    columns: tuple[tuple[str, int], ...] = ()
    rows: Rows = field(default_factory=list)
    sqlstate: str = ""
    message: str = ""


@dataclass
class Tally:
    """What became of the queries that were compared."""

    counts: Counter[str] = field(default_factory=Counter)
    differences: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)


class LakeOracle:
    """Tables in both; ``compare`` runs a query on both."""

    def __init__(self, connection: psycopg.Connection[tuple[object, ...]]) -> None:
        self._connection = connection
        connection.execute("SET TimeZone = 'UTC'")
        self._duckdb = duckdb.connect(config={"threads": 1, "autoload_known_extensions": False})
        self._duckdb.execute("SET TimeZone = 'UTC'")
        numeric_functions.register(self._duckdb)
        self._columns: dict[str, tuple[OutputColumn, ...]] = {}
        self._tables: dict[str, pa.Table] = {}
        self._session: SessionValues | None = None
        self.tally = Tally()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Statements of one time, which may ask for it; the server must take all of them."""
        with self._connection.transaction():
            ((user, database, started),) = self._connection.execute(
                "SELECT session_user, current_database(), now()"
            ).fetchall()
            assert isinstance(started, datetime)
            self._session = SessionValues(str(user), 10, str(database), started.astimezone(UTC))
            yield
        self._session = None

    def create(
        self, name: str, columns: Mapping[str, str], rows: Sequence[Sequence[str | None]]
    ) -> None:
        """``rows``: PostgreSQL's text of every value, NULL as None."""
        run = self._connection.execute
        run(f"CREATE TABLE {name} ({', '.join(f'{n} {t}' for n, t in columns.items())})")
        with (
            self._connection.cursor() as cursor,
            cursor.copy(f"COPY {name} FROM STDIN") as copy,
        ):
            for row in rows:
                copy.write_row(row)
        found = run(
            "SELECT attname, atttypid::int8, atttypmod FROM pg_attribute"
            " WHERE attrelid = %s::regclass AND attnum > 0 ORDER BY attnum",
            [name],
        ).fetchall()
        known = tuple(OutputColumn(str(n), int(o), int(m)) for n, o, m in found)  # type: ignore[call-overload]
        self._columns[name] = known
        self._tables[name] = self._arrow(name, known)

    def _arrow(self, name: str, columns: Sequence[OutputColumn]) -> pa.Table:
        types = [(column.type, column.typmod) for column in columns]
        arrays = arrow_arrays(self._connection, f"SELECT * FROM {name}", types)
        return pa.table(arrays, [f"c{number}" for number in range(1, len(columns) + 1)])

    def compare(self, query: str) -> str:
        """equal, refused, both failed; or different, which the tally keeps."""
        ours = self.ours(query)
        if ours.sqlstate == "0A000":
            self.tally.counts["refused"] += 1
            self.tally.refused[ours.message] += 1
            return "refused"
        theirs = self.theirs(query)
        if ours.sqlstate or theirs.sqlstate:
            verdict = "both failed" if ours.sqlstate == theirs.sqlstate else "different"
        else:
            same = ours.rows == theirs.rows and ours.columns == theirs.columns
            verdict = "equal" if same else "different"
        self.tally.counts[verdict] += 1
        if verdict == "different":
            self.tally.differences.append(
                f"{query}\n  server {_shown(theirs, ours)}\n  ours   {_shown(ours, theirs)}"
            )
        elif verdict == "equal":
            self.tally.counts["rows"] += len(ours.rows)
        return verdict

    def theirs(self, query: str) -> Result:
        """What the server says."""
        result = self._connection.pgconn.exec_(query.encode())
        if result.status != ExecStatus.TUPLES_OK:
            state = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) or b""
            message = result.error_field(psycopg.pq.DiagnosticField.MESSAGE_PRIMARY) or b""
            return Result(sqlstate=state.decode(), message=message.decode())
        width = range(result.nfields)
        columns = tuple(((result.fname(n) or b"").decode(), result.ftype(n)) for n in width)
        rows = [tuple(result.get_value(r, n) for n in width) for r in range(result.ntuples)]
        return Result(columns, rows)

    def ours(self, query: str) -> Result:
        """What we say."""
        try:
            analyzed = self.analyzed(query)
            rows = self.run(compile_query(analyzed, self._session))
        except FeatureNotSupported as error:
            return Result(sqlstate="0A000", message=error.message)
        except PenstockError as error:
            return Result(sqlstate=error.sqlstate, message=error.message)
        return Result(tuple((c.name, c.type) for c in analyzed.columns), rows)

    def analyzed(self, query: str) -> Query:
        """Typed."""
        raw = parse_query(query)
        assert isinstance(raw, SelectStmt)
        return analyze_select(raw, self.find)

    def find(self, name: RangeVar) -> tuple[OutputColumn, ...]:
        """The columns of a table."""
        if name.schema not in (None, "public") or name.name not in self._columns:
            raise UndefinedObject(f'relation "{name}" does not exist', sqlstate="42P01")
        return self._columns[name.name]

    def run(self, compiled: CompiledQuery) -> Rows:
        """Rows as they are printed."""
        for item in compiled.inputs:
            table = self._tables[item.scan.table.name].select([name for name, _ in item.columns])
            self._duckdb.register(item.scan.name, table)
        try:
            found = self._duckdb.sql(compiled.sql).to_arrow_table()
        except duckdb.Error as error:
            raise query_error(error) from None
        if not compiled.values:
            return [()] * found.num_rows
        cells = [text_output(column.combine_chunks()).to_pylist() for column in found.columns]
        return list(zip(*cells, strict=True))


def _shown(result: Result, other: Result) -> str:
    if result.sqlstate:
        return f"{result.sqlstate} {result.message}"
    if result.columns != other.columns and not other.sqlstate:
        return str(result.columns)
    pairs = zip(result.rows, other.rows, strict=False)
    wrong = [(number, mine) for number, (mine, them) in enumerate(pairs) if mine != them]
    return f"{len(result.rows)} rows, first {wrong[:2] or result.rows[:3]}"
