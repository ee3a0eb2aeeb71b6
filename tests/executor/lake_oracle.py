"""A PostgreSQL 18 and DuckDB with the same tables: what both say of a statement.

Each row of ours is a file with statistics of its own. Every statement is run twice: reading the
files that it has to read, and reading all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import duckdb
import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.pq import ExecStatus

from penstock.attribute import Attribute
from penstock.errors import FeatureNotSupported, PenstockError, UndefinedObject
from penstock.executor.skipping import wanted_keys
from penstock.lakehouse.data_file import DataFile
from penstock.lakehouse.statistics import Collector, from_json, to_json
from penstock.pgtypes.text_output import text_output
from penstock.pipeline.duck import query_error
from penstock.pipeline.evaluate import Evaluation
from penstock.pipeline.prune import candidates
from penstock.sql import RangeVar
from penstock.sql.grammar.parsenodes import InsertStmt, SelectStmt
from penstock.sql.grammar.raw_statements import parse_expression, parse_query
from penstock.sql.to_duckdb import fmgr
from penstock.sql.to_duckdb.conditions import conjuncts, equal_to
from penstock.sql.to_duckdb.duckdb_change import compile_expression
from penstock.sql.to_duckdb.duckdb_predicate import ExpressionCompiler, simplified
from penstock.sql.to_duckdb.duckdb_query import CompiledQuery, TableInput, compile_query
from penstock.sql.to_duckdb.pg_proc import PYTHON, table_column
from penstock.sql.to_duckdb.session_values import SessionValues
from penstock.sql.typed.change_analysis import ChangePlan, analyze_change
from penstock.sql.typed.expression_analysis import ExpressionAnalysis
from penstock.sql.typed.primnodes import Node
from penstock.sql.typed.query_nodes import Query
from penstock.sql.typed.select_analysis import analyze_select
from penstock.walsender.lake_columns import LakeColumn
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
        fmgr.register(self._duckdb, PYTHON)
        self._columns: dict[str, tuple[Attribute, ...]] = {}
        self._tables: dict[str, pa.Table] = {}
        self._files: dict[str, list[DataFile]] = {}
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
        known = tuple(Attribute(str(n), int(o), int(m)) for n, o, m in found)  # type: ignore[call-overload]
        self._columns[name] = known
        self._tables[name] = self._arrow(name, known)
        self._files[name] = [
            _file(number, self._tables[name].slice(number, 1))
            for number in range(self._tables[name].num_rows)
        ]

    def _arrow(self, name: str, columns: Sequence[Attribute]) -> pa.Table:
        types = [(column.type_oid, column.typmod) for column in columns]
        arrays = arrow_arrays(self._connection, f"SELECT * FROM {name}", types)
        return pa.table(arrays, [f"c{number}" for number in range(1, len(columns) + 1)])

    def compare(self, query: str) -> str:
        """equal, refused, both failed; or different, which the tally keeps."""
        ours = self.ours(query)
        if ours.sqlstate == "0A000" and self.refuses(query):
            return self._refused(ours)
        return self._verdict(query, self.theirs(query), ours, self.ours(query, skipping=False))

    def refuses(self, query: str) -> bool:
        """Whether the query is refused when it is compiled, before any row is read."""
        try:
            compile_query(self.analyzed(query), self._session)
        except FeatureNotSupported:
            return True
        return False

    def compare_change(self, statement: str) -> str:
        """The same of the rows that an UPDATE or DELETE of a table leaves, sorted by ``id``."""
        ours = self._our_change(statement, skipping=True)
        if ours.sqlstate == "0A000":
            return self._refused(ours)
        whole = self._our_change(statement, skipping=False)
        return self._verdict(statement, self._their_change(statement), ours, whole)

    def _refused(self, ours: Result) -> str:
        self.tally.counts["refused"] += 1
        self.tally.refused[ours.message] += 1
        return "refused"

    def _verdict(self, query: str, theirs: Result, ours: Result, whole: Result) -> str:
        """``whole``: ours when all files are read."""
        if (ours.sqlstate, ours.rows) != (whole.sqlstate, whole.rows):
            self.tally.differences.append(
                f"{query}\n  skipping files {_shown(ours, whole)}\n"
                f"  reading all    {_shown(whole, ours)}"
            )
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

    def ours(self, query: str, *, skipping: bool = True) -> Result:
        """What we say."""
        try:
            analyzed = self.analyzed(query)
            rows = self.run(compile_query(analyzed, self._session), skipping=skipping)
        except FeatureNotSupported as error:
            return Result(sqlstate="0A000", message=error.message)
        except PenstockError as error:
            return Result(sqlstate=error.sqlstate, message=error.message)
        return Result(tuple((c.name, c.type_oid) for c in analyzed.columns), rows)

    def by_name(self, expression: str, table: str, where: str) -> Result:
        """What a row filter computes, over columns with their own names."""
        columns = self._columns[table]
        analysis = ExpressionAnalysis({c.name: (c.type_oid, c.typmod) for c in columns}, table)
        try:
            value = ExpressionCompiler().value(
                simplified(analysis.transform(parse_expression(expression)))
            )
            named = self._tables[table].rename_columns([column.name for column in columns])
            self._duckdb.register("named", named)
            shown = table_column(value, "c") or "c"
            rows = f"SELECT {value.sql} AS c FROM named {where} ORDER BY n"
            found = self._duckdb.sql(f"SELECT {shown} FROM ({rows})").to_arrow_table()
        except duckdb.Error as error:
            told = query_error(error)
            return Result(sqlstate=told.sqlstate, message=told.message)
        except PenstockError as error:
            return Result(sqlstate=error.sqlstate, message=error.message)
        return Result((), _printed(found))

    def analyzed(self, query: str) -> Query:
        """Typed."""
        raw = parse_query(query)
        assert isinstance(raw, SelectStmt)
        return analyze_select(raw, self.find)

    def find(self, name: RangeVar) -> tuple[Attribute, ...]:
        """The columns of a table."""
        if name.schema not in (None, "public") or name.name not in self._columns:
            raise UndefinedObject(f'relation "{name}" does not exist', sqlstate="42P01")
        return self._columns[name.name]

    def run(self, compiled: CompiledQuery, *, skipping: bool = True) -> Rows:
        """Rows as they are printed."""
        for item in compiled.inputs:
            self._duckdb.register(item.scan.name, self._read(item, skipping=skipping))
        try:
            found = self._duckdb.sql(compiled.sql).to_arrow_table()
        except duckdb.Error as error:
            raise query_error(error) from None
        if not compiled.values:
            return [()] * found.num_rows
        return _printed(found)

    def filtered(self, name: str, predicate: str) -> list[str]:
        """The values of ``id``, the first column, of rows that a row filter lets through."""
        names = [f"c{n} AS {column.name}" for n, column in enumerate(self._columns[name], 1)]
        self._duckdb.register("rows_to_filter", self._tables[name])
        rows = f"SELECT {', '.join(names)} FROM rows_to_filter"
        found = self._duckdb.sql(f"SELECT id FROM ({rows}) WHERE {predicate} ORDER BY id")
        return [str(number) for (number,) in found.fetchall()]

    def inserted_by_server(self, statement: str, table: str) -> Rows:
        """The rows of a table after an INSERT, which is rolled back."""
        with self._connection.transaction(force_rollback=True):
            self._connection.pgconn.exec_(statement.encode())
            return self.theirs(f"SELECT * FROM {table} ORDER BY 1").rows

    def _read(self, item: TableInput, *, skipping: bool) -> pa.Table:
        """The rows of a query's input, as ``pipeline.query`` reads them."""
        name = item.scan.table.name
        rows = self._tables[name].select([column for column, _ in item.columns])
        if not skipping:
            return rows
        rows = rows.take(_indices(self._places(name, item.equal)))
        if item.predicate is None:
            return rows
        self._duckdb.register("rows_to_filter", rows)
        return self._duckdb.sql(
            f"SELECT * FROM rows_to_filter WHERE {item.predicate}"
        ).to_arrow_table()

    def _places(self, name: str, equal: Sequence[tuple[str, str]]) -> list[int]:
        """Rows of the files that may have what a statement asks for."""
        stored = self._tables[name].schema
        columns = [
            LakeColumn(column, column.name, field.name, field.type)
            for column, field in zip(self._columns[name], stored, strict=True)
        ]
        keys = wanted_keys(columns, equal)
        files = self._files[name]
        return [int(file.path) for file in (files if keys is None else candidates(files, keys))]

    def _our_change(self, statement: str, *, skipping: bool) -> Result:
        raw = parse_query(statement)
        assert not isinstance(raw, SelectStmt | InsertStmt)
        name = raw.relation.name
        try:
            plan = analyze_change(raw, self.find(raw.relation), self.find)
            equal = equal_to(plan.target.columns, conjuncts(plan.where)) if skipping else ()
            places = self._places(name, equal)
            rows = self._tables[name].take(_indices(places))
            meant = self._meant(plan, rows, skipping=skipping)
            changed = rows.filter(meant)
            if changed.num_rows:
                for column, node in plan.settings:
                    at = [each.name for each in plan.target.columns].index(column)
                    values = self._values(plan, node, plan.target.columns[at], changed, skipping)
                    changed = changed.set_column(at, changed.schema.names[at], values)
        except PenstockError as error:
            return Result(sqlstate=error.sqlstate, message=error.message)
        gone = set(_indices(places).filter(meant).to_pylist())
        stay = [number for number in range(len(self._files[name])) if number not in gone]
        kept = self._tables[name].take(_indices(stay))
        left = pa.concat_tables([kept, changed] if plan.settings else [kept]).sort_by("c1")
        return Result((), _printed(left))

    def _meant(self, plan: ChangePlan, rows: pa.Table, *, skipping: bool) -> pa.Array:
        if plan.where is None:
            return pa.array([True] * rows.num_rows, pa.bool_())
        return pc.fill_null(self._values(plan, plan.where, None, rows, skipping), False)

    def _values(
        self,
        plan: ChangePlan,
        node: Node,
        column: Attribute | None,
        rows: pa.Table,
        skipping: bool,
    ) -> pa.Array:
        compiled = compile_expression(plan, node, column, self._session)
        names = tuple(name for name, _ in compiled.columns)
        others = {i.scan.name: self._read(i, skipping=skipping) for i in compiled.inputs}
        position = None if column is None else plan.target.columns.index(column)
        type_ = pa.bool_() if position is None else rows.schema.types[position]
        evaluation = Evaluation(compiled.sql, compiled.relation, names, type_, others)
        return evaluation.values(*(rows.column(name).combine_chunks() for name in names))

    def _their_change(self, statement: str) -> Result:
        table = parse_query(statement).relation.name  # type: ignore[union-attr]
        self._connection.execute("BEGIN")
        try:
            result = self._connection.pgconn.exec_(statement.encode())
            if result.status != ExecStatus.COMMAND_OK:
                state = result.error_field(psycopg.pq.DiagnosticField.SQLSTATE) or b""
                return Result(sqlstate=state.decode())
            return Result((), self.theirs(f"SELECT * FROM {table} ORDER BY id").rows)
        finally:
            self._connection.execute("ROLLBACK")


def _file(number: int, row: pa.Table) -> DataFile:
    """Described as the log of a table does."""
    collector = Collector(row.schema)
    collector.add(row)
    return DataFile(str(number), 1, 1, from_json(to_json(collector.result())))


def _indices(places: Sequence[int]) -> pa.Array:
    return pa.array(places, pa.int64())


def _printed(found: pa.Table) -> Rows:
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
