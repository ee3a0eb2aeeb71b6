"""Compile typed queries over catalogs to DuckDB's SQL.

The SQL reads tables ``cat."name"`` and calls functions ``pg__name``. The result lists both, and the
code that runs the SQL provides them. ``duckdb_query`` compiles everything that is not special to
catalogs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.attribute import Attribute
from penstock.errors import FeatureNotSupported, InvalidParameterValue
from penstock.identifiers import NAMEDATALEN
from penstock.interrupts import check_for_interrupts
from penstock.pgtypes.pg_type import (
    BYTEA,
    FLOATS,
    INT4,
    INT8,
    INTEGERS,
    NAME,
    NUMERIC,
    RECORD,
    TEXT,
    TIMESTAMPTZ,
    VOID,
    XID,
)
from penstock.sql.builtin import functions, functions_by_name
from penstock.sql.grammar.parsenodes import BoolOp, SetOperation, field_names
from penstock.sql.text.limits import limited_depth
from penstock.sql.to_duckdb.catalog_functions import (
    ANY,
    OF_BYTEA,
    VARIADIC,
    CatalogFunction,
    RowSource,
    TableFunction,
)
from penstock.sql.to_duckdb.catalog_lowering import INPUT, held_as, lowered
from penstock.sql.to_duckdb.duckdb_predicate import stripped
from penstock.sql.to_duckdb.duckdb_query import QueryCompiler
from penstock.sql.to_duckdb.duckdb_values import EACH, INFINITE, Value, array, duckdb_type, refused
from penstock.sql.to_duckdb.pg_proc import MOMENTS, names, printed, table_column, through_text
from penstock.sql.typed.coercion import element
from penstock.sql.typed.function_analysis import has_set
from penstock.sql.typed.grouping import nodes_of
from penstock.sql.typed.primnodes import (
    ArrayCoerceExpr,
    BoolExpr,
    CaseExpr,
    CoalesceExpr,
    CoerceViaIO,
    Coercion,
    CollateExpr,
    Const,
    FieldSelect,
    Form,
    FuncExpr,
    Node,
    OperatorCall,
    Param,
    RelabelType,
    ScalarArrayOpExpr,
    SubscriptingRef,
    Var,
    children,
    column_names,
    is_cast,
    typmod_of,
)
from penstock.sql.typed.query_nodes import (
    Aggref,
    Cte,
    CteScan,
    FromNode,
    FunctionScan,
    Join,
    Query,
    Relation,
    SeriesScan,
    SessionValue,
    SetOperationScan,
    SubLink,
    SubqueryScan,
    TableScan,
    ValuesScan,
    WindowFunc,
)
from penstock.sql.typed.set_returning import SERIES
from penstock.sqlstate import UndefinedFunction

LONGEST_SERIES: Final = 1_000_000
SERIES_TOO_LONG: Final = "generate_series of more than a million numbers is not supported"
THROUGH_TEXT: Final = frozenset({*MOMENTS, *FLOATS})
"""Types with values that a Python function cannot pass to DuckDB: infinity, years BC, NaN."""
_OTHERS: Final = """
array_agg bool_and bool_or count dense_rank every generate_series json_build_object max min rank
row_number string_agg sum _pg_expandarray
"""
KNOWN_FUNCTIONS: Final = names() | frozenset(_OTHERS.split())
"""Known functions; a query without tables runs on the catalogs if it calls no others."""
_LSN: Final = (20, 0)
_INFINITE: Final = ("rolvaliduntil", "valuntil")
"""Columns with dates that may be infinite."""
_OF_TYPES: Final[Mapping[tuple[str, tuple[int, ...]], str]] = {("age", (XID,)): "xid_age"}
"""The functions that the node provides for some types only, by name and argument types."""
_SESSION: Final = {
    "current_timestamp": "now",
    "localtimestamp": "now",
    "transaction_timestamp": "now",
}


@dataclass(frozen=True, slots=True)
class CatalogSql:
    """SQL of a query. ``tables``, ``functions``: names of what it reads and calls.

    ``sources``: relations to be filled with the rows of functions.
    """

    sql: str
    tables: frozenset[str]
    functions: frozenset[str]
    sources: tuple[RowSource, ...] = ()


def compile_catalog_query(
    query: Query,
    functions_: Mapping[str, CatalogFunction],
    table_functions: Mapping[str, TableFunction],
) -> CatalogSql:
    """Compile a query. Raises FeatureNotSupported, PenstockError (54001)."""
    with limited_depth():
        check_effects(query, table_functions)
        compiler = CatalogCompiler(functions_, table_functions)
        sql, values = compiler.query(lowered(query))
        check_once(query, sql, functions_)
    shown = [table_column(value, f"q.c{n}") for n, value in enumerate(values, 1)]
    if any(shown):
        columns = [f"{text or f'q.c{n}'} AS c{n}" for n, text in enumerate(shown, 1)]
        sql = f"SELECT {', '.join(columns)} FROM ({sql}) AS q"
    sql = _read_once(sql, compiler.sources)
    read, called = frozenset(compiler.read), frozenset(compiler.called)
    return CatalogSql(sql, read, called, tuple(compiler.sources))


def _read_once(sql: str, sources: Iterable[RowSource]) -> str:
    """Keep the rows of sources that the SQL repeats, as an operand may stand in it several times:
    a source can be read only once."""
    kept = [source.name for source in sources if sql.count(source.name) > 1]
    ctes = ", ".join(f"{n} AS MATERIALIZED (SELECT * FROM temp.main.{n})" for n in kept)
    return f"WITH {ctes} SELECT * FROM ({sql}) AS q" if kept else sql


class CatalogCompiler(QueryCompiler):
    """The compiler of one statement, in the types of ``lowered``."""

    catalog = True

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
                if of.type in (NAME, TEXT):
                    at = self.value(index).sql
                    letter = f"substr({list_.sql}, {at} + 1, 1)"
                    return Value(
                        f"CASE WHEN {at} BETWEEN 0 AND {NAMEDATALEN - 1} THEN {letter} END",
                        node.type,
                    )
                sql = f"list_extract({list_.sql}, {self.value(index).sql})"
                return Value(sql, node.type, list_.shape)
            case FieldSelect(argument=argument, name=name):
                return Value(f"struct_extract({self.value(argument).sql}, '{name}')", node.type)
            case FuncExpr(form=Form.IMPLICIT | Form.EXPLICIT, arguments=(argument,)) if (
                node.typmod < 0 and argument.type == node.type
            ):
                return self.value(argument)
            case FuncExpr(form=Form.CALL | Form.SQL):
                return self._call(node)
            case ArrayCoerceExpr(argument=argument) if node.typmod < 0:
                return self._list(self.value(argument), node.type)
            case RelabelType(argument=argument):
                return replace(self.value(argument), type=node.type)
            case CoerceViaIO(argument=argument):
                return through_text(self.value(argument), node.type)
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
                f"list_transform(generate_series(1, len({list_.sql})), lambda {EACH}: "
                f"{{'x': {list_.sql}[{EACH}], 'n': CAST({EACH} AS INTEGER)}})"
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
        if node.name == INPUT and isinstance(reads := node.arguments[1], Const):
            return through_text(values[0], node.type, int(reads.text or 0))
        row = functions().get(node.oid)
        provided = _OF_TYPES.get((node.name, () if row is None else row.arguments))
        if provided is not None:
            return replace(self.python(provided, values), type=node.type)
        if node.name == "json_build_object":
            return Value(_json_object(values), node.type)
        return super()._value(node)

    def python(self, name: str, values: Sequence[Value]) -> Value:
        """Compile a call of ``pg__name``, a function in Python."""
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
        """Compile a table function in a SELECT list: one row for each value of its only column."""
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

    def _aggregate(self, node: Aggref, over: str) -> Value:
        if self._counted and not node.order and node.name in ("array_agg", "string_agg"):
            value = super()._aggregate(node, over)
            closed = value.sql.rindex(")")
            sql = f"{value.sql[:closed]} ORDER BY {self._counted}{value.sql[closed:]}"
            return replace(value, sql=sql)
        return super()._aggregate(node, over)

    # Queries and FROM

    def query(self, query: Query) -> tuple[str, tuple[Value, ...]]:
        """Compile as for the lake, but keep a series in FROM in order, as a nested loop would."""
        query = postponed(query)
        around, self._counted = self._counted, ""
        counted = [order for order in map(counting, query.from_) if order]
        if counted:
            self._counted = counted[0]
        try:
            sql, values = super().query(query)
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
            mark = INFINITE if item.name in _INFINITE else ""
            self._columns[node.name, f"c{number}"] = Value(
                f'{node.name}."{item.name}"{mark}', item.type_oid, _column_shape(item)
            )
        for item in node.system:
            sql = f'{node.name}."{item.name}"'
            self._columns[node.name, item.name] = Value(sql, item.type_oid, None)
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
            node.name,
            [Value("", column.type_oid, _column_shape(column)) for column in node.columns],
        )
        return f"LATERAL ({sql}) AS {node.name}({names})"


def _json_object(values: Sequence[Value]) -> str:
    """Compile json_build_object with numbers, booleans and text as values."""
    if len(values) % 2:
        raise InvalidParameterValue("argument list must have even number of elements")
    pairs: list[str] = []
    for name, value in zip(values[::2], values[1::2], strict=True):
        pairs += ["', '", f"to_json({printed(name)})::VARCHAR", "' : '"]
        pairs.append(f"coalesce(to_json({value.sql})::VARCHAR, 'null')")
    return " || ".join(("('{'", *pairs[1:], "'}')"))


def series(values: Sequence[Value]) -> str:
    """Return a list of numbers of limited length: DuckDB builds it outside its memory limit."""
    start, stop, step = (*(value.sql for value in values), "1")[:3]
    if any(value.type not in (INT4, INT8) for value in values):
        raise refused("generate_series of these types")
    long = f"abs(CAST({stop} AS BIGINT)-{start})>{LONGEST_SERIES}"
    stop = f"CASE WHEN {long} THEN error('{SERIES_TOO_LONG}') ELSE {stop} END"
    held = duckdb_type(values[0].type, None)
    return f"CAST(generate_series({start}, {stop}, {step}) AS {held}[])"


def _shape(oid: int) -> tuple[int, int] | None:
    return (38, 6) if NUMERIC in (oid, element(oid)) else None


def _column_shape(column: Attribute) -> tuple[int, int] | None:
    return _LSN if column.type_oid == NUMERIC and column.typmod >= 0 else _shape(column.type_oid)


__all__ = ["NAME", "SERIES_TOO_LONG", "CatalogSql", "array", "compile_catalog_query"]


# Check that calls with side effects run as often as in PostgreSQL; otherwise raise 0A000.
#
# DuckDB could leave a call out (it drops columns that nobody reads, with their effects), run it for
# other rows, or run it twice. Calls with effects are supported in SELECT lists, and in those of
# subqueries if the outer query reads the column for every row. ``postponed`` checks UNION.

_LOOKS: Final = re.compile(
    r"clock_timestamp|timeofday|random\w*|gen_random_uuid|uuidv\d|current_query|currval|lastval"
    r"|currtid2|amvalidate|array_(sample|shuffle)|ts_(stat|rewrite)|txid_status|pg_sleep\w*"
    r"|(query|cursor)_to_xml\w*|pg_(is|current|last|get|show|ls|read|partition|xact|control)_\w+"
    r"|pg_stat_(get_\w+|have_stats|file)|pg_(hba|ident)_file_\w+|pg_lock_status|pg_jit_available"
    r"|pg_(database_)?collation_actual_version|pg_logical_slot_(get|peek)_\w+|pg_sequence_last_value"
    r"|pg_(database|indexes|relation|table|tablespace|total_relation)_size|pg_prepared_xact"
    r"|pg_replication_origin_(session_)?(progress|is_setup)|pg_(safe_snapshot_)?blocking_pids"
    r"|pg_notification_queue_usage|pg_available_wal_summaries|pg_wal_summary_contents"
    r"|pg_isolation_\w+"
)
"""Volatile functions without side effects: nobody sees how often they are called. Functions that
return a slot's changes are among them: DuckDB does not call them, and the slot moves only when
their rows have been read.
"""


_TAKE_EFFECTS: Final = frozenset(
    [
        *("abs", "btrim", "char_length", "concat", "left", "length", "lower", "lpad", "ltrim"),
        *("md5", "pg_size_pretty", "pg_wal_lsn_diff", "quote_ident", "quote_literal", "replace"),
        *("reverse", "right", "rpad", "rtrim", "strpos", "substr", "substring", "to_hex", "upper"),
    ]
)
"""Functions whose arguments DuckDB computes once for each row. DuckDB's macros (``nullif``) and our
templates may repeat an argument, or put it into a branch of CASE."""


def check_once(query: Query, sql: str, functions_: Mapping[str, CatalogFunction]) -> None:
    """Raise FeatureNotSupported if the SQL repeats a call that the query has once."""
    for name in functions_:
        called = name.removesuffix(OF_BYTEA)
        said = sql.count(f"pg__{name}(")
        if said and has_effect(called) and said > _calls(query, called):
            raise _refused(called, "in such an expression")


def check_effects(query: Query, give_rows: Container[str]) -> None:
    """Raise FeatureNotSupported if a call with an effect could run too rarely or too often.

    ``give_rows``: functions that produce all of their rows, even if not all of them are read.
    """
    if _effect(query) is not None:
        _Effects(give_rows).columns(query)


class _Effects:
    """The check of one statement. Columns are numbered from 1."""

    def __init__(self, give_rows: Container[str]) -> None:
        self._give_rows = give_rows

    def columns(self, query: Query) -> set[int]:
        """Return the columns of a query whose values have an effect. Raises FeatureNotSupported."""
        given = self._from(query)
        for number in given:
            relation = query.from_[0]
            assert isinstance(relation, Relation)
            column = Var(0, f"c{number}", relation=relation.name)
            if not any(_reads(target, column) for target in query.targets):
                raise _refused(_effect(query.from_), "in a subquery whose column is not read")
        self._check_clauses(query)
        found = set()
        for number, target in enumerate(query.targets, 1):
            if _effect(target) is not None:
                _check_expression(target)
                found.add(number)
            elif given and any(isinstance(node, Var) for node in _nodes(target)):
                found.add(number)
        return found

    def _check_clauses(self, query: Query) -> None:
        compared = query.targets if query.distinct else ()
        if any(node.type == VOID for node in (*compared, *query.group, *query.distinct_on)):
            raise _incomparable("equality")
        if any(key.node.type == VOID for key in query.sort):
            raise _incomparable("ordering")
        sorted_by = [key.node for key in query.sort if key.node not in query.targets]
        for clause, name in (
            (query.where, "in WHERE"),
            (query.group, "in GROUP BY"),
            (query.having, "in HAVING"),
            (query.distinct_on, "in DISTINCT ON"),
            (sorted_by, "in ORDER BY"),
            ((query.limit, query.offset), "in LIMIT"),
        ):
            _check_none(tuple(clause) if isinstance(clause, list) else clause, name)
        called = _effect(query.targets)
        if called is None:
            return
        if query.limit is not None and query.offset:
            raise _refused(called, "beside LIMIT with OFFSET")
        if any(map(has_set, query.targets)):
            raise _refused(called, "beside a function that returns a set")
        if sum(_effect(node) is not None for node in _aggregates(query.targets)) > 1:
            raise _refused(called, "in several aggregates")

    def _from(self, query: Query) -> set[int]:
        """Return the columns with an effect, if FROM has a single item; check the other items."""
        for cte in query.ctes:
            self._check_cte(cte, query)
        if _effect(query.from_) is None and not query.ctes:
            return set()
        ctes = {cte.name: self.columns(cte.query) for cte in query.ctes}
        item = query.from_[0] if query.from_ else None
        gives_rows = isinstance(item, FunctionScan) and item.function in self._give_rows
        if len(query.from_) != 1 or not isinstance(item, Relation):
            # As the first item PostgreSQL calls it once, even if catalog rows are joined to it.
            others = query.from_[1:] if gives_rows else query.from_
            plain = not any(isinstance(other, Join | SeriesScan) for other in others)
            _check_none(others if plain else query.from_, "in a join")
            return set()
        if isinstance(item, FunctionScan) and gives_rows:
            _check_none(getattr(item.call, "arguments", ()), "in an argument of this function")
            return set()
        found = self._given(item, ctes)
        if isinstance(item, SetOperationScan) and query.limit is not None:
            return found
        around = query.where is not None or query.grouped or query.limit is not None or query.offset
        if found and (around or query.distinct_on):
            raise _refused(
                _effect((query.from_, query.ctes)),
                "in a subquery with WHERE, GROUP BY, LIMIT or an aggregate around it",
            )
        return found

    def _check_cte(self, cte: Cte, query: Query) -> None:
        """Refuse effects in a WITH query, unless it is the only item of FROM and not recursive.

        For other WITH queries, DuckDB and PostgreSQL may compute different numbers of rows.
        """
        alone = len(query.from_) == 1 and isinstance(query.from_[0], CteScan)
        name = getattr(query.from_[0], "cte", "") if alone else ""
        if name != cte.name or cte.again is not None:
            _check_none(cte, "in this WITH query")

    def _given(self, item: FromNode, ctes: Mapping[str, set[int]]) -> set[int]:
        match item:
            case SubqueryScan(query=query):
                return self.columns(query)
            case CteScan(cte=name):
                return ctes.get(name, set())
            case SetOperationScan(operation=operation, left=left, right=right):
                if not item.all and any(column.type_oid == VOID for column in item.columns):
                    raise _incomparable("equality")
                if operation is not SetOperation.UNION:
                    _check_none((left, right), f"in {operation.value}")
                return self.columns(left) | self.columns(right)
            case ValuesScan(rows=rows):
                found = {
                    number
                    for row in rows
                    for number, value in enumerate(row, 1)
                    if _effect(value) is not None
                }
                for value in (value for row in rows for value in row):
                    _check_expression(value)
                return found
            case FunctionScan():
                _check_expression(item.call)
                return {1} if _effect(item) is not None else set()
        return set()


def _check_expression(node: Node) -> None:
    """Refuse effects in operands that DuckDB may skip and PostgreSQL not, or the reverse."""
    match node:
        case BoolExpr(operator=BoolOp.AND | BoolOp.OR):
            _check_none(node, f"in {node.operator.value}")
        case SubLink():
            _check_none(node, "in a subquery of an expression")
        case WindowFunc():
            _check_none(node, "in a window function")
        case ScalarArrayOpExpr():
            _check_none(node, f"with {'ANY' if node.any else 'ALL'}")
        case FuncExpr(name=name) if not (is_cast(node) or _takes_effects(node)):
            _check_none(node.arguments, f"in an argument of {name}")
        case FuncExpr(oid=oid) | OperatorCall(function=oid) if _is_null_at_once(node, oid):
            _check_none(tuple(children(node)), "beside a constant NULL")
        case Aggref() if node.distinct and node.arguments[0].type == VOID:
            raise _incomparable("equality")
        case Aggref() if node.filter is not None or node.order:
            _check_none(node, "in an aggregate with FILTER or ORDER BY")
    for child in children(node):
        _check_expression(child)


def _takes_effects(node: FuncExpr) -> bool:
    return node.name in _TAKE_EFFECTS or _effect(replace(node, arguments=())) is not None


def _is_null_at_once(node: FuncExpr | OperatorCall, oid: int) -> bool:
    """Tell whether PostgreSQL folds the call to NULL without calling it (simplify_function)."""
    called = functions().get(oid)
    strict = called is not None and called.strict
    return strict and any(map(_is_constant_null, node.arguments))


def _is_constant_null(node: Node) -> bool:
    match node:
        case Const(text=text):
            return text is None
        case Coercion(argument=argument) | CollateExpr(argument=argument):
            return _is_constant_null(argument)
        case FuncExpr(arguments=(argument, *_)) if is_cast(node):
            return _is_constant_null(argument)
    return False


def _check_none(item: Any, place: str) -> None:
    called = _effect(item)
    if called is not None:
        raise _refused(called, place)


def _refused(name: str | None, place: str) -> FeatureNotSupported:
    return FeatureNotSupported(
        f"{name} is not supported {place}",
        hint="Call it by itself in the select list of the statement.",
    )


def _incomparable(operator: str) -> UndefinedFunction:
    return UndefinedFunction(f"could not identify an {operator} operator for type void")


def _reads(node: Node, column: Var) -> bool:
    """Tell whether the node needs the column's value for every row."""
    if isinstance(node, Var):
        return (node.relation, node.name) == (column.relation, column.name)
    if isinstance(node, CaseExpr | CoalesceExpr | BoolExpr | SubLink | WindowFunc | Aggref):
        return False
    return any(_reads(child, column) for child in children(node))


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in children(node):
        yield from _nodes(child)


def _aggregates(targets: tuple[Node, ...]) -> Iterator[Node]:
    for target in targets:
        yield from (node for node in _nodes(target) if isinstance(node, Aggref))


def _effect(item: Any) -> str | None:
    """Return the name of a function with an effect that the item calls; None if it calls none."""
    if isinstance(item, FuncExpr):
        called = functions().get(item.oid)
        if called is not None and called.volatility == VOLATILE and not _LOOKS.fullmatch(item.name):
            return item.name
    return next((name for each in parts(item) if (name := _effect(each)) is not None), None)


def has_effect(name: str) -> bool:
    found = functions_by_name().get(name, ())
    return any(row.volatility == VOLATILE for row in found) and not _LOOKS.fullmatch(name)


def _calls(item: object, name: str) -> int:
    own = isinstance(item, FuncExpr) and item.name == name
    return own + sum(_calls(each, name) for each in parts(item))


# Compile arguments of functions in FROM to DuckDB's SQL.
#
# Each parameter of the function gets one SQL expression. Omitted arguments are ``left_out``;
# variadic arguments become one list.


def argument_cells(function: TableFunction, values: Sequence[Value]) -> list[str]:
    """Return the arguments in the function's order."""
    plain = [kind for kind in function.arguments if kind != VARIADIC]
    cells = [
        f"CAST({value.sql} AS {held_as(kind)})" for kind, value in zip(plain, values, strict=False)
    ]
    cells += [function.left_out] * (len(plain) - len(cells))
    if len(plain) == len(function.arguments):
        return cells
    rest = values[len(plain) :]
    if len(rest) == 1 and element(rest[0].type):
        return [*cells, rest[0].sql]
    return [*cells, f"CAST([{', '.join(value.sql for value in rest)}] AS VARCHAR[])"]


def check_constant(name: str, call: Node) -> None:
    """Raise FeatureNotSupported for columns: the function runs before the query has rows."""
    if column_names(call):
        raise refused(f"function {name} with columns of other relations as arguments")


# Return rows of generate_series and generate_subscripts in order, as PostgreSQL does: sort them.


def counting(node: FromNode) -> str:
    """Return the sort key of a counting function; "" for any other item of FROM."""
    if isinstance(node, SeriesScan):
        return f"{node.name}.c1{' DESC' if node.step < 0 else ''}"
    if not isinstance(node, FunctionScan) or node.function not in _COUNTED:
        return ""
    step = getattr(node.call, "arguments", ())[2:]
    if not step:
        return f"{node.name}.c1"
    constant = stripped(step[0])
    if not isinstance(constant, Const) or constant.text is None or constant.type not in INTEGERS:
        raise refused(f"{node.function} with a computed step")
    return f"{node.name}.c1{' DESC' if int(constant.text) < 0 else ''}"


_COUNTED: Final = frozenset({SERIES, "generate_subscripts"})


# Call volatile functions of a SELECT list in the order of the rows, and under LIMIT only for those
# that are left.
#
# The new query has the same rows and calls them after its ORDER BY and LIMIT (planner.c,
# make_sort_input_target); 0A000 if that is impossible. DuckDB works on many rows at a time: it
# computes the SELECT list of a sorted query for all of them, so
# ``pg_drop_replication_slot(slot_name)`` with LIMIT 1 would drop every slot. Unlike PostgreSQL, we
# do not call them for the rows that an OFFSET beside a LIMIT skips.

VOLATILE: Final = "v"


def postponed(query: Query) -> Query:
    """Return the query that calls volatile functions after its ORDER BY and LIMIT.

    Raises FeatureNotSupported if DuckDB would call such a function for rows that LIMIT drops.
    """
    if query.limit is None and (query.offset or not query.sort):
        return query
    unions = any(isinstance(node, SetOperationScan) and _is_volatile(node) for node in query.from_)
    if query.limit is not None and unions:
        raise refused("LIMIT of a UNION that calls volatile functions")
    sorted_by = [key.node for key in query.sort]
    late = [t for t in query.targets if _is_volatile(t) and t not in sorted_by]
    if not late or not query.from_ or query.distinct or query.distinct_on:
        return query
    own = {relation.name for node in query.from_ for relation in _relations(node)}
    scan = f"{min(own)}_left"
    inner: list[Node] = []

    def held(node: Node) -> Var:
        """Return the column of the limited query that holds the value."""
        if node not in inner:
            inner.append(node)
        return Var(node.type, f"c{inner.index(node) + 1}", typmod_of(node), relation=scan)

    def held_below(item: Any) -> Any:
        if isinstance(item, Aggref | WindowFunc) or (
            isinstance(item, Node) and item in query.group
        ):
            return held(item)
        if isinstance(item, Var):
            return held(item) if item.relation in own else item
        return _changed(item, held_below)

    targets = tuple(held_below(t) if t in late else held(t) for t in query.targets)
    columns = tuple(Attribute("", node.type, typmod_of(node)) for node in inner)
    limited = replace(query, columns=columns, targets=tuple(inner), ctes=())
    from_ = (SubqueryScan(scan, columns, limited),)
    return Query(query.columns, targets, from_, ctes=query.ctes)


def _relations(node: FromNode) -> Iterator[Relation]:
    if isinstance(node, Join):
        yield from _relations(node.left)
        yield from _relations(node.right)
    else:
        yield node


def _is_volatile(item: Any) -> bool:
    """Tell whether the item or a subquery calls volatile functions (contain_volatile_functions)."""
    if isinstance(item, FuncExpr | OperatorCall):
        called = functions().get(item.oid if isinstance(item, FuncExpr) else item.function)
        if called is not None and called.volatility == VOLATILE:
            return True
    return any(map(_is_volatile, parts(item)))


def parts(item: Any) -> Iterator[Any]:
    """Yield the parts of a node, a query or a tuple of them."""
    check_for_interrupts()
    if isinstance(item, tuple):
        yield from item
    else:
        yield from (getattr(item, name) for name in field_names(type(item)))


def _changed(item: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(item, tuple):
        return tuple(map(change, item))
    names = field_names(type(item))
    return replace(item, **{name: change(getattr(item, name)) for name in names}) if names else item
