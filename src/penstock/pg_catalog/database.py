"""Answer catalog queries: from one SELECT to its fields and rows.

DuckDB runs the SELECT in memory, with one thread, without access to files. A catalog is filled when
a query first reads it. ``reads_catalog_only`` tells which statements are catalog queries.
"""

from __future__ import annotations

import datetime
import functools
import inspect
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, TypeGuard

import duckdb
import pyarrow as pa

from penstock.attribute import Attribute
from penstock.civil import print_timestamp
from penstock.errors import (
    FeatureNotSupported,
    InsufficientPrivilege,
    PenstockError,
    ProtocolViolation,
)
from penstock.interrupts import BeginAgain, check_for_interrupts, note_open, repeatable
from penstock.pg_catalog.functions import (
    OpenRows,
    PythonFunction,
    RowStream,
    existing_publication,
    functions,
    guarded,
    table_functions,
)
from penstock.pg_catalog.privileges import SUPERUSERS, SUPERUSERS_VIEWS
from penstock.pg_catalog.relation_rows import with_sequences
from penstock.pg_catalog.relations import CATALOG_OIDS, with_parents_columns
from penstock.pg_catalog.rows import (
    INFORMATION_SCHEMA,
    Columns,
    catalogs,
    information_schema,
    is_internal,
    table_rows,
    view_text,
)
from penstock.pg_catalog.snapshot import CatalogSnapshot, SessionFacts
from penstock.pgtypes.floating import float_out
from penstock.pgtypes.pg_type import (
    BYTEA,
    INT2_ARRAY,
    OID,
    types,
)
from penstock.pgtypes.pg_type import types as pg_types
from penstock.precedence import PRECEDENCE
from penstock.protocol.answers import Cells, ColumnRows, Description
from penstock.protocol.backend_messages import FieldDescription
from penstock.query_memory import MEMORY, Held
from penstock.sql.builtin.search_path import check_database
from penstock.sql.builtin.type_cache import field_descriptions
from penstock.sql.grammar.parsenodes import (
    ALiterals,
    FuncCall,
    PreparableStmt,
    RangeFunction,
    RangeTable,
    RangeVar,
    SelectStmt,
    field_names,
    nodes_of,
)
from penstock.sql.text.array_literals import join_array, split_array
from penstock.sql.text.limits import limited_depth
from penstock.sql.to_duckdb import fmgr
from penstock.sql.to_duckdb.catalog_functions import CatalogFunction, RowSource, TableFunction
from penstock.sql.to_duckdb.catalog_lowering import (
    INT2_FROM_0,
    NAMED_TYPES,
    element_type,
    from_zero,
    held_as,
)
from penstock.sql.to_duckdb.catalog_query import (
    KNOWN_FUNCTIONS,
    SERIES_TOO_LONG,
    compile_catalog_query,
    has_effect,
)
from penstock.sql.to_duckdb.duckdb_errors import postgres_error
from penstock.sql.to_duckdb.pg_proc import PYTHON
from penstock.sql.to_duckdb.text_functions import read_text
from penstock.sql.typed.literals import canonical
from penstock.sql.typed.query_nodes import FunctionScan, Query
from penstock.sql.typed.scope import Surroundings
from penstock.sql.typed.select_analysis import analyze_select
from penstock.sqlstate import (
    GroupingError,
    IndeterminateDatatype,
    InvalidTextRepresentation,
    NumericValueOutOfRange,
    OutOfMemory,
    QueryCanceled,
    UndefinedTable,
)

log = logging.getLogger(__name__)


# DuckDB instances for catalog queries, kept between queries: making one takes longer than most
# queries. ``give_back`` empties them again.

_CONFIG: Final[dict[str, str | bool | int | float | list[str]]] = {
    "threads": "1",
    "enable_external_access": "false",
    "temp_directory": "",
}
_IDLE: Final = 4
"""The largest number of idle instances kept; each takes a few megabytes."""


@dataclass(frozen=True, slots=True, eq=False)
class _Instance:
    """A connection, and the bytes of text that its functions have made."""

    connection: duckdb.DuckDBPyConnection
    budget: fmgr.Budget


class Connections:
    """A node's pool; threads may share it."""

    def __init__(self) -> None:
        self._idle: list[_Instance] = []
        self._lock = threading.Lock()

    def take(self) -> _Instance:
        """Return an instance for the caller alone."""
        with self._lock:
            if self._idle:
                return self._idle.pop()
        connection = duckdb.connect(":memory:", config=_CONFIG)
        connection.execute("CREATE SCHEMA cat")
        budget = fmgr.Budget(per_call=False)
        fmgr.register(connection, PYTHON, budget)
        return _Instance(connection, budget)

    def close(self) -> None:
        """Close the idle instances; one that is given back later is kept again."""
        with self._lock:
            idle, self._idle = self._idle, []
        for instance in idle:
            instance.connection.close()

    def give_back(self, instance: _Instance, functions: set[str]) -> None:
        """Drop the tables of schema ``cat`` and the ``functions``, and keep the instance; close it
        if dropping fails."""
        connection = instance.connection
        try:
            connection.execute("DROP SCHEMA cat CASCADE; CREATE SCHEMA cat")
            for name in functions:
                connection.remove_function(name)
        except duckdb.Error:
            connection.close()
            return
        with self._lock:
            if len(self._idle) < _IDLE:
                self._idle.append(instance)
                return
        connection.close()


_LONGEST_S: Final = 60.0
"""The most seconds that a catalog query may take, so that no query occupies the node for ever."""
_FOR_EVER: Final = math.inf
"""No limit, for queries whose rows are made as fast as the client reads them."""
_TICK_S: Final = 0.1
_ROWS_AT_A_TIME: Final = 1 << 12
_ROW_BYTES: Final = 96
_CELL_BYTES: Final = 44
"""Python's overhead for a row, and for a cell of it."""


class _Watch(threading.Thread):
    """A thread that interrupts a query that takes too long or was cancelled. It interrupts
    repeatedly, since an interrupt before the query begins is lost."""

    def __init__(
        self, interrupt: Callable[[], None], cancelled: Callable[[], bool], longest_s: float
    ) -> None:
        super().__init__(daemon=True)
        self._interrupt = interrupt
        self._cancelled = cancelled
        self._longest_s = longest_s
        self._over = threading.Event()

    def run(self) -> None:
        deadline = time.monotonic() + self._longest_s
        while not self._over.wait(_TICK_S):
            if self._cancelled() or time.monotonic() >= deadline:
                self._interrupt()

    def stop(self) -> None:
        """Stop watching: once this returns, nothing is interrupted any more."""
        self._over.set()
        self.join()


class CatalogDatabase:
    """The catalogs of one snapshot, to be queried by one session; threads wait for one another.

    ``more``: functions that the node adds, by name (pg_drop_replication_slot ...);
    ``more_in_from``: those that return rows. ``connections``: the pool of DuckDB connections.
    ``open_rows``: for each function in FROM that has no query, the callable that begins its rows.
    """

    def __init__(
        self,
        snapshot: CatalogSnapshot,
        session: SessionFacts,
        more: Mapping[str, PythonFunction] = MappingProxyType({}),
        more_in_from: Mapping[str, TableFunction] = MappingProxyType({}),
        connections: Connections | None = None,
        open_rows: Mapping[str, OpenRows] = MappingProxyType({}),
    ) -> None:
        self._connections = connections or Connections()
        snapshot = with_sequences(with_parents_columns(snapshot))
        self._snapshot = snapshot
        self._session = session
        self._catalogs = catalogs(session.version)
        self._functions = {
            **_OF_OIDS,
            **functions(snapshot, session),
            **more,
        }
        self._table_functions = {**table_functions(session.version), **more_in_from}
        self._open_rows = open_rows
        self._own = {*more, *more_in_from, *open_rows}
        self._internal = {"existing_publication": existing_publication(snapshot)}
        self._signatures = {name: f.signature for name, f in self._functions.items()}
        self._instance: _Instance | None = None
        self._connection: Any = None
        self._memory, self._memory_bytes = ExitStack(), 0
        self._reusable = True
        self._loaded: set[str] = set()
        self._registered: set[str] = set()
        self._errors: list[Exception] = []
        self._lock = threading.Lock()

    def describe(self, query: SelectStmt, said: Sequence[int] = ()) -> Description:
        """Return the parameters and fields of a SELECT, without running it. Raises PostgreSQL's
        errors.

        ``said``: oids of the parameters' types as the client has specified them, 0 for the others.
        """
        translation = self._translate(query, said)
        return Description(translation.parameters, field_descriptions(translation.columns))

    def query(
        self,
        query: SelectStmt,
        parameters: Sequence[bytes | None] = (),
        said: Sequence[int] = (),
    ) -> tuple[tuple[FieldDescription, ...], Iterable[Cells]]:
        """Return the fields and rows of a SELECT. ``parameters``: in text format. Raises
        PostgreSQL's errors.

        If a function in FROM streams rows, the result is computed while it is read. Errors are
        raised then, and the caller closes the database afterwards.
        """
        translation = self._translate(query, said)
        if len(parameters) != len(translation.parameters):
            raise ProtocolViolation(
                f"bind message supplies {len(parameters)} parameters, but prepared statement "
                f'"" requires {len(translation.parameters)}',
            )
        values = [
            parameter_value(value, oid)
            for value, oid in zip(parameters, translation.parameters, strict=True)
        ]
        kinds = [
            INT2_FROM_0 if zero and column.type_oid == INT2_ARRAY else _kind(column.type_oid)
            for column, zero in zip(translation.columns, translation.from_zero, strict=True)
        ]
        fields = field_descriptions(translation.columns)
        if translation.passed:
            return fields, ColumnRows(self._passed(translation, values), raw=True)
        if translation.sources:
            return fields, self._drawn(translation, values, kinds)
        every = functools.partial(self._every, translation, values, kinds)
        return fields, every() if self._may_change(query) else repeatable(every)

    def _may_change(self, query: SelectStmt) -> bool:
        """Tell whether a query calls functions of the node, or functions with effects."""
        calls = {node.name[-1] for node in nodes_of(query) if isinstance(node, FuncCall)}
        return not self._own.isdisjoint(calls) or any(map(has_effect, calls))

    def _every(
        self, translation: Translation, values: list[Any], kinds: Sequence[str]
    ) -> list[Cells]:
        try:
            with self._lock, closing(self._run(translation, values)) as found:
                return self._kept(found, kinds)
        except BeginAgain:
            self.close()
            raise

    def _kept(
        self, found: Iterable[Sequence[tuple[Any, ...]]], kinds: Sequence[str]
    ) -> list[Cells]:
        """Return all rows. Raises OutOfMemory (53200)."""
        held = Held(MEMORY)
        rows = note_open(_KeptRows(held))
        try:
            for some in found:
                cells = []
                for row in some:
                    check_for_interrupts()
                    cells.append(self._cells(row, kinds))
                held.take(sum(map(_size, cells)))
                rows += cells
        except BaseException:
            rows.close()
            raise
        return rows

    def _drawn(
        self, translation: Translation, values: list[Any], kinds: Sequence[str]
    ) -> Iterator[list[bytes | None]]:
        with self._lock, closing(self._run(translation, values)) as found:
            for some in found:
                for row in some:
                    yield self._cells(row, kinds)

    def _cells(self, row: Sequence[Any], kinds: Sequence[str]) -> list[bytes | None]:
        # Where PostgreSQL's SELECT has no column, DuckDB returns one.
        return [
            text_output(cell, kind, self._shown)
            for cell, kind in zip(row[: len(kinds)], kinds, strict=True)
        ]

    def close(self) -> None:
        """Free the memory."""
        instance, self._instance = self._instance, None
        if instance is None:
            return
        self._memory.close()
        self._loaded.clear()
        if self._reusable:
            self._connections.give_back(instance, set(map(_held_name, self._registered)))
        else:
            instance.connection.close()
        self._registered.clear()

    def _translate(self, query: SelectStmt, said: Sequence[int]) -> Translation:
        translation = translate(
            query, self._columns, self._signatures, self._table_functions, said, view_text
        )
        for table in sorted(translation.tables & SUPERUSERS):
            if not self._session.superuser and self._is_secret(table, translation):
                kind = "view" if table in SUPERUSERS_VIEWS else "table"
                raise InsufficientPrivilege(f"permission denied for {kind} {table}")
        return translation

    def _is_secret(self, table: str, translation: Translation) -> bool:
        """Tell whether only superusers may read a table by this query: of pg_subscription, if it
        reads the connection string."""
        return table != "pg_subscription" or '."subconninfo"' in translation.sql

    def _columns(self, schema: str, table: str) -> Columns | None:
        if schema == INFORMATION_SCHEMA:
            return information_schema(self._session.version).get(table)
        if schema or is_internal(table):
            return None
        return self._catalogs.get(table)

    def _shown(self, kind: str, oid: int) -> str:
        function = self._functions.get(f"{kind}out")
        return str(oid) if function is None else str(function.call(oid))

    # DuckDB

    def _run(
        self, translation: Translation, values: list[Any]
    ) -> Generator[Sequence[tuple[Any, ...]], None, None]:
        """Yield rows, some at a time. The sources succeed once the last row has been read."""
        with self._opened(translation, values) as sources:
            found = self._execute(translation.sql, values)
            while rows := found.fetchmany(_ROWS_AT_A_TIME):
                yield rows
            for given in sources:
                given.succeed()

    def _passed(self, translation: Translation, values: list[Any]) -> Iterator[Sequence[pa.Array]]:
        """Yield the columns of a function's rows that the query returns as they are."""
        with self._lock, self._opened(translation, values) as (given,):
            for columns in given.texts():
                yield [columns[place] for place in translation.passed]
            given.succeed()

    @contextmanager
    def _opened(self, translation: Translation, values: list[Any]) -> Iterator[list[RowStream]]:
        """Prepare DuckDB for a query, and begin its sources; they are closed afterwards."""
        self._reusable = False
        if self._instance is None:
            self._instance = self._connections.take()
            self._connection = self._instance.connection
            self._memory_bytes = self._memory.enter_context(MEMORY.lend(self._connection))
        self._errors.clear()
        self._instance.budget.reset()
        longest_s = _FOR_EVER if translation.sources else _LONGEST_S
        watch = _Watch(self._connection.interrupt, self._session.cancelled, longest_s)
        watch.start()
        sources: list[RowStream] = []
        try:
            self._fill(translation)
            for source in translation.sources:
                (arguments,) = self._execute(source.arguments, values).fetchall()
                sources.append(self._open_rows[source.function](*arguments))
                # The next source's arguments may read these rows.
                self._connection.register(source.name, guarded(sources[-1], self._errors))
            yield sources
            for source in translation.sources:
                self._connection.unregister(source.name)
        except duckdb.Error as error:
            raise self._as_postgresql(error) from None
        finally:
            watch.stop()  # or it might interrupt the connection's next user
            with ExitStack() as closed:  # close each source, even if another one raises
                for given in sources:
                    closed.callback(given.close)
        self._reusable = True

    def _execute(self, sql: str, values: list[Any]) -> Any:
        (statement,) = self._connection.extract_statements(sql)
        # A parameter may be gone in DuckDB's SQL: generate_subscripts(array, $1) has one dimension.
        given = {name: values[int(name) - 1] for name in statement.named_parameters}
        execute = functools.partial(
            self._connection.execute, statement, *([given] if given else [])
        )
        return PRECEDENCE.politely(execute)

    def _as_postgresql(self, error: Exception) -> Exception:
        if self._session.cancelled():
            check_for_interrupts()
        if self._errors:
            return self._errors[0]
        text = str(error)
        if isinstance(error, duckdb.InterruptException) and self._session.cancelled():
            return QueryCanceled.by_user()
        if isinstance(error, duckdb.InterruptException):
            return QueryCanceled.by_timeout(
                f"Queries of the catalogs take {_LONGEST_S:g} s at most."
            )
        if isinstance(error, duckdb.OutOfMemoryException):
            return MEMORY.error(self._memory_bytes)
        if SERIES_TOO_LONG in text:
            return FeatureNotSupported(SERIES_TOO_LONG)
        if "GROUP BY" in text:
            return GroupingError(
                "column must appear in the GROUP BY clause or be used in an aggregate function",
            )
        known = postgres_error(text)
        if known.sqlstate != PenstockError.default_sqlstate:
            return known
        if isinstance(error, duckdb.ConversionException):
            return InvalidTextRepresentation("invalid input syntax")
        log.debug("catalog query failed in DuckDB: %s", error)
        return FeatureNotSupported("this query of the catalogs is not supported")

    def _fill(self, translation: Translation) -> None:
        """Load the tables that a query reads, and register its functions."""
        for table in sorted(translation.tables - self._loaded):
            self._load(table)
        for name in sorted((translation.functions | self._internal.keys()) - self._registered):
            self._register(name, self._internal.get(name) or self._functions[name])

    def _load(self, table: str) -> None:
        rows = table_rows(table, self._catalogs[table], self._snapshot, self._session)
        self._connection.register("loading", rows)
        oid = CATALOG_OIDS.get(table)
        more = "" if oid is None else f", {oid}::BIGINT AS tableoid"
        self._connection.execute(f'CREATE TABLE cat."{table}" AS SELECT *{more} FROM loading')
        self._connection.unregister("loading")
        self._loaded.add(table)

    def _register(self, name: str, function: PythonFunction) -> None:
        arguments = [
            "VARCHAR" if kind == "any" else held_as(kind) for kind in function.signature.arguments
        ]

        self._connection.create_function(
            _held_name(name),
            _callable(function, len(arguments), self._errors),
            arguments,
            held_as(function.signature.returns),
            null_handling="special",
            side_effects=True,
        )
        self._registered.add(name)


def _kind(type_oid: int) -> str:
    """Return the name of the type by which a value is printed. Enums and their arrays are texts."""
    known = pg_types().get(type_oid)
    return "text" if known is None else known.name


class _KeptRows(list[Cells]):
    """Rows that wait for their client; their memory is counted for as long as the list lives, or
    until the statement has failed."""

    __hash__ = object.__hash__  # type: ignore[assignment]

    def __init__(self, held: Held) -> None:
        super().__init__()
        self._release = weakref.finalize(self, held.release)

    def close(self) -> None:
        """Give the memory back: nobody reads the rows."""
        self.clear()
        self._release()


def _size(row: Cells) -> int:
    return _ROW_BYTES + sum(_CELL_BYTES + len(cell) for cell in row if cell is not None)


def _held_name(function: str) -> str:
    """Return a function's name in DuckDB."""
    return f"pg__{function}"


def _callable(function: PythonFunction, count: int, errors: list[Exception]) -> Callable[..., Any]:
    """Return the function with the number of parameters that DuckDB must see; it puts its errors
    into ``errors``."""

    def call(*cells: Any) -> Any:
        if function.strict and (not cells or cells[0] is None):
            return None
        try:
            check_for_interrupts()
            return function.call(*cells)
        except MemoryError:
            errors.append(OutOfMemory("out of memory"))
            raise
        except Exception as error:
            errors.append(error)
            raise

    kind = inspect.Parameter.POSITIONAL_ONLY
    call.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(f"a{n}", kind) for n in range(count)]
    )
    return call


# Which statements the catalogs answer.

_NEWEST: Final = 18


def reads_catalog_only(query: PreparableStmt, more: Collection[str] = ()) -> TypeGuard[SelectStmt]:
    """Tell whether a statement is a SELECT over system catalogs, or over nothing at all.

    A name that begins with ``pg_`` counts as a catalog, even if that catalog does not exist.
    ``more``: names of the functions that the node adds. A query that has one of them in FROM, and
    no table, is the catalogs', whatever else it calls.
    """
    if not isinstance(query, SelectStmt):
        return False
    with limited_depth():
        nodes = list(nodes_of(query))
        tables = list(_tables(query, frozenset()))
    if not all(map(_is_catalog, tables)):
        return False
    called = {node.name[-1] for node in nodes if isinstance(node, FuncCall)}
    rows = [node.call for node in nodes if isinstance(node, RangeFunction)]
    if any(isinstance(call, FuncCall) and call.name[-1] in more for call in rows):
        return True
    return bool(tables) or called <= _KNOWN_FUNCTIONS.union(more)


def _tables(tree: Any, known: frozenset[str]) -> Iterator[RangeVar]:
    """Yield the tables that a query names. ``known``: the queries of WITH that it sees."""
    match tree:
        case SelectStmt(ctes=(_, *_)):
            seen = known
            every = known.union(item.name for item in tree.ctes)
            for item in tree.ctes:
                yield from _tables(item.query, every if item.recursive else seen)
                seen = seen | {item.name}
            yield from _tables(replace(tree, ctes=()), every)
        case RangeTable(relation=relation):
            if relation.schema is not None or relation.name not in known:
                yield relation
        case tuple():
            for item in tree:
                yield from _tables(item, known)
        case ALiterals():
            pass
        case _:
            check_for_interrupts()
            for name in field_names(type(tree)):
                yield from _tables(getattr(tree, name), known)


def _is_catalog(relation: RangeVar) -> bool:
    if relation.schema not in (None, _CATALOG):
        return relation.schema == INFORMATION_SCHEMA
    return relation.name.startswith("pg_")


_NOBODY: Final = CatalogSnapshot("")
_KNOWN_FUNCTIONS: Final = (
    KNOWN_FUNCTIONS
    | frozenset(functions(_NOBODY, SessionFacts("", "", _NEWEST)))
    | frozenset(table_functions(_NEWEST))
)


# Parameters of a prepared catalog query. The errors are those of PostgreSQL's input functions.

_OID_LIMIT: Final = 1 << 32
_INT4_LIMIT: Final = 1 << 31


def parameter_value(value: bytes | None, oid: int) -> Any:
    """Return a parameter as DuckDB's cast to its type reads it; None for NULL."""
    if value is None:
        return None
    text = value.decode()
    if oid not in types():  # an enum, or an array of it
        return text
    kind = types()[oid]
    if kind.element and element_type(kind.name) is not None and not kind.is_vector:
        return [
            None if item is None else _parameter(item, kind.element) for item in split_array(text)
        ]
    if kind.is_vector:
        return [int(item) for item in canonical(text, oid).split()]
    return _parameter(text, oid)


def _parameter(text: str, oid: int) -> Any:
    """Return a text as DuckDB reads it. Names of objects are read when the query runs."""
    if types()[oid].name in NAMED_TYPES:
        return text
    read = read_text(text, oid)
    return bytes.fromhex(read[2:]) if oid == BYTEA else read


def _oid_of_int8(number: int) -> int:
    if not 0 <= number < _OID_LIMIT:
        raise NumericValueOutOfRange("OID out of range")
    return number


_OIDS: Final[Mapping[str, Callable[[int], int]]] = {
    "oid_of_int4": lambda number: number % _OID_LIMIT,
    "oid_of_int8": _oid_of_int8,
    "signed_oid": lambda oid: oid - _OID_LIMIT if oid >= _INT4_LIMIT else oid,
}
_OF_OIDS: Final = {
    name: PythonFunction(CatalogFunction(name, ("int8",), "int8"), call)
    for name, call in _OIDS.items()
}
"""Conversions of numbers to unsigned types."""


# Values of a result in PostgreSQL's text format (the types' output functions).

_VECTORS: Final = frozenset(("int2vector", "oidvector"))
_EPOCH: Final = datetime.datetime(1970, 1, 1)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)

Names = Callable[[str, int], str]
"""A function that prints an oid: (reg type, oid) -> text."""


def text_output(value: Any, kind: str, names: Names) -> bytes | None:
    """Return one cell in text format; None for NULL."""
    return None if value is None else _text(value, kind, names).encode()


def _text(value: Any, kind: str, names: Names) -> str:
    element = element_type(kind)
    if element is not None:
        return _array(value, kind, element, names)
    if kind == "timestamptz" and isinstance(value, int):
        return print_timestamp(value, zone=True)
    if kind in NAMED_TYPES:
        return names(kind, int(value))
    match value:
        case bool():
            return "t" if value else "f"
        case float():
            return float_out(value, pa.float32() if kind == "float4" else pa.float64())
        case datetime.datetime():
            return print_timestamp((value - _EPOCH) // _MICROSECOND, kind == "timestamptz")
        case dict():
            return "(" + ",".join(str(field) for field in value.values()) + ")"
        case bytes():
            return "\\x" + value.hex()
    if kind == "void":
        return ""
    return str(value)


def _array(values: list[Any], kind: str, element: str, names: Names) -> str:
    if kind in _VECTORS:
        return " ".join(str(value) for value in values)
    body = join_array(None if v is None else _text(v, element, names) for v in values)
    return f"[0:{len(values) - 1}]={body}" if kind == INT2_FROM_0 and values else body


# A query over catalogs: PostgreSQL's grammar and types, DuckDB's SQL.

TableLookup = Callable[[str, str], Columns | None]
"""(schema or "", name) -> columns, None if there is no such table."""
ViewLookup = Callable[[str, str], str | None]
"""(schema or "", name) -> the query of a view, empty if it has no rows; None for a table."""
_CATALOG = "pg_catalog"


@dataclass(frozen=True, slots=True)
class Translation:
    """A translated query. ``parameters``: type oids of ``$1``, ``$2`` ...; ``from_zero``: for each
    column, whether it is an array whose first index is 0; ``sources``: relations whose rows come
    from functions; ``passed``: the columns of the only one, from 0, if the query returns them as
    they are."""

    sql: str
    columns: tuple[Attribute, ...]
    from_zero: tuple[bool, ...]
    parameters: tuple[int, ...]
    tables: frozenset[str]
    functions: frozenset[str]
    sources: tuple[RowSource, ...] = ()
    passed: tuple[int, ...] = ()


def translate(
    query: SelectStmt,
    lookup: TableLookup,
    functions: Mapping[str, CatalogFunction],
    table_functions: Mapping[str, TableFunction],
    said: Sequence[int],
    views: ViewLookup,
) -> Translation:
    """Translate one SELECT. Raises PostgreSQL's errors, and FeatureNotSupported.

    ``said``: oids of the parameters' types as the client has specified them, 0 for the others.
    """
    parameters = {number: oid for number, oid in enumerate(said, 1) if oid}

    def find_table(relation: RangeVar) -> tuple[Attribute, ...]:
        check_database(relation.catalog, str(relation))
        schema = "" if relation.schema in (None, _CATALOG) else str(relation.schema)
        columns = lookup(schema, relation.name)
        if columns is None:
            shown = relation.name if not relation.schema else f"{relation.schema}.{relation.name}"
            raise UndefinedTable(f'relation "{shown}" does not exist')
        return output_columns(columns)

    def find_view(relation: RangeVar) -> str | None:
        return views(
            "" if relation.schema in (None, _CATALOG) else str(relation.schema), relation.name
        )

    around = Surroundings(
        find_table,
        find_view,
        {name: output_columns(f.columns) for name, f in table_functions.items()},
        parameters,
        lambda relation: _TABLEOID if _is_table(relation) else (),
    )
    analyzed = analyze_select(query, around)
    made = compile_catalog_query(analyzed, functions, table_functions)
    last = max([*parameters, len(said)], default=0)
    for number in range(1, last + 1):
        if number not in parameters:
            raise IndeterminateDatatype(f"could not determine data type of parameter ${number}")
    return Translation(
        made.sql,
        analyzed.columns,
        tuple(map(from_zero, analyzed.targets)),
        tuple(parameters[number] for number in range(1, last + 1)),
        made.tables,
        made.functions,
        made.sources,
        _passed(analyzed, made.sources),
    )


_TABLEOID: Final = (Attribute("tableoid", OID),)


def _is_table(relation: RangeVar) -> bool:
    """Tell whether a relation is a catalog and no view, so that its rows have a tableoid."""
    return relation.schema in (None, _CATALOG) and relation.name in CATALOG_OIDS


def _passed(query: Query, sources: Sequence[RowSource]) -> tuple[int, ...]:
    """Return the columns of the only source's rows that a query returns as they are, without
    conditions; () for other queries."""
    match query, sources:
        case (
            Query(from_=(FunctionScan(ordinality=False) as scan,), targets=targets),
            (source,),
        ) if scan.function == source.function:
            columns = scan.variables()
            bare = Query(query.columns, targets, query.from_)
            if query == bare and all(target in columns for target in targets):
                return tuple(columns.index(target) for target in targets)
    return ()


@functools.cache
def _oids() -> Mapping[str, int]:
    return {row.name: oid for oid, row in types().items()}


def output_columns(columns: Columns) -> tuple[Attribute, ...]:
    """Return columns with the oids of their types."""
    return tuple(Attribute(name, _oids()[kind]) for name, kind in columns)
