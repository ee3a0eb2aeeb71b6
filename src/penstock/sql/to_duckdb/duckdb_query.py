"""Compile typed queries to DuckDB's SQL that returns PostgreSQL's rows (execMain.c).

A ``Query`` becomes SQL over inputs ``r1``, ``r2`` ... with columns ``c1``, ``c2`` ...; the result
also lists the tables of these inputs and the result's types. Rows are sorted as PostgreSQL sorts
them: strings by bytes, NULL above all values. The caller reads the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from penstock.attribute import Attribute
from penstock.errors import PenstockError
from penstock.pgtypes.pg_type import (
    BOOL,
    BPCHAR,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    INTERVAL,
    NUMERIC,
    TEXT,
    TIME,
    VARCHAR,
)
from penstock.sql.builtin import functions
from penstock.sql.builtin.type_cache import is_enum
from penstock.sql.grammar.parsenodes import BoolOp, SetOperation, SubLinkKind
from penstock.sql.text.limits import limited_depth
from penstock.sql.text.quoting import type_name
from penstock.sql.to_duckdb.conditions import always_there, conjuncts, equal_to, relations
from penstock.sql.to_duckdb.duckdb_predicate import (
    ExpressionCompiler,
    alike,
    conjunction,
    folded,
    simplified,
    with_arrays,
)
from penstock.sql.to_duckdb.duckdb_values import (
    LISTED,
    MANY,
    MAX_PRECISION,
    Value,
    aligned,
    aligned_decimals,
    column,
    comparable,
    duckdb_type,
    exposed,
    group_key,
    may_be_infinite,
    refused,
)
from penstock.sql.to_duckdb.fmgr import raises
from penstock.sql.to_duckdb.pg_proc import (
    COMPARISONS,
    PLAIN,
    fitted,
    table_column,
    through_text,
)
from penstock.sql.to_duckdb.session_values import SessionValues
from penstock.sql.typed.coercion import element
from penstock.sql.typed.literals import SUBTYPES
from penstock.sql.typed.primnodes import (
    BoolExpr,
    CoerceViaIO,
    Const,
    Form,
    FuncExpr,
    Node,
    OpExpr,
    Var,
)
from penstock.sql.typed.query_expression import SUBLINK_COLUMN
from penstock.sql.typed.query_nodes import (
    Aggref,
    Cte,
    CteScan,
    FromNode,
    FunctionScan,
    Join,
    Query,
    SeriesScan,
    SessionValue,
    SetOperationScan,
    SortKey,
    SubLink,
    SubqueryScan,
    TableScan,
    ValuesScan,
    WindowFunc,
)

_Item = TypeVar("_Item")
_RAISES: Final = "error("
_OVERFLOW: Final = raises("22003", "value out of range: overflow", "DOUBLE")


@dataclass(frozen=True)
class TableInput:
    """A table that a query reads. ``columns``: the columns it uses, as (c1, column), at least one.
    ``predicate``: SQL over these columns, without the relation's name, for the rows that the query
    needs; None: all rows. ``equal``: columns that the predicate compares with ``=``: (name, text).
    """

    scan: TableScan
    columns: tuple[tuple[str, Attribute], ...]
    predicate: str | None
    equal: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class CompiledQuery:
    """The SQL of a query. ``values``: the result's columns, c1 and so on.

    ``once``: the SQL reads no input twice.
    """

    sql: str
    values: tuple[Value, ...]
    inputs: tuple[TableInput, ...]
    once: bool


def compile_query(query: Query, session: SessionValues | None = None) -> CompiledQuery:
    """Compile a query that returns its rows for printing. Raises as ``compile_rows``."""
    compiled = compile_rows(query, session)
    if not may_be_infinite(compiled.sql):
        return compiled
    texts = [table_column(value, value.sql) for value in compiled.values]  # Arrow has no infinity
    values = tuple(
        Value(f"c{number}", value.type, None if text else value.shape)
        for number, (value, text) in _numbered(list(zip(compiled.values, texts, strict=True)))
    )
    shown = ", ".join(
        f"{text or value.sql} AS c{number}"
        for number, (value, text) in _numbered(list(zip(compiled.values, texts, strict=True)))
    )
    return replace(compiled, sql=f"SELECT {shown} FROM ({compiled.sql})", values=values)


def compile_rows(query: Query, session: SessionValues | None = None) -> CompiledQuery:
    """Compile a query that returns its rows as computed, without texts for printing.

    ``session``: None if the statement may not use the session's values. Raises PenstockError
    (54001); FeatureNotSupported if DuckDB might differ.
    """
    compiler = QueryCompiler(session)
    with limited_depth():
        if query.where is not None:
            query = replace(query, where=simplified(query.where))
        sql, values = compiler.query(query)
        asked = compiler.conditions(query)
    inputs = tuple(compiler.input(scan, asked.get(scan.name, ())) for scan in compiler.tables)
    once = len(inputs) == 1 and not compiler.nested
    return CompiledQuery(sql, values, inputs, once)


def compile_input(item: TableInput) -> CompiledQuery:
    """Compile a query for an input's rows, with the used columns under their names c1 ..."""
    names = ", ".join(name for name, _ in item.columns)
    return CompiledQuery(f"SELECT {names} FROM {item.scan.name}", (), (item,), once=True)


class QueryCompiler(ExpressionCompiler):
    """Compiles one statement. ``tables``: in the SQL's order; ``nested``: reads may be repeated."""

    def __init__(self, session: SessionValues | None = None) -> None:
        super().__init__()
        self._session = session
        self.tables: list[TableScan] = []
        self.nested = False
        self._used: set[tuple[str, str]] = set()
        self._columns: dict[tuple[str, str], Value] = {}
        self._ctes: dict[str, tuple[Value, ...]] = {}
        self._grouped: dict[Node, Value] = {}

    def _check_failing(self, node: Node) -> None:
        """Accept constants that may fail: a query may fail when it evaluates them."""

    # Expressions

    def _value(self, node: Node) -> Value:
        match node:
            case _ if self._grouped and node in self._grouped:
                return self._grouped[node]
            case Var(name=name, relation=relation):
                self._used.add((relation, name))
                return self._columns[relation, name]
            case SessionValue():
                if self._session is None:
                    raise refused(f"{node.name.upper()} in this statement")
                return self._session.value(node)
            case Aggref():
                return self._aggregate(node, "")
            case WindowFunc():
                return self._window(node)
            case SubLink():
                return self._sublink(node)
            case CoerceViaIO(argument=argument, type=target):
                return through_text(self.value(argument), target)
            case FuncExpr(form=Form.IMPLICIT, typmod=typmod) if typmod >= 0:
                value = self.value(node.arguments[0])
                if value.type == node.type and value.type in (VARCHAR, BPCHAR):
                    return fitted(value, typmod)
        return super()._value(node)

    def _aggregate(self, node: Aggref, over: str) -> Value:
        around, self._grouped = self._grouped, self._grouped if over else {}
        values = [self.value(argument) for argument in node.arguments]
        order = f" ORDER BY {self._order(node.order)}" if node.order else ""
        filter_ = f" FILTER (WHERE {self.value(node.filter).sql})" if node.filter else ""
        self._grouped = around
        if functions()[node.oid].kind == "w":
            return window_function(node, values, over)
        return aggregate(node, values, order, filter_, over)

    def _window(self, node: WindowFunc) -> Value:
        clauses = []
        if node.partition:
            keys = [group_key(self.value(item)) for item in node.partition]
            clauses.append(f"PARTITION BY {', '.join(keys)}")
        if node.order:
            order = self._order(node.order)
            if node.frame is not None and node.frame.mode == "RANGE" and len(node.order) == 1:
                order = _wide_order(node.order[0], self.value(node.order[0].node), order)
            if _RAISES in order:  # DuckDB takes no volatile function here
                raise refused("an expression that may fail in the ORDER BY of a window")
            clauses.append(f"ORDER BY {order}")
        if node.frame is not None:
            frame = node.frame
            clauses.append(f"{frame.mode} BETWEEN {frame.start} AND {frame.end}")
        return self._aggregate(node.aggregate, f" OVER ({' '.join(clauses)})")

    def _order(self, keys: Sequence[SortKey]) -> str:
        return ", ".join(order_by(key, self.value(folded(key.node))) for key in keys)

    def _sublink(self, node: SubLink) -> Value:
        self.nested = True
        sql, values = self.query(node.query)
        if node.kind is SubLinkKind.EXISTS:
            return Value(f"(EXISTS ({sql}))", node.type)
        (value,) = values
        if node.kind is SubLinkKind.EXPR:
            return Value(f"({sql})", node.type, value.shape, True)
        if node.kind is SubLinkKind.ARRAY:
            return Value(f"(ARRAY({sql}))", node.type, value.shape, True)
        return self._any_of(node, sql, value)

    def _any_of(self, node: SubLink, sql: str, value: Value) -> Value:
        """Compile a comparison with ANY or ALL of a subquery, in a form that DuckDB compares."""
        test = node.test
        if not isinstance(test, OpExpr) or test.name not in COMPARISONS:
            raise refused("this comparison with a subquery")
        self._columns[SUBLINK_COLUMN, "c1"] = replace(value, sql="subquery.c1")
        left, right = (self.value(argument) for argument in test.arguments)
        first, second = comparable(left, right)
        word = "ANY" if node.kind is SubLinkKind.ANY else "ALL"
        rows = f"SELECT {second} FROM ({sql}) AS subquery"
        return Value(f"({first} {test.name} {word} ({rows}))", node.type, None, True)

    # Inputs

    def input(self, scan: TableScan, asked: Sequence[tuple[Node, str]] = ()) -> TableInput:
        """Return the input of a table. ``asked``: conditions on its rows, with their SQL."""
        known = [(f"c{number}", column) for number, column in _numbered(scan.columns)]
        used = [item for item in known if (scan.name, item[0]) in self._used]
        values = [Value(sql, BOOL) for _, sql in asked]
        predicate = conjunction(values).sql if values else None
        equal = equal_to(scan.columns, (node for node, _ in asked))
        return TableInput(scan, tuple(used or known[:1]), predicate, equal)

    def conditions(self, query: Query) -> dict[str, list[tuple[Node, str]]]:
        """Return WHERE's conditions on single tables, by table, so that fewer rows are read."""
        scans = {scan.name: scan for node in query.from_ for scan in always_there(node)}
        found: dict[str, list[tuple[Node, str]]] = {}
        given = BoolExpr(BOOL, BoolOp.AND, tuple(conjuncts(query.where)))
        for condition in with_arrays(given):
            found_in = relations(condition)
            if found_in is None or len(found_in) != 1 or not found_in <= scans.keys():
                continue
            (name,) = found_in
            value = self._alone(scans[name], condition)
            if not value.fails:
                found.setdefault(name, []).append((condition, value.sql))
        return found

    def _alone(self, scan: TableScan, condition: Node) -> Value:
        """Compile a condition with unqualified column names."""
        qualified = dict(self._columns)
        for number, item in _numbered(scan.columns):
            name = f"c{number}"
            self._columns[scan.name, name] = column(name, item.type_oid, item.typmod)
        try:
            return self.value(condition)
        finally:
            self._columns = qualified

    # Queries

    def query(self, query: Query) -> tuple[str, tuple[Value, ...]]:
        """Return SQL with columns c1, c2 ..., and the values of these columns."""
        around = self._grouped, self._depth
        self._grouped, self._depth = {}, 0
        try:
            return self._query(query)
        finally:
            self._grouped, self._depth = around

    def _query(self, query: Query) -> tuple[str, tuple[Value, ...]]:
        with_ = self._with(query)
        from_ = [self._from(node) for node in query.from_]
        clauses = [f"FROM {', '.join(from_)}"] if from_ else []
        if query.where is not None:
            clauses.append(f"WHERE {self.value(simplified(query.where)).sql}")
        clauses += self._group(query)
        targets = [self.value(target) for target in query.targets]
        if query.having is not None:
            clauses.append(f"HAVING {self.value(query.having).sql}")
        on = [self.value(node) for node in query.distinct_on]
        keys = [group_key(value) for value in (targets if query.distinct else on)]
        shown = ", ".join(f"{value.sql} AS c{number}" for number, value in _numbered(targets))
        distinct = ""
        if on or (keys and keys != [target.sql for target in targets]):
            distinct = f"DISTINCT ON ({', '.join(keys)}) "
        elif query.distinct:
            distinct = "DISTINCT "
        sql = " ".join([f"SELECT {distinct}{shown or '1'}", *clauses])
        if query.distinct and query.sort:  # outside, a name means the column of the result
            sql = f"SELECT * FROM ({sql})"
        sql = f"{with_}{sql}{self._sorted(query)}"
        if query.limit is not None:
            sql += f" LIMIT {self._number(query.limit, 'LIMIT')}"
        if query.offset:
            sql += f" OFFSET {self._number(query.offset, 'OFFSET')}"
        return sql, tuple(exposed(value, f"c{n}") for n, value in _numbered(targets))

    def _number(self, count: int | Node, word: str) -> str:
        if isinstance(count, int):
            return str(count)
        sql = self.value(count).sql
        refusal = raises(
            "2201W" if word == "LIMIT" else "2201X", f"{word} must not be negative", "BIGINT"
        )
        return f"CASE WHEN {sql} < 0 THEN {refusal} ELSE {sql} END"

    def _recursive(self, cte: Cte) -> str:
        """Compile a recursive query: ``name(columns) AS (...)``."""
        raise refused("WITH RECURSIVE")

    def _with(self, query: Query) -> str:
        parts = []
        recursive = ""
        for cte in query.ctes:
            self.nested = True
            if cte.again is not None:
                recursive = "RECURSIVE "
                parts.append(self._recursive(cte))
                continue
            sql, values = self.query(cte.query)
            self._ctes[cte.name] = values
            # MATERIALIZED, because an input can be read only once.
            parts.append(f"{cte.name} AS MATERIALIZED ({sql})")
        return f"WITH {recursive}{', '.join(parts)} " if parts else ""

    def _group(self, query: Query) -> list[str]:
        """Compile GROUP BY. A group of equal values that may look different shows one of them."""
        values = [self.value(node) for node in query.group]
        keys = [group_key(value) for value in values]
        for node, value, key in zip(query.group, values, keys, strict=True):
            if key != value.sql:
                self._grouped[folded(node)] = replace(value, sql=f"any_value({value.sql})")
        return [f"GROUP BY {', '.join(keys)}"] if keys else []

    def _sorted(self, query: Query) -> str:
        if not query.sort:
            return ""
        keys = [order_by(key, self._sort_value(key.node, query)) for key in query.sort]
        return f" ORDER BY {', '.join(keys)}"

    def _sort_value(self, node: Node, query: Query) -> Value:
        """Return a target by its number, so that it is not computed twice, or by its name."""
        value = self.value(node)
        if node not in query.targets:
            return value
        number = query.targets.index(node) + 1
        if in_own_order(value):
            return replace(value, sql=str(number))
        return replace(value, sql=f"c{number}") if query.distinct else value

    # FROM

    def _from(self, node: FromNode) -> str:
        match node:
            case Join():
                left, right = self._from(node.left), self._from(node.right)
                condition = "TRUE" if node.condition is None else self.value(node.condition).sql
                return f"({left} {node.type.value} JOIN {right} ON {condition})"
            case TableScan():
                return self.scan(node)
            case CteScan():
                self._expose(node.name, self._ctes[node.cte])
                return f"{node.cte} AS {node.name}"
            case SubqueryScan():
                self.nested = self.nested or node.lateral
                sql, values = self.query(node.query)
                self._expose(node.name, values)
                return f"{'LATERAL ' if node.lateral else ''}({sql}) AS {node.name}"
            case FunctionScan():
                return self._function_scan(node)
            case SeriesScan():
                return self._series(node)
            case ValuesScan():
                return self._values(node)
            case SetOperationScan():
                return self._set_operation(node)
        raise refused(type(node).__name__)

    def _function_scan(self, node: FunctionScan) -> str:
        raise refused(f"function {node.function} in FROM")

    def scan(self, node: TableScan) -> str:
        """Make a table's columns known. A subquery may be compiled twice, as a target and as a sort
        key."""
        if node not in self.tables:
            self.tables.append(node)
        for number, item in _numbered(node.columns):
            name = f"c{number}"
            self._columns[node.name, name] = column(name, item.type_oid, item.typmod, node.name)
        return node.name

    def _expose(self, relation: str, values: Sequence[Value]) -> None:
        for number, value in _numbered(values):
            self._columns[relation, f"c{number}"] = exposed(value, f"{relation}.c{number}")

    def _series(self, node: SeriesScan) -> str:
        type_ = node.columns[0].type_oid
        self._expose(node.name, [Value("", type_)])
        number = f"CAST(n AS {duckdb_type(type_, None)})"
        series = f"generate_series({node.start}, {node.stop}, {node.step})"
        return f"(SELECT {number} AS c1 FROM {series} AS series(n)) AS {node.name}"

    def _values(self, node: ValuesScan) -> str:
        """Compile VALUES. Many rows of constants become one column after the other: DuckDB reads a
        literal of all texts far faster than an expression for each."""
        given = node.rows
        if len(given) >= MANY:
            made = [alike(cells) for cells in zip(*given, strict=True)]
            known = tuple(cells for cells in made if cells is not None)
            given = (known,) if len(known) == len(made) else given
        if len(given) == 1:
            values, constants = self.many(given[0])
            if constants:
                self._expose(node.name, values)
                shown = ", ".join(f"{value.sql} AS c{n}" for n, value in _numbered(values))
                return f"(SELECT {shown} FROM {constants}) AS {node.name}"
        rows = [[self.value(value) for value in row] for row in given]
        columns = [aligned(list(values)) for values in zip(*rows, strict=True)]
        self._expose(
            node.name,
            [
                Value(" ".join(value.sql for value in values), shown.type_oid, shape)
                for (values, shape), shown in zip(columns, node.columns, strict=True)
            ],
        )
        cells = zip(*([value.sql for value in values] for values, _ in columns), strict=True)
        texts = ", ".join(f"({', '.join(row)})" for row in cells)
        names = ", ".join(f"c{number}" for number, _ in _numbered(columns))
        return f"(VALUES {texts}) AS {node.name}({names})"

    def _set_operation(self, node: SetOperationScan) -> str:
        left_sql, left = self.query(node.left)
        right_sql, right = self.query(node.right)
        union = node.operation is SetOperation.UNION
        first, second, shown = [], [], []
        for number, pair in _numbered(list(zip(left, right, strict=True))):
            # INTERSECT and EXCEPT compare decimals: numbers get the greatest scale.
            (one, other), shape = (aligned if union else aligned_decimals)(list(pair))
            first.append(f"{one.sql} AS c{number}")
            second.append(f"{other.sql} AS c{number}")
            both = Value(f"{one.sql} {other.sql}", one.type, shape)
            shown.append(exposed(both, f"c{number}"))
        word = node.operation.value + (" ALL" if node.all else "")
        every = union and node.all
        keys = [] if every else [group_key(value) for value in shown]
        alike = keys != [value.sql for value in shown] and not every
        if alike and not union:
            raise refused(f"{word} of columns whose equal values may look different")
        rows = (
            f"(SELECT {', '.join(first) or '1'} FROM ({left_sql})"
            f" {'UNION ALL' if alike else word}"
            f" SELECT {', '.join(second) or '1'} FROM ({right_sql}))"
        )
        if alike:
            rows = f"(SELECT DISTINCT ON ({', '.join(keys)}) * FROM {rows})"
        self._expose(node.name, shown)
        return f"{rows} AS {node.name}"


def _numbered(items: Sequence[_Item]) -> enumerate[_Item]:
    return enumerate(items, 1)


# Compile aggregates and window functions in DuckDB's SQL with PostgreSQL's results
# (pg_aggregate.dat).
#
# An aggregate's name and its arguments give a ``Value``. Unknown aggregates are refused.

_RANKS: Final = {
    "row_number": "BIGINT",
    "rank": "BIGINT",
    "dense_rank": "BIGINT",
    "percent_rank": "DOUBLE",
    "cume_dist": "DOUBLE",
}
_VALUES: Final = frozenset({"first_value", "last_value"})
_NEIGHBOURS: Final = frozenset({"lag", "lead", "nth_value"})
_EXTREMES: Final = {"min": "arg_min", "max": "arg_max"}


def aggregate(node: Aggref, values: Sequence[Value], order: str, filter_: str, over: str) -> Value:
    """Compile an aggregate. ``order``, ``filter_``, ``over``: the clauses, or "".

    Raises FeatureNotSupported.
    """
    distinct = "DISTINCT " if node.distinct else ""
    tail = f"{filter_}{over}"
    if not values:
        if node.name != "count":
            raise _refused(node, values)
        return Value(f"count(*){tail}", INT8)
    first = values[0]
    key = group_key(first) if distinct else first.sql

    def call(name: str, *more: str) -> str:
        return f"{name}({distinct}{', '.join((first.sql, *more))}{order}){tail}"

    fails = any(value.fails for value in values)
    match node.name:
        case "count":
            return Value(f"count({distinct}{key}){tail}", INT8, None, fails)
        case "sum":
            return _of_texts(node, first, filter_, over) or _sum(node, first, call, fails)
        case "avg":
            return _of_texts(node, first, filter_, over) or _average(node, first, call, fails)
        case "min" | "max":
            return _extreme(node, first, call(node.name), tail, fails)
        case "bool_and" | "every":
            return Value(call("bool_and"), BOOL, None, fails)
        case "bool_or":
            return Value(call("bool_or"), BOOL, None, fails)
        case "string_agg" if node.type == TEXT and isinstance(node.arguments[1], Const):
            # DISTINCT sorts the values (nodeAgg.c). A delimiter of NULL is none.
            order = order or (f" ORDER BY {first.sql}" if distinct else "")
            delimiter = "''" if node.arguments[1].text is None else values[1].sql
            return Value(call("string_agg", delimiter), TEXT, None, fails)
        case "array_agg" if not element(first.type) and key == first.sql:
            order = order or (f" ORDER BY {first.sql} NULLS LAST" if distinct else "")
            return Value(call("list"), node.type, first.shape, fails)
    raise _refused(node, values)


def _of_texts(node: Aggref, value: Value, filter_: str, over: str) -> Value | None:
    """Compile a sum or an average of numerics that are held as text: of a list of all values."""
    if value.type != NUMERIC or value.shape is not None:
        return None
    if over:  # a list for each row
        raise refused(f"{node.name} of numeric without precision as a window function")
    distinct = "true" if node.distinct else "false"
    sql = f"pg_text('numeric_{node.name}', list({value.sql}){filter_}, {distinct})"
    return Value(sql, NUMERIC, None, True)


def _sum(node: Aggref, value: Value, call: Callable[[str], str], fails: bool) -> Value:
    sql = call("sum")
    if value.type in (INT2, INT4):
        return Value(f"CAST({sql} AS BIGINT)", INT8, None, True)
    if value.type == INT8:
        shape = (MAX_PRECISION, 0)
    elif value.type == NUMERIC and value.shape is not None:
        shape = (MAX_PRECISION, value.shape[1])
    elif value.type == FLOAT8:
        return _in_range(f"CAST({sql} AS DOUBLE)", f"NOT isfinite({sql})", call)
    else:
        raise _refused(node, [value])
    return Value(f"CAST({sql} AS {duckdb_type(NUMERIC, shape)})", NUMERIC, shape, True)


def _average(node: Aggref, value: Value, call: Callable[[str], str], fails: bool) -> Value:
    total, count = call("sum"), call("count")
    if value.type == FLOAT8:
        # float8_accum also sums squared distances, and fails if this sum overflows. In any order
        # of rows, the sum contains the square of the greatest distance.
        distance = f"({call('max')} - {call('min')})"
        too_great = f"NOT isfinite({total}) OR isinf({distance} * {distance})"
        return _in_range(f"({total} / {count})", too_great, call)
    if value.type not in (INT2, INT4, INT8) and value.shape is None:
        raise _refused(node, [value])
    texts = f"CAST({total} AS VARCHAR), CAST({count} AS VARCHAR)"
    return Value(f"pg_text('numeric_div', {texts})", NUMERIC, None, fails)


def _in_range(sql: str, too_great: str, call: Callable[[str], str]) -> Value:
    """Make an infinite result of finite numbers an error (float8pl, float8_accum)."""
    finite = f"isfinite({call('min')}) AND isfinite({call('max')})"
    checked = f"CASE WHEN {finite} AND ({too_great}) THEN {_OVERFLOW} ELSE {sql} END"
    return Value(checked, FLOAT8, None, True)


def _extreme(node: Aggref, value: Value, sql: str, tail: str, fails: bool) -> Value:
    if value.type in PLAIN or value.shape is not None:
        return Value(sql, node.type, value.shape, fails)
    if value.type in (NUMERIC, BPCHAR, INTERVAL, TIME) or is_enum(value.type):
        key = comparable(value, value)[0]
        return Value(f"{_EXTREMES[node.name]}({value.sql}, {key}){tail}", node.type, None, fails)
    raise _refused(node, [value])


def window_function(node: Aggref, values: Sequence[Value], over: str) -> Value:
    """Compile a pure window function, such as rank(). Raises FeatureNotSupported."""
    name, fails = node.name, any(value.fails for value in values)
    if name in _RANKS:
        return Value(f"CAST({name}(){over} AS {_RANKS[name]})", node.type)
    if name == "ntile" and isinstance(node.arguments[0], Const):
        _check_positive(node.arguments[0], "argument of ntile must be greater than zero", "22014")
        return Value(f"CAST(ntile({values[0].sql}){over} AS INTEGER)", node.type)
    if name in _VALUES:
        return _of_window(name, node, values, over, fails)
    constant = all(isinstance(argument, Const) for argument in node.arguments[1:2])
    if name in _NEIGHBOURS and constant and len(values) < 3:
        if name == "nth_value":
            _check_positive(
                node.arguments[1], "argument of nth_value must be greater than zero", "22016"
            )
        return _of_window(name, node, values, over, fails)
    raise _refused(node, values)


def _of_window(name: str, node: Aggref, values: Sequence[Value], over: str, fails: bool) -> Value:
    """Compile a function that returns a value of another row, such as lag()."""
    first, *more = values
    after = "".join(f", {value.sql}" for value in more)
    return Value(f"{name}({first.sql}{after}){over}", node.type, first.shape, fails)


def _check_positive(node: Node, message: str, sqlstate: str) -> None:
    if isinstance(node, Const) and node.text is not None and int(node.text) <= 0:
        raise PenstockError(message, sqlstate=sqlstate)


def _refused(node: Aggref, values: Sequence[Value]) -> Exception:
    shown = ", ".join(type_name(value.type) for value in values) or "*"
    return refused(f"function {node.name}({shown})")


# Compile an item of ORDER BY so that DuckDB sorts as PostgreSQL does.
#
# A sort key and its compiled value become SQL. Types that DuckDB sorts differently are refused.

_ORDERED: Final = PLAIN | {NUMERIC, BPCHAR, INTERVAL, TIME, *SUBTYPES}


def order_by(key: SortKey, value: Value) -> str:
    """Compile a sort key. ``value``: of the key's node. Raises FeatureNotSupported."""
    if value.type not in _ORDERED and not is_enum(value.type):
        # DuckDB sorts NULL elements of arrays like NULL itself. This is right only for
        # ASC NULLS LAST and DESC NULLS FIRST.
        usual = key.nulls_first == key.descending
        if element(value.type) not in _ORDERED & LISTED or not usual:
            raise refused(f"ORDER BY of {type_name(value.type)}")
    return f"{comparable(value, value)[0]} {_direction(key)}"


def _wide_order(key: SortKey, value: Value, order: str) -> str:
    """Let whole numbers have room for the offsets of a frame."""
    if value.type not in (INT2, INT4):
        return order
    return f"CAST({value.sql} AS HUGEINT) {_direction(key)}"


def in_own_order(value: Value) -> bool:
    """Tell whether rows are sorted by the value itself."""
    return comparable(value, value)[0] == value.sql


def _direction(key: SortKey) -> str:
    direction = "DESC" if key.descending else "ASC"
    return f"{direction} NULLS {'FIRST' if key.nulls_first else 'LAST'}"
