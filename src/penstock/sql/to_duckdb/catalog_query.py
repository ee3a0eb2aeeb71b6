"""Typed queries over catalogs as SQL of DuckDB.

In: a ``Query``, and the functions that look into the catalogs. Out: SQL over tables ``cat."name"``
and functions ``pg__name``, which whoever runs it provides, with their names. What is not special to
catalogs is left to ``duckdb_query``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.pgtypes.pg_type import (
    BOOL,
    BPCHAR,
    BYTEA,
    INT4,
    NAME,
    NUMERIC,
    RECORD,
    TEXT,
    TIMESTAMPTZ,
)
from penstock.pgtypes.type_names import length_of
from penstock.sql.builtin import functions
from penstock.sql.text.limits import limited_depth
from penstock.sql.text.quoting import type_name
from penstock.sql.to_duckdb.calls_once import check_effects, check_once
from penstock.sql.to_duckdb.catalog_functions import (
    ANY,
    OF_BYTEA,
    CatalogFunction,
    RowSource,
    TableFunction,
)
from penstock.sql.to_duckdb.catalog_lowering import held_as, lowered
from penstock.sql.to_duckdb.catalog_operators import operation
from penstock.sql.to_duckdb.catalog_templates import (
    LONGEST_SERIES,
    SERIES_TOO_LONG,
    THROUGH_TEXT,
    output_column,
    regexp_replace,
    series,
    shown,
    template,
    texts,
)
from penstock.sql.to_duckdb.counted_rows import counting, has_set
from penstock.sql.to_duckdb.duckdb_functions import output_text
from penstock.sql.to_duckdb.duckdb_query import QueryCompiler
from penstock.sql.to_duckdb.duckdb_values import (
    STRINGS,
    Value,
    array,
    duckdb_type,
    refused,
)
from penstock.sql.to_duckdb.function_arguments import argument_cells, check_constant
from penstock.sql.to_duckdb.postponed_targets import postponed
from penstock.sql.to_duckdb.text_functions import BY_PROC, STRING_TO_ARRAY
from penstock.sql.typed.coercion import element
from penstock.sql.typed.grouping import nodes_of
from penstock.sql.typed.primnodes import (
    ArrayCoerceExpr,
    CoerceViaIO,
    FieldSelect,
    Form,
    FuncExpr,
    Node,
    OpExpr,
    Param,
    RelabelType,
    SubscriptingRef,
)
from penstock.sql.typed.query_nodes import (
    Aggref,
    Cte,
    FunctionScan,
    OutputColumn,
    Query,
    SeriesScan,
    SessionValue,
    TableScan,
)
from penstock.sql.typed.set_returning import SERIES

_LSN: Final = (20, 0)
_SESSION: Final = {
    "current_timestamp": "now",
    "localtimestamp": "now",
    "transaction_timestamp": "now",
}


@dataclass(frozen=True, slots=True)
class CatalogSql:
    """``tables``, ``functions``: names of what it reads and calls; ``sources``: relations of rows
    that functions give."""

    sql: str
    tables: frozenset[str]
    functions: frozenset[str]
    sources: tuple[RowSource, ...] = ()


def compile_catalog_query(
    query: Query,
    functions_: Mapping[str, CatalogFunction],
    table_functions: Mapping[str, TableFunction],
) -> CatalogSql:
    """Raises FeatureNotSupported, PenstockError (54001)."""
    with limited_depth():
        check_effects(query, table_functions)
        compiler = CatalogCompiler(functions_, table_functions)
        sql, values = compiler.query(lowered(query))
        check_once(query, sql, functions_)
    shown = [output_column(value, f"q.c{n}") for n, value in enumerate(values, 1)]
    if any(shown):
        columns = [f"{text or f'q.c{n}'} AS c{n}" for n, text in enumerate(shown, 1)]
        sql = f"SELECT {', '.join(columns)} FROM ({sql}) AS q"
    read, called = frozenset(compiler.read), frozenset(compiler.called)
    return CatalogSql(sql, read, called, tuple(compiler.sources))


class CatalogCompiler(QueryCompiler):
    """Of one statement in types that ``lowered`` has made."""

    def __init__(
        self,
        functions_: Mapping[str, CatalogFunction],
        table_functions: Mapping[str, TableFunction],
    ) -> None:
        super().__init__()
        self._functions = functions_
        self._table_functions = table_functions
        self.read: set[str] = set()
        self.called: set[str] = set()
        self.sources: list[RowSource] = []
        self._counted = ""

    # Expressions

    def _value(self, node: Node) -> Value:
        match node:
            case SessionValue(name=name):
                return self._session_value(node, _SESSION.get(name, name))
            case Param(number=number):
                return self._parameter(number, node.type)
            case SubscriptingRef(array=of, index=index):
                list_ = self.value(of)
                sql = f"list_extract({list_.sql}, {self.value(index).sql})"
                return Value(sql, node.type, list_.shape)
            case FieldSelect(argument=argument, name=name):
                return Value(f"struct_extract({self.value(argument).sql}, '{name}')", node.type)
            case FuncExpr(form=Form.IMPLICIT | Form.EXPLICIT, arguments=(argument,)) if (
                node.typmod < 0 and argument.type == node.type
            ):
                return self.value(argument)
            case FuncExpr(arguments=(argument,), name="name") if argument.type in STRINGS:
                return Value(f"left({self.value(argument).sql}, 63)", NAME)
            case FuncExpr(name="bpchar", type=1042, arguments=(argument,)) if (
                node.typmod >= 0 and argument.type == node.type
            ):
                length = Value(str(length_of(node.typmod)), INT4)
                return replace(
                    self.python("bpchar_ti", [self.value(argument), length]), type=BPCHAR
                )
            case FuncExpr(form=Form.CALL | Form.SQL):
                return self._call(node)
            case ArrayCoerceExpr(argument=argument):
                return self._list(self.value(argument), node.type)
            case RelabelType(argument=argument):
                return replace(self.value(argument), type=node.type)
            case CoerceViaIO(argument=argument):
                return self._through_text(self.value(argument), node.type)
            case OpExpr(arguments=(first, second)):
                found = operation(self, node.name, first, second, node.type)
                if found is not None:
                    return found
        return super()._value(node)

    def _session_value(self, node: Node, name: str) -> Value:
        if name == "current_date":
            return Value(f"CAST({self.python('now', []).sql} AS DATE)", node.type)
        if name not in self._functions:
            raise refused(name.upper())
        return replace(self.python(name, []), type=node.type)

    def _parameter(self, number: int, type_: int) -> Value:
        return Value(f"CAST(${number} AS {duckdb_type(type_, None)})", type_)

    def _call(self, node: FuncExpr) -> Value:
        values = [self.value(argument) for argument in node.arguments]
        if node.name == "_pg_expandarray":
            (list_,) = values
            rows = (
                f"list_transform(generate_series(1, len({list_.sql})), lambda i: "
                f"{{'x': {list_.sql}[i], 'n': CAST(i AS INTEGER)}})"
            )
            return Value(f"unnest({rows})", RECORD)
        if node.name in self._functions:
            bytea = f"{node.name}{OF_BYTEA}"
            binary = bytea in self._functions and BYTEA in (value.type for value in values)
            known = self.python(bytea if binary else node.name, values)
            if node.type in THROUGH_TEXT and self._functions[node.name].returns == "text":
                return Value(f"CAST({known.sql} AS {duckdb_type(node.type, None)})", node.type)
            return replace(known, type=node.type)
        if node.name in self._table_functions:
            return self._rows_of(node, values)
        if node.name == SERIES:
            return Value(f"unnest({series(values)})", node.type)
        found = self._of_text(node, values) or template(node.name, values, node.type)
        return super()._value(node) if found is None else found

    def _of_text(self, node: FuncExpr, values: Sequence[Value]) -> Value | None:
        """What is computed as PostgreSQL does, and counted."""
        row = functions().get(node.oid)
        exact = BY_PROC.get((node.name, () if row is None else row.arguments))
        if exact is not None:
            return replace(self.python(exact, values), type=node.type)
        match node.name, len(values):
            case "concat", _:
                return self._concat(Value("''", TEXT), values)
            case "concat_ws", _:
                return self._concat(values[0], values[1:])
            case "array_to_string", 2:
                return self.python("array_to_string_at", [texts(values[0]), values[1]])
            case "array_to_string", 3:
                return self.python("array_to_string_att", [texts(values[0]), *values[1:]])
            case "string_to_array", _:
                return replace(self.python(STRING_TO_ARRAY.name, values), type=node.type)
            case "regexp_replace", _:
                return regexp_replace(node, values)
        return None

    def _concat(self, separator: Value, values: Sequence[Value]) -> Value:
        items = Value(f"[{', '.join(map(shown, values))}]", TEXT)
        return self.python("concat_ws_ta", [separator, items])

    def python(self, name: str, values: Sequence[Value]) -> Value:
        """A function that looks into the catalogs."""
        function = self._functions[name]
        self.called.add(name)
        cells = [
            f"CAST({value.sql} AS {'VARCHAR' if kind == ANY else held_as(kind)})"
            for kind, value in zip(function.arguments, values, strict=False)
        ]
        cells += [function.left_out] * (len(function.arguments) - len(cells))
        sql = f"pg__{name}({', '.join(cells)})"
        match function.returns:
            case "pg_lsn":
                return Value(f"CAST({sql} AS DECIMAL(20,0))", NUMERIC, _LSN)
            case "numeric":
                return Value(f"CAST({sql} AS DECIMAL(38,0))", NUMERIC, (38, 0))
            case "timestamptz":
                return Value(f"make_timestamptz(epoch_us({sql}))", TIMESTAMPTZ)
        return Value(sql, TEXT)

    def _rows_of(self, node: FuncExpr, values: Sequence[Value]) -> Value:
        """A function of FROM in a select list: one row for each value of its only column."""
        function = self._table_functions[node.name]
        if len(function.columns) != 1:
            raise refused(f"function {node.name} outside of FROM")
        rows = f"SELECT list(o1) FROM ({self._table_query(function, values)})"
        return Value(f"unnest(({rows}))", node.type)

    def _table_query(self, function: TableFunction, values: Sequence[Value]) -> str:
        self.read |= set(function.tables)
        self.called |= set(function.functions)
        cells = argument_cells(function, values)
        if function.query is not None:
            return function.query.format(*cells)
        source = RowSource(f"rows_{len(self.sources)}", function.name, f"SELECT {', '.join(cells)}")
        self.sources.append(source)
        return f"SELECT * FROM {source.name}"

    def _list(self, value: Value, target: int) -> Value:
        if value.type == target:
            return value
        return Value(f"CAST({value.sql} AS {duckdb_type(target, None)})", target)

    def _through_text(self, value: Value, target: int) -> Value:
        if element(value.type) and target in STRINGS:
            return replace(self.python("array_out_a", [texts(value)]), type=target)
        if value.type in STRINGS and target in STRINGS:
            return replace(value, type=target)
        if value.type in STRINGS and element(target):
            raise refused(f"the cast from text to {type_name(target)}")
        if value.type in STRINGS and target == BYTEA:
            return output_text(value, BYTEA)
        if value.type == BOOL and target in STRINGS:
            sql = f"CASE WHEN {value.sql} THEN 'true' WHEN NOT {value.sql} THEN 'false' END"
            return Value(sql, target)
        return replace(output_text(value, TEXT), type=target)

    def _aggregate(self, node: Aggref, over: str) -> Value:
        if self._counted and not node.order and node.name in ("array_agg", "string_agg"):
            value = super()._aggregate(node, over)
            closed = value.sql.rindex(")")
            sql = f"{value.sql[:closed]} ORDER BY {self._counted}{value.sql[closed:]}"
            return replace(value, sql=sql)
        return super()._aggregate(node, over)

    # Queries and FROM

    def _texts(self, values: Sequence[Value]) -> dict[int, str]:
        """None: a function with an effect would run for the value and for its text."""
        return {}

    def query(self, query: Query, *, printed: bool = False) -> tuple[str, tuple[Value, ...]]:
        """As of the lake; rows of a series in FROM come in its order (a nested loop)."""
        query = postponed(query)
        around, self._counted = self._counted, ""
        counted = [order for order in map(counting, query.from_) if order]
        if counted:
            self._counted = counted[0]
        try:
            sql, values = super().query(query, printed=printed)
        finally:
            around, self._counted = self._counted, around
        plain = not (query.sort or query.grouped or query.distinct or query.distinct_on)
        unlimited = query.limit is None and not query.offset
        if counted and plain and unlimited and not any(map(has_set, nodes_of(query))):
            sql += f" ORDER BY {around}"
        return sql, values

    def scan(self, node: TableScan) -> str:
        name = node.table.name
        self.read.add(name)
        for number, item in enumerate(node.columns, 1):
            quoted = f'{node.name}."{item.name}"'
            self._columns[node.name, f"c{number}"] = Value(quoted, item.type, _column_shape(item))
        return f'cat."{name}" AS {node.name}'

    def _recursive(self, cte: Cte) -> str:
        assert cte.again is not None
        first, values = self.query(cte.query)
        self._ctes[cte.name] = values
        again, _ = self.query(cte.again)
        names = ", ".join(f"c{n}" for n in range(1, len(values) + 1))
        every = " ALL" if cte.all else ""
        return f"{cte.name}({names}) AS ({first} UNION{every} {again})"

    def _series(self, node: SeriesScan) -> str:
        if (node.stop - node.start) // node.step > LONGEST_SERIES:
            raise refused(f"{SERIES} of more than a million numbers")
        return super()._series(node)

    def _function_scan(self, node: FunctionScan) -> str:
        call = node.call
        arguments = [self.value(argument) for argument in getattr(call, "arguments", ())]
        known = self._table_functions.get(node.function)
        if known is not None and known.query is None:
            check_constant(node.function, call)
        names = ", ".join(f"c{n}" for n in range(1, len(node.columns) + 1))
        if known is not None:
            sql = self._table_query(known, arguments)
        else:
            sql = f"SELECT {self.value(call).sql}"
        if node.ordinality:
            if node.function != "unnest":
                raise refused("WITH ORDINALITY of this function")
            sql += f", unnest(generate_series(1, len({arguments[0].sql})))"
        self._expose(
            node.name, [Value("", column.type, _column_shape(column)) for column in node.columns]
        )
        return f"LATERAL ({sql}) AS {node.name}({names})"


def _shape(oid: int) -> tuple[int, int] | None:
    return (38, 6) if NUMERIC in (oid, element(oid)) else None


def _column_shape(column: OutputColumn) -> tuple[int, int] | None:
    return _LSN if column.type == NUMERIC and column.typmod >= 0 else _shape(column.type)


__all__ = ["NAME", "SERIES_TOO_LONG", "CatalogSql", "array", "compile_catalog_query"]
