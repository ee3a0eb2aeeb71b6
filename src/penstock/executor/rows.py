"""The rows and expressions of INSERT, UPDATE and DELETE.

``LakeRows`` plans a parsed statement: ``NewRows`` are the rows that an INSERT adds; a ``RowChange``
has the expressions of an UPDATE or DELETE. ``modify`` writes files from both. For tables that only
Spark can write, both become a ``Change``: Spark SQL that contains no text of the user. It calls
functions that compute the values, and reads inserted rows from a file in the staging area. The
functions and the file are removed after the change.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.functions import arrow_udf  # type: ignore[attr-defined]

from penstock.attribute import Attribute
from penstock.catalog import LakeTable
from penstock.catalog import Sequence as OwnedSequence
from penstock.catalog.sequences import no_sequence
from penstock.errors import PenstockError, ValueNotRepresentable
from penstock.executor.select import LakeSelect
from penstock.executor.shown_rows import first_null, null_error
from penstock.executor.tables import LakeTables
from penstock.executor.writer import Writer
from penstock.identifiers import simple_quote_literal
from penstock.lakehouse.cluster import cleaning_up
from penstock.lakehouse.schema import TableSchema
from penstock.lakehouse.storage import make_folder, resolve, storage_errors
from penstock.lakehouse.warehouse import Warehouse
from penstock.pipeline.evaluate import Evaluation, as_kept
from penstock.pipeline.generated import generated_columns
from penstock.sql.grammar.column import NEXTVAL, TIMES, default_text
from penstock.sql.grammar.parsenodes import DeleteStmt, InsertStmt, UpdateStmt
from penstock.sql.to_duckdb.conditions import conjuncts, equal_to
from penstock.sql.to_duckdb.duckdb_change import (
    CompiledExpression,
    compile_expression,
    compile_insert,
)
from penstock.sql.to_duckdb.duckdb_query import compile_input
from penstock.sql.typed.change_analysis import InsertPlan, analyze_change, analyze_insert
from penstock.sql.typed.primnodes import Node
from penstock.sqlstate import (
    ProgramLimitExceeded,
    SerializationFailure,
    StatementCompletionUnknown,
)
from penstock.walsender.lake_columns import LakeColumn, schema_of, spark_type, table_column
from penstock.walsender.sequencer import Position

_MAX_SHIPPED: Final = 64 << 20
"""The most bytes that subqueries of an UPDATE or DELETE may read: every task gets all of them."""


@dataclass(frozen=True, slots=True)
class Change:
    """A statement of Spark SQL without its table's name. ``kind``: insert, update or delete.

    ``columns``: the columns that an INSERT writes; ``rows``: a SELECT that returns ``count`` rows
    with these columns. ``settings``: (column, value) of an UPDATE; a value is NULL in rows that
    do not meet the condition. ``where``: "" for every row.
    ``required``: the NOT NULL columns that an UPDATE sets, by PostgreSQL's names.
    """

    kind: str
    columns: tuple[str, ...] = ()
    rows: str = ""
    count: int = 0
    settings: tuple[tuple[str, str], ...] = ()
    where: str = ""
    required: frozenset[str] = frozenset()

    @property
    def condition(self) -> str:
        """The WHERE clause, to follow a table's name, or ""."""
        return f" WHERE {self.where}" if self.where else ""

    def on(self, table: str) -> str:
        """Return the statement. ``table``: the table's name in Spark SQL."""
        match self.kind:
            case "insert":
                names = ", ".join(map(quoted, self.columns))
                return f"INSERT INTO {table} ({names}) {self.rows}"
            case "update":
                values = ", ".join(f"{quoted(name)} = {value}" for name, value in self.settings)
                return f"UPDATE {table} SET {values}{self.condition}"
        return f"DELETE FROM {table}{self.condition}"


@dataclass(frozen=True, slots=True)
class NewRows:
    """Rows of an INSERT. ``known``: the table's columns when the rows were planned; ``columns``:
    the columns of the rows, in ``batches`` as c1 and so on. ``required``: NOT NULL columns."""

    known: tuple[LakeColumn, ...]
    columns: tuple[LakeColumn, ...]
    batches: Iterator[pa.RecordBatch]
    required: frozenset[str]

    def whole(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the batches with all columns of the table; columns that the rows lack are NULL."""
        at = {column.delta: number for number, column in enumerate(self.columns)}
        for batch in self.batches:
            columns = [
                batch.column(at[field.name])
                if field.name in at
                else pa.nulls(batch.num_rows, field.type)
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


@dataclass(frozen=True, slots=True)
class Computed:
    """A value that is computed for each row from the columns ``arguments``."""

    evaluation: Evaluation
    arguments: tuple[LakeColumn, ...]


@dataclass(frozen=True, slots=True)
class RowChange:
    """An UPDATE or DELETE. ``kind``: update or delete; ``known``: the table's columns when it was
    planned; ``where``: None for every row. ``equal``: (column, text) for each column that the
    condition compares with a constant. ``required``: the NOT NULL columns that it sets."""

    kind: str
    known: tuple[LakeColumn, ...]
    settings: tuple[tuple[LakeColumn, Computed], ...]
    where: Computed | None
    equal: tuple[tuple[str, str], ...] = ()
    required: frozenset[str] = frozenset()


@contextmanager
def as_functions(change: RowChange, session: SparkSession) -> Iterator[Change]:
    """Yield the change as Spark SQL. The functions that it calls exist only inside the ``with``
    block."""
    functions: list[str] = []

    def call(computed: Computed, where: str = "") -> str:
        evaluation = computed.evaluation
        name = f"penstock_{uuid.uuid4().hex}"
        function = evaluation.guarded() if where else evaluation.function()
        session.udf.register(name, arrow_udf(function, spark_type(evaluation.type)))
        functions.append(name)
        columns = [quoted(column.delta) for column in computed.arguments]
        return f"{name}({', '.join([where, *columns] if where else columns)})"

    try:
        where = "" if change.where is None else call(change.where)
        where = " AND ".join([*_known_to_delta(change), where] if where else [])
        settings = tuple((column.delta, call(value, where)) for column, value in change.settings)
        yield Change(change.kind, settings=settings, where=where, required=change.required)
    finally:
        with cleaning_up():
            for name in functions:
                session.sql(f"DROP TEMPORARY FUNCTION {name}")


def _known_to_delta(change: RowChange) -> Iterator[str]:
    """Yield conditions in plain Spark SQL, by which Delta can skip files."""
    columns = {column.name: column for column in change.known}
    for name, text in change.equal:
        if pa.types.is_integer(columns[name].type):
            yield f"{quoted(columns[name].delta)} = {int(text)}"


class LakeRows:
    """Plans the rows and expressions of changes, for all sessions."""

    def __init__(self, warehouse: Warehouse, tables: LakeTables, select: LakeSelect) -> None:
        self._warehouse = warehouse
        self._tables = tables
        self._select = select

    def new_rows(
        self,
        statement: InsertStmt,
        table: LakeTable,
        at: Position,
        writer: Writer,
    ) -> NewRows:
        """Return the rows that an INSERT adds. Raises PenstockError."""
        columns = self._tables.columns(table)
        sequences = self._tables.sequences(table)
        plan = analyze_insert(
            statement,
            _output(columns, sequences, writer.values.started),
            self._select.find_table(at, writer.role),
        )
        by_name = {column.name: column for column in columns}
        written = tuple(by_name[name] for name in plan.columns)
        compiled = compile_insert(plan, writer.values)
        batches = self._select.batches(compiled, at, writer.role, writer.interrupts)
        required = _required(table, columns, sequences)
        if not sequences and not plan.drawn:
            return NewRows(columns, written, map(_as_columns(written), batches), required)
        drawn = self._drawn(table, columns, plan, sequences, writer)

        def completed(batch: pa.RecordBatch) -> pa.RecordBatch:
            kept = [as_kept(batch.column(n), c.type) for n, c in enumerate(written)]
            return drawn.complete(batch, kept)

        made = tuple(columns[place] for place in drawn.made)
        return NewRows(columns, made, map(completed, batches), required)

    def _drawn(
        self,
        table: LakeTable,
        columns: Sequence[LakeColumn],
        plan: InsertPlan,
        sequences: Mapping[str, OwnedSequence],
        writer: Writer,
    ) -> DrawnRows:
        """Return how rows get values from the table's sequences. Raises UndefinedTable if this node
        does not have the sequences."""
        marks = dict(plan.drawn)
        missing = marks.keys() - sequences.keys()
        if missing:
            raise no_sequence(table.name, min(missing), "Give the column its values in INSERT.")
        delta = {column.name: column.delta for column in columns}
        drawn = [
            DrawnColumn(
                plan.columns.index(name),
                partial(self._tables.take, sequence.oid, session=writer.sequences)
                if name in marks
                else None,
                marks.get(name),
            )
            for name, sequence in sequences.items()
            if name in plan.columns
        ]
        written = tuple(delta[name] for name in plan.columns)
        return DrawnRows(table.name, schema_of(columns), written, tuple(drawn))

    @contextmanager
    def staged(self, rows: NewRows, table: LakeTable) -> Iterator[Change]:
        """Write the rows to the staging area, and remove them at the end of the ``with`` block.
        Raises PenstockError."""
        folder = f"{self._warehouse.staging}/{uuid.uuid4()}"
        try:
            count = _write(f"{folder}/rows.parquet", rows, table)
            if self._tables.columns(table) != rows.known:
                raise altered_error(table)  # Spark would ignore a new column's default
            values = ", ".join(
                f"CAST(c{number} AS {spark_type(column.type)}) AS {quoted(column.delta)}"
                for number, column in enumerate(rows.columns, 1)
            )
            selected = f"SELECT {values} FROM parquet.{quoted(folder)}"
            yield Change("insert", tuple(c.delta for c in rows.columns), selected, count)
        finally:
            self._warehouse.storage.discard_folder(folder)

    def plan(
        self,
        statement: UpdateStmt | DeleteStmt,
        table: LakeTable,
        at: Position,
        writer: Writer,
    ) -> RowChange:
        """Return the expressions of an UPDATE or DELETE. Raises PenstockError."""
        known, sequences = self._tables.columns(table), self._tables.sequences(table)
        columns = {column.name: column for column in known}
        plan = analyze_change(
            statement,
            _output(known, sequences, writer.values.started),
            self._select.find_table(at, writer.role),
        )

        def computed(node: Node, column: LakeColumn | None) -> Computed:
            output = None if column is None else table_column(column)
            compiled = compile_expression(plan, node, output, writer.values)
            tables = self._ship(compiled, at, writer)
            type_ = pa.bool_() if column is None else column.type
            names = tuple(name for name, _ in compiled.columns)
            return Computed(
                Evaluation(compiled.sql, compiled.relation, names, type_, tables),
                tuple(columns[item.name] for _, item in compiled.columns),
            )

        return RowChange(
            "update" if isinstance(statement, UpdateStmt) else "delete",
            known,
            tuple((columns[name], computed(node, columns[name])) for name, node in plan.settings),
            None if plan.where is None else computed(plan.where, None),
            equal_to(plan.target.columns, conjuncts(plan.where)),
            _required(table, known, sequences) & {name for name, _ in plan.settings},
        )

    def _ship(
        self,
        compiled: CompiledExpression,
        at: Position,
        writer: Writer,
    ) -> dict[str, pa.Table]:
        """Read the tables of subqueries, to be sent to every task. Raises ProgramLimitExceeded."""
        found: dict[str, pa.Table] = {}
        size = 0
        for item in compiled.inputs:
            batches = []
            source = compile_input(item)
            for batch in self._select.batches(source, at, writer.role, writer.interrupts):
                size += batch.nbytes
                if size > _MAX_SHIPPED:
                    raise ProgramLimitExceeded(
                        "the subquery of an UPDATE or DELETE reads too much",
                        hint=f"It may read {_MAX_SHIPPED >> 20} MB. Change the table by Spark.",
                    )
                batches.append(batch)
            schema = batches[0].schema if batches else self._select.schema(item, at, writer.role)
            found[item.scan.name] = pa.Table.from_batches(batches, schema)
        return found


def _as_columns(columns: Sequence[LakeColumn]) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    schema = pa.schema([(f"c{number}", c.type) for number, c in enumerate(columns, 1)])

    def converted(batch: pa.RecordBatch) -> pa.RecordBatch:
        kept = map(as_kept, batch.columns, schema.types)
        return pa.RecordBatch.from_arrays(list(kept), schema=schema)

    return converted


def _required(
    table: LakeTable, columns: Iterable[LakeColumn], sequences: Iterable[str]
) -> frozenset[str]:
    """Return the NOT NULL columns of a table."""
    return frozenset(
        {*table.primary_key, *sequences, *(c.name for c in columns if c.attribute.not_null)}
    )


def _write(uri: str, rows: NewRows, table: LakeTable) -> int:
    """Write a Parquet file with columns c1 and so on, and return the number of rows. Raises
    NotNullViolation."""
    names = [f"c{number}" for number, _ in enumerate(rows.columns, 1)]
    places = [rows.known.index(column) for column in rows.columns]
    whole = schema_of(rows.known).arrow()
    schema = pa.schema([(f"c{number}", c.type) for number, c in enumerate(rows.columns, 1)])
    count = 0
    make_folder(uri.rpartition("/")[0])
    with storage_errors("write file", uri):
        filesystem, path = resolve(uri)
        with (
            filesystem.open_output_stream(path) as target,
            pq.ParquetWriter(target, schema) as writer,
        ):
            for batch in rows.whole(whole):
                at = first_null(rows.known, rows.required, batch)
                if at is not None:
                    raise null_error(table, rows.known, rows.required, batch.slice(at, 1))
                writer.write_batch(
                    pa.RecordBatch.from_arrays([batch.column(place) for place in places], names)
                )
                count += batch.num_rows
    return count


def altered_error(table: LakeTable, done: Sequence[str] = ()) -> PenstockError:
    """Return the error for a table whose columns have changed since the rows were planned. See
    ``serialization_failure`` for ``done``."""
    return serialization_failure(
        f'Columns of table "{table.name}" were added or dropped while its new rows were made.',
        done,
    )


def outrun(table: LakeTable) -> PenstockError:
    """Return the error for a table to which other writers committed first in every attempt."""
    return serialization_failure(f'Others have always committed to table "{table.name}" first.')


def serialization_failure(
    detail: str | None, done: Sequence[str] = (), *, again: str = "statement"
) -> PenstockError:
    """Return the error for a statement that has lost a race to other writers. ``again``: what the
    client may run again. ``done``: tables in which the statement is already committed.

    With ``done`` the error is not 40001: clients retry after 40001, and would repeat the committed
    part.
    """
    message = "could not serialize access due to concurrent update"
    if not done:
        return SerializationFailure(message, detail=detail, hint=f"Run the {again} again.")
    return partly_done(PenstockError(message, detail=detail), done)


def sentence(error: PenstockError) -> str:
    """Return the message of an error as a detail, which is a sentence."""
    return f"{error.message[0].upper()}{error.message[1:]}."


def partly_done(error: PenstockError, done: Sequence[str]) -> PenstockError:
    """Return the error of a statement that has met ``error`` when its part of the tables ``done``
    was committed already."""
    named = ", ".join(f'"{name}"' for name in done)
    return StatementCompletionUnknown(
        error.message,
        detail=error.detail,
        hint=f"The rows of {named} are changed already. Look at what is there, and run the "
        "statement for the other rows.",
    )


def _output(
    columns: Iterable[LakeColumn], sequences: Mapping[str, OwnedSequence], now: datetime
) -> tuple[Attribute, ...]:
    """Return the columns as statements see them, with constants or NEXTVAL as defaults."""
    found = []
    for column in map(table_column, columns):
        if column.default in TIMES:
            now_text = simple_quote_literal(default_text(column.default, now))
            column = replace(column, default=now_text)
        sequence = sequences.get(column.name)
        if sequence is not None and sequence.type == column.type_oid:  # not altered outside
            column = replace(column, default=NEXTVAL, identity=sequence.identity)
        found.append(column)
    return tuple(found)


def quoted(name: str) -> str:
    """Quote a name for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def delta_table(table: LakeTable) -> str:
    """Return the name of a table of the lake in Spark SQL."""
    return f"delta.`{table.uri}`"


# Columns of new rows that take their values from sequences (nodeModifyTable.c, ExecInsert).
#
# The planned rows have NULL in these columns. ``DrawnRows`` fills in the sequences' values in the
# order of the rows, and then computes generated columns, which may use them. A value that was taken
# is never returned again, even if the statement fails.

Take = Callable[[int], Sequence[int]]
"""A function that takes the next ``n`` values of a sequence."""


@dataclass(frozen=True)
class DrawnColumn:
    """A column with values of a sequence. ``place``: its index in the rows. ``take``: None if no
    row takes a value. ``marks``: the index of a boolean column that is true in rows that take a
    value; None if all rows do."""

    place: int
    take: Take | None
    marks: int | None = None

    def filled(self, values: pa.Array, rows: pa.RecordBatch) -> pa.Array:
        """Return the column of a batch with values of the sequence filled in."""
        if self.take is None or not rows.num_rows:
            return values
        if self.marks is None:
            return pa.array(self.take(rows.num_rows), values.type)
        marks = rows.column(self.marks)
        count = pc.sum(marks).as_py()
        if not count:
            return values
        return pc.replace_with_mask(values, marks, pa.array(self.take(count), values.type))


@dataclass(frozen=True)
class DrawnRows:
    """Completes the rows of an INSERT into ``table`` (a name). ``schema``: the schema of complete
    rows; ``written``: the columns of incomplete rows, in order, by their names in Delta."""

    table: str
    schema: TableSchema
    written: tuple[str, ...]
    columns: tuple[DrawnColumn, ...]

    @property
    def made(self) -> tuple[int, ...]:
        """The indexes, in the schema, of the columns that ``complete`` returns; the writer fills in
        the other columns."""
        return tuple(
            number
            for number, column in enumerate(self.schema.columns)
            if column.name in self.written or column.attribute.generation is not None
        )

    def complete(self, rows: pa.RecordBatch, kept: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return the columns ``made`` as c1 and so on. ``kept``: the columns of ``rows``, as the
        table stores them. Raises PenstockError (2200H, and the errors of generated columns)."""
        given = list(kept)
        for column in self.columns:
            given[column.place] = column.filled(given[column.place], rows)
        found = dict(zip(self.written, given, strict=True))
        schema = self.schema.arrow()
        whole = pa.Table.from_arrays(
            [found.get(f.name, pa.nulls(rows.num_rows, f.type)) for f in schema], schema=schema
        )
        try:
            made = generated_columns(self.schema, self.table).filled(whole)
        except ValueNotRepresentable as error:
            raise PenstockError(error.message, sqlstate=error.sqlstate) from None
        arrays = [column.combine_chunks() for column in made.columns]
        names = [f"c{number}" for number, _ in enumerate(self.made, 1)]
        return pa.RecordBatch.from_arrays([arrays[place] for place in self.made], names=names)
