"""PostgreSQL's functions, operators and casts in DuckDB's SQL (pg_proc.dat).

Each row of functions.tsv belongs to functions of pg_proc; operators and casts are found by their
functions (pg_operator.oprcode, pg_cast.castfunc). A function without a row is refused, even if it
is immutable. ``tools/prove_functions.py`` compares every row with a server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, Final

from penstock.civil import DAY, parse_date, parse_timestamp, print_date, print_timestamp
from penstock.identifiers import simple_quote_literal
from penstock.pgtypes.numeric import precision_and_scale
from penstock.pgtypes.pg_type import (
    ANYARRAY,
    ANYCOMPATIBLE,
    ANYCOMPATIBLEARRAY,
    ANYELEMENT,
    BOOL,
    BPCHAR,
    BYTEA,
    DATE,
    FLOAT8,
    FLOATS,
    INT4,
    INT8,
    INTEGERS,
    INTERVAL,
    JSON,
    JSONB,
    NAME,
    NUMERIC,
    TEXT,
    TEXT_ARRAY,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
)
from penstock.pgtypes.pg_type import types as pg_types
from penstock.pgtypes.type_names import length_of, numeric_modifiers
from penstock.sql.builtin import casts, functions
from penstock.sql.builtin.type_cache import is_enum, types
from penstock.sql.text.array_literals import join_array, split_array
from penstock.sql.text.interval_literals import read_interval
from penstock.sql.text.quoting import type_name
from penstock.sql.to_duckdb import (
    json_functions,
    numeric_functions,
    text_functions,
    timestamp_functions,
)
from penstock.sql.to_duckdb.duckdb_patterns import (
    LOWER,
    UPPER,
    is_unfinished,
    like,
    regular_expression,
    regular_match,
    regular_replacement,
)
from penstock.sql.to_duckdb.duckdb_values import (
    DUCKDB,
    EACH,
    LISTED,
    MAX_PRECISION,
    READS,
    STRINGS,
    Shape,
    Value,
    as_text,
    comparable,
    duckdb_type,
    in_utc,
    integer_shape,
    list_text,
    may_be_infinite,
    refused,
)
from penstock.sql.to_duckdb.fmgr import PythonFunction, raises
from penstock.sql.typed.coercion import element
from penstock.sql.typed.literals import SUBTYPES
from penstock.sql.typed.primnodes import Const, FuncExpr, Node, is_cast

PYTHON: Final[Mapping[str, PythonFunction]] = {
    **text_functions.FUNCTIONS,
    **numeric_functions.FUNCTIONS,
    **timestamp_functions.FUNCTIONS,
    **json_functions.FUNCTIONS,
}
"""The functions that DuckDB must know (``fmgr.register``)."""

_TABLE: Final = Path(__file__).with_name("functions.tsv")
_CATALOG: Final = "catalog "
_WIDTHS: Final = ("2", "4", "8", "24", "42", "28", "82", "48", "84")
_ORDERS: Final = frozenset({"<", "<=", ">", ">="})
COMPARISONS: Final = _ORDERS | {"=", "<>"}
_TEXTS: Final = STRINGS - {BPCHAR}
MOMENTS: Final = frozenset({DATE, TIMESTAMP, TIMESTAMPTZ})
PLAIN: Final = INTEGERS | FLOATS | _TEXTS | MOMENTS | {UUID, BYTEA, BOOL}
"""Types whose values DuckDB compares as PostgreSQL does."""
_COMPARED: Final = frozenset({NUMERIC, INTERVAL, TIME, *SUBTYPES})
_NUMERIC: Final = {"add": "+", "sub": "-", "mul": "*", "mii": "-", "mi": "-"}
_FIELDS: Final = frozenset({"year", "month", "day", "quarter", "week", "dow", "isodow", "doy"})
_CLOCK_FIELDS: Final = frozenset({"hour", "minute"})
_TRUNCATED: Final = frozenset(
    {"year", "quarter", "month", "week", "day", "hour", "minute", "second"}
)
_MATCH: Final = re.compile(
    "(?:text|bpchar|name)?(ic)?(like|n(?:ot)?like|regexeq|regexne|regexp_like)"
)
_MAX_SCALE: Final = 30
_UTC: Final = ("UTC", "GMT", "Z")
_LONGEST_MADE: Final = 10_000
"""The most characters of a text that DuckDB pads: it makes 2048 of them beyond its memory limit."""
_WIDE_DIGITS: Final = 19
_MAX_MONTHS: Final = 12_000
_MAX_DAYS: Final = 365_000
_SMALL_DAYS: Final = 1_000_000
_FIRST_DATE: Final = "DATE '4714-11-24 (BC)'"
_LAST_DATE: Final = "DATE '5874897-12-31'"
_RESULTS: Final = {
    BOOL: "pg_bool",
    **dict.fromkeys(INTEGERS | MOMENTS, "pg_int"),
    **dict.fromkeys(FLOATS, "pg_float"),
    BYTEA: "pg_bytes",
}
_ERROR: Final = re.compile(r"\{!(\w{5}) ([^}]*)\}")
_POLYMORPHIC: Final = (ANYARRAY, ANYELEMENT, ANYCOMPATIBLE, ANYCOMPATIBLEARRAY)
_RADIANS_PER_DEGREE: Final = "CAST('0.0174532925199432957692' AS DOUBLE)"
_OVERFLOW: Final = ("22003", "value out of range: overflow")
_UNDERFLOW: Final = ("22003", "value out of range: underflow")


@dataclass(frozen=True, slots=True)
class Row:
    """A row of functions.tsv: a function of pg_proc and its expression.

    ``@name`` calls a Python function, by default that of the same name; ``:name`` a function of
    this file, which compiles the call; anything else is SQL with {0}, {1} ... for the arguments,
    {type} for DuckDB's type of the result, {wide} for a type in which integers do not overflow,
    {each} for the parameter of a lambda, and {!22012 message} for an error.
    ``fails``: a call may fail, if the arguments do not.
    """

    name: str
    expression: str
    fails: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A call. ``nodes``: the arguments without labels and collations."""

    name: str
    values: Sequence[Value]
    nodes: Sequence[Node]
    result: int
    typmod: int = -1

    @property
    def sql(self) -> list[str]:
        """The arguments as SQL."""
        return [value.sql for value in self.values]

    @property
    def held(self) -> str:
        """DuckDB's type of the result."""
        return duckdb_type(self.result, None)


@cache
def _read(catalog: bool) -> Mapping[str, Row]:
    """Return the rows by name, or by name and argument types."""
    found = {}
    for line in _TABLE.read_text("utf-8").splitlines():
        named, expression = line.split("\t")
        if named.startswith(_CATALOG) is not catalog:
            continue
        *names, last = named.removeprefix(_CATALOG).split()
        fails = last == "!"
        for name in names if fails else [*names, last]:
            for each in [name.replace("#", width) for width in _WIDTHS] if "#" in name else [name]:
                found[each] = Row(each.partition("(")[0], expression, fails)
    return found


@cache
def rows(catalog: bool = False) -> Mapping[int, Row]:
    """Return the rows by the oid of their function. ``catalog``: those of queries of catalogs."""
    read, named = _read(catalog), pg_types()
    found = {}
    for oid, function in functions().items():
        of = ",".join(named[each].name for each in function.arguments)
        row = read.get(f"{function.name}({of})") or read.get(function.name)
        if row is not None:
            found[oid] = row
    return found


def names() -> frozenset[str]:
    """Return the names of all functions."""
    return frozenset(row.name for catalog in (False, True) for row in _read(catalog).values())


def call(oid: int, call_: Call, *, catalog: bool = False) -> Value | None:
    """Compile a call of a function of pg_proc, or of one of ours by its name (``oid`` 0).

    Returns None if there is no row for it. Raises FeatureNotSupported if DuckDB might differ.
    """
    row = _read(True).get(call_.name) or rows(True).get(oid) if catalog else None
    row = row or rows().get(oid) or (None if oid else _read(False).get(call_.name))
    items = {element(each.type) or TEXT for each in call_.values}
    # int4(int2) is also the cast to oid, whose values are others.
    results = (call_.result, *_POLYMORPHIC)
    other = not catalog and oid and functions()[oid].result not in results
    if row is None or not items <= LISTED or other:
        return None
    call_ = replace(call_, name=row.name)
    fails = row.fails
    if row.expression.startswith(":"):
        made: Value | None = globals()[row.expression[1:]](call_)
        if made is None:
            return None
        value, fails = made, made.fails
    elif row.expression.startswith("@"):
        value = python(row.expression[1:] or row.name, call_)
    else:
        if any(element(each.type) for each in call_.values[:2]):
            _check_same_elements(call_)
        if "{each}" in row.expression and any(each.fails for each in call_.values[1:]):
            raise refused(f"{row.name} with a value that may fail")  # DuckDB may not compute it
        value = _filled(row.expression, call_)
    return replace(value, fails=fails or any(each.fails for each in call_.values))


def _filled(expression: str, call_: Call) -> Value:
    wide = "HUGEINT" if call_.result == INT8 else "BIGINT"
    first = next(iter(call_.values), None)
    shape = first.shape if first is not None and first.type == call_.result else None
    held = duckdb_type(call_.result, shape)
    raising = _ERROR.sub(lambda error: raises(error[1], error[2], held), expression)
    sql = raising.format(
        *call_.sql,
        type=held,
        wide=wide,
        each=EACH,
        upper=UPPER,
        lower=LOWER,
        degree=_RADIANS_PER_DEGREE,
    )
    return Value(sql, call_.result, shape)


def _check_same_elements(call_: Call) -> None:
    """Refuse arrays whose elements DuckDB does not compare as PostgreSQL does."""
    items = [element(value.type) or value.type for value in call_.values]
    if len(items) < 2 or items[0] != items[1]:
        return
    shapes = {value.shape for value in call_.values}
    if items[0] in (BPCHAR, JSON, JSONB) or (
        items[0] == NUMERIC and (None in shapes or len(shapes) > 1)
    ):
        raise refused(f"{call_.name} of {type_name(call_.values[0].type)}")


def python(name: str, call_: Call) -> Value:
    """Compile a call of a Python function (``fmgr``)."""
    if call_.result in (INTERVAL, TIMESTAMPTZ) and not all(map(_is_finite, call_.nodes)):
        raise refused(f"a value of type {type_name(call_.result)} from a number without limits")
    cells = "".join(f", {argument(value)}" for value in call_.values)
    item = element(call_.result)
    sql = f"{'pg_texts' if item else _RESULTS.get(call_.result, 'pg_text')}('{name}'{cells})"
    match call_.result:
        case int(oid) if oid in FLOATS | INTEGERS - {INT8} or (item and item not in STRINGS):
            sql = f"CAST({sql} AS {call_.held})"
        case int(oid) if oid == DATE:
            sql = f"CAST(DATE '1970-01-01' + CAST({sql} AS INTEGER) AS DATE)"
        case int(oid) if oid == TIMESTAMP:
            sql = f"make_timestamp({sql})"
        case int(oid) if oid == TIMESTAMPTZ:
            sql = f"make_timestamptz({sql})"
    return Value(sql, call_.result)


def computed(oid: int, nodes: Sequence[Const], result: int) -> Const | None:
    """Return the value of a Python function of constants; None if it has none, or fails."""
    row = rows().get(oid)
    if row is None or not row.expression.startswith("@"):
        return None
    function = PYTHON[row.expression[1:] or row.name]
    try:
        arguments = [_value(node.text or "", node.type) for node in nodes]
        if None in arguments or (function.size and function.size(*arguments) > _LONGEST_MADE):
            return None
        value = function.call(*arguments)
    except Exception:  # whatever it is, a row that evaluates the call will tell
        return None
    return Const(result, None if value is None else _shown(value, result))


def _value(text: str, oid: int) -> object:
    """Return a constant as Python functions take it; None for infinite dates."""
    if oid in INTEGERS:
        return int(text)
    if oid in FLOATS:
        return float(text)
    if oid == BOOL:
        return text == "t"
    if oid == BYTEA:
        return bytes.fromhex(text[2:])
    if oid == DATE:
        return parse_date(text.encode())
    if oid in MOMENTS:
        return parse_timestamp(text.encode(), zone=oid == TIMESTAMPTZ)
    return split_array(text) if element(oid) in STRINGS else None if element(oid) else text


def _shown(value: Any, oid: int) -> str:
    if oid == BOOL:
        return "t" if value else "f"
    if oid == BYTEA:
        return f"\\x{value.hex()}"
    if oid == DATE:
        return print_date(value)
    if oid in MOMENTS:
        return print_timestamp(value, zone=oid == TIMESTAMPTZ)
    if oid in FLOATS:
        return str(PYTHON[f"{pg_types()[oid].name}out"].call(value))
    return join_array(value) if element(oid) else str(value)


def argument(value: Value) -> str:
    """Return a value as Python functions take it."""
    if value.type == NUMERIC:
        return as_text(value)
    if element(value.type) == NUMERIC:
        return list_text(value)
    _check_finite(value)
    if value.type == DATE:
        return f"CAST(({value.sql} - DATE '1970-01-01') AS BIGINT)"
    return f"epoch_us({value.sql})" if value.type in MOMENTS else value.sql


def _check_finite(*values: Value) -> None:
    """Refuse dates and intervals that may be infinite: DuckDB and Python count with them."""
    for value in values:
        if value.type in MOMENTS | {INTERVAL} and may_be_infinite(value.sql):
            raise refused(f"arithmetic with infinite values of type {type_name(value.type)}")


def _is_finite(node: Node) -> bool:
    """Tell whether an argument is surely neither an infinite float nor NaN."""
    if node.type != FLOAT8:
        return True
    inner = node.arguments[0] if isinstance(node, FuncExpr) and is_cast(node) else node
    constant = isinstance(inner, Const) and isfinite(float(inner.text or 0))
    return inner.type in INTEGERS or constant


# Comparisons, which are found by the operator's name


def compare(name: str, left: Value, right: Value) -> Value:
    """Compile ``=``, ``<`` and so on, and ``IS DISTINCT FROM``."""
    if not _comparable_types(left.type, right.type):
        raise refused_operator(name, left.type, right.type)
    first, second = comparable(left, right)
    if name not in _ORDERS and is_enum(left.type):
        first, second = left.sql, right.sql
    return Value(f"({first} {name} {second})", BOOL, None, left.fails or right.fails)


def _comparable_types(left: int, right: int) -> bool:
    if element(left) and element(right):
        listed = element(left) in LISTED
        return left == right and listed and _comparable_types(element(left), element(right))
    pair = {left, right}
    if pair <= INTEGERS or pair <= FLOATS or pair <= MOMENTS or pair <= _TEXTS:
        return True
    return left == right and (left in _COMPARED or left in DUCKDB or is_enum(left))


def refused_operator(name: str, left: int, right: int) -> Exception:
    """Return the error for an unsupported operator."""
    return refused(f"operator {type_name(left)} {name} {type_name(right)}")


def operator(
    name: str,
    oid: int,
    values: Sequence[Value],
    nodes: Sequence[Node],
    result: int,
    *,
    catalog: bool = False,
) -> Value:
    """Compile an operator. ``oid``: its function. Raises FeatureNotSupported."""
    if name in COMPARISONS and result == BOOL:
        return compare(name, *values)
    made = call(oid, Call("", values, nodes, result), catalog=catalog)
    if made is None and len(values) == 1:
        raise refused(f"operator {name} {type_name(values[0].type)}")
    if made is None:
        raise refused_operator(name, values[0].type, values[1].type)
    return made


# Texts


def _integer(node: Node) -> int | None:
    known = isinstance(node, Const) and node.text is not None and node.type in INTEGERS
    return int(node.text or "") if known else None  # type: ignore[attr-defined]


def _substring(call_: Call) -> Value:
    start, length = map(_integer, call_.nodes[1:])
    if start is not None and length is not None and start > 0 <= length:
        return Value(f"substring({', '.join(call_.sql)})", call_.result)
    return replace(python("substring", call_), fails=True)


def _joined_any(call_: Call) -> Value:
    texts = [value if value.type in _TEXTS else to_text(value) for value in call_.values]
    return Value(f"({' || '.join(value.sql for value in texts)})", TEXT)


def _match(call_: Call) -> Value | None:
    """Compile LIKE and regular expressions. Patterns of the latter must be constants, because one
    that the engines read differently is refused before any row is read."""
    constant = isinstance(call_.nodes[1], Const)
    return _match_by_row(call_) if constant or "reg" not in call_.name else None


def _match_by_row(call_: Call) -> Value | None:
    matched = _MATCH.fullmatch(call_.name)
    assert matched is not None
    insensitive, kind = bool(matched[1]), matched[2].replace("regexp_like", "regexeq")
    text, pattern = call_.sql
    node, fails = call_.nodes[1], False
    if isinstance(node, Const) and node.text is None:
        return Value("CAST(NULL AS BOOLEAN)", BOOL)
    if isinstance(node, Const) and not ("like" in kind and is_unfinished(node.text or "")):
        make = like if "like" in kind else regular_expression
        sql = make(text, node.text or "", insensitive)
    else:
        fails = True
        if insensitive:
            text = f"translate({text}, {UPPER}, {LOWER})"
        if "like" in kind:
            pattern = f"translate({pattern}, {UPPER}, {LOWER})" if insensitive else pattern
            sql = f"pg_bool('like', {text}, {pattern})"
        else:
            reader = "lower_pattern" if insensitive else "common_pattern"
            sql = f"regexp_matches({text}, pg_text('{reader}', {pattern}), 's')"
    return Value(
        f"(NOT {sql})" if kind.endswith("ne") or kind[0] == "n" else sql, BOOL, None, fails
    )


def _regexp_replace(call_: Call) -> Value | None:
    """Compile regexp_replace with constant patterns that both engines read alike."""
    constants = [node.text for node in call_.nodes[1:] if isinstance(node, Const)]
    if len(constants) < len(call_.nodes) - 1 or None in constants:
        return None
    pattern, by, *rest = map(str, constants)
    flags = rest[0] if rest else ""
    sql = regular_replacement(call_.sql[0], pattern, by, flags)
    return Value(sql, call_.result, None, "g" in flags)


def _regexp(call_: Call) -> Value | None:
    """Compile a function that returns matches of a constant pattern."""
    node = call_.nodes[1]
    if not isinstance(node, Const) or node.text is None:
        return None
    sql = regular_match(call_.name, call_.sql[0], node.text)
    return Value(sql, call_.result, None, True)


def _narrowed(call_: Call, finite: str, other: str) -> Value:
    """Cast to a float; overflow and underflow are errors."""
    held = call_.held
    done = f"CAST({call_.sql[0]} AS {held})"
    checks = (
        f"WHEN isinf({done}) AND {finite} THEN {raises(*_OVERFLOW, held)}"
        f" WHEN {done} = 0 AND {other} THEN {raises(*_UNDERFLOW, held)}"
    )
    return Value(f"CASE {checks} ELSE {done} END", call_.result, None, True)


# Numerics: in DuckDB's decimals if every result fits, otherwise in Python


def _numeric(call_: Call) -> Value:
    left, right = (v if v.type == NUMERIC else _decimal(Call("", [v], (), 0)) for v in call_.values)
    name = _NUMERIC.get(call_.name.rpartition("_")[2], "+")
    if left.shape is not None and right.shape is not None:
        found = _exact(name, left, right)
        if found is not None:
            return found
    function = {"+": "numeric_add", "-": "numeric_sub", "*": "numeric_mul"}[name]
    return replace(python(function, replace(call_, values=(left, right))), fails=True)


def _exact(name: str, left: Value, right: Value) -> Value | None:
    """Compute in DuckDB's decimals if every result fits into their 38 digits."""
    assert left.shape is not None and right.shape is not None
    (p1, s1), (p2, s2) = left.shape, right.shape
    scale = s1 + s2 if name == "*" else max(s1, s2)
    shape: Shape = (p1 + p2 if name == "*" else max(p1 - s1, p2 - s2) + 1 + scale, scale)
    if shape[0] > MAX_PRECISION:
        return None
    held = f"DECIMAL({shape[0]},{shape[1]})"
    if name == "*":
        # DuckDB multiplies two decimals of up to 18 digits in 64 bits, even if the product does not
        # fit.
        wide = f"CAST({left.sql} AS DECIMAL({max(p1, _WIDE_DIGITS)},{s1}))"
        first = wide if shape[0] >= _WIDE_DIGITS > max(p1, p2) else left.sql
        return Value(f"CAST(({first} * {right.sql}) AS {held})", NUMERIC, shape)
    sql = f"CAST((CAST({left.sql} AS {held}) {name} CAST({right.sql} AS {held})) AS {held})"
    return Value(sql, NUMERIC, shape)


def _ratio(call_: Call) -> Value:
    divisor = call_.nodes[1]
    by_zero = not isinstance(divisor, Const) or not Decimal(divisor.text or 0)
    return replace(python("numeric_div", call_), fails=by_zero)


def _numeric_sign(call_: Call) -> Value:
    name = "abs" if "abs" in call_.name else "uminus"
    if call_.values[0].shape is None:
        return python(f"numeric_{name}", call_)
    sql = f"({'abs' if name == 'abs' else '- '}({call_.sql[0]}))"
    return Value(sql, NUMERIC, call_.values[0].shape)


def _integral(call_: Call) -> Value:
    name, shape = call_.name.removesuffix("ing"), call_.values[0].shape
    if shape is None or shape[0] - shape[1] >= MAX_PRECISION - 1:
        return python(f"numeric_{name}", call_)
    made = (shape[0] - shape[1] + 1, 0)
    return Value(f"CAST({name}({call_.sql[0]}) AS DECIMAL({made[0]},0))", NUMERIC, made)


def _rounded(call_: Call) -> Value:
    """Round to a number of digits after the point, by default 0."""
    value = call_.values[0]
    scale = _integer(call_.nodes[1]) if len(call_.nodes) > 1 else 0
    if value.shape is not None and scale is not None and 0 <= scale <= _MAX_SCALE:
        precision, has = value.shape
        shape = (precision - has + 1 + scale, scale)
        if shape[0] <= MAX_PRECISION:
            rounded = f"{call_.name}({value.sql}, {scale})" if scale < has else value.sql
            return Value(f"CAST({rounded} AS DECIMAL({shape[0]},{shape[1]}))", NUMERIC, shape)
    return replace(python(f"numeric_{call_.name}", call_), fails=True)


def _decimal(call_: Call) -> Value:
    """Return an integer as a numeric."""
    shape = integer_shape(call_.values[0].type)
    return Value(f"CAST({call_.sql[0]} AS DECIMAL({shape[0]},0))", NUMERIC, shape)


def _integer_of_numeric(call_: Call) -> Value:
    if call_.values[0].shape is None:
        return replace(python(f"numeric_{call_.name}", call_), fails=True)
    return Value(f"CAST({call_.sql[0]} AS {call_.held})", call_.result, None, True)


def _float_of_numeric(call_: Call) -> Value:
    (value,) = call_.values
    if value.shape is not None:
        return Value(f"CAST(CAST({value.sql} AS VARCHAR) AS {call_.held})", call_.result)
    finite = f"{value.sql} NOT IN ('Infinity', '-Infinity')"
    return _narrowed(call_, finite, f"regexp_matches({value.sql}, '[1-9]')")


# Dates and timestamps. Every session's time zone is UTC.


def _days(call_: Call) -> Value:
    dates, numbers = sorted(
        zip(call_.values, call_.nodes, strict=True), key=lambda v: v[0].type != DATE
    )
    _check_finite(dates[0])
    name = "-" if call_.name == "date_mii" else "+"
    sql = f"({dates[0].sql} {name} CAST({numbers[0].sql} AS INTEGER))"
    days = _integer(numbers[1])
    fails = dates[0].fails or days is None or abs(days) > _SMALL_DAYS
    if fails:
        sql = (
            f"CASE WHEN {sql} NOT BETWEEN {_FIRST_DATE} AND {_LAST_DATE}"
            f" THEN {raises('22008', 'date out of range', 'DATE')} ELSE {sql} END"
        )
    return Value(sql, DATE, None, fails)


def _days_between(call_: Call) -> Value:
    _check_finite(*call_.values)
    return Value(f"CAST(({' - '.join(call_.sql)}) AS INTEGER)", INT4)


def _field(call_: Call) -> Value:
    """Compile extract() and date_part() of a date or timestamp."""
    moment, node = call_.values[1], call_.nodes[0]
    _check_finite(moment)
    field = (node.text or "").lower() if isinstance(node, Const) else ""
    local = moment.sql if moment.type == DATE else in_utc(moment)
    extract = call_.name == "extract"
    if field in _FIELDS or (field in _CLOCK_FIELDS and moment.type != DATE):
        part = f"extract({field} FROM {local})"
        # The year before 1 is 0 for DuckDB, and -1 (1 BC) for PostgreSQL.
        part = f"({part} - CAST({part} < 1 AS INTEGER))" if field == "year" else part
        if extract:
            return Value(f"CAST({part} AS DECIMAL(10,0))", NUMERIC, (10, 0))
        return Value(f"CAST({part} AS DOUBLE)", call_.result)
    if extract and field == "epoch" and moment.type != DATE:
        sql = f"(CAST(epoch_us({moment.sql}) AS DECIMAL(20,0)) * 0.000001)"
        return Value(f"CAST({sql} AS DECIMAL(20,6))", NUMERIC, (20, 6))
    if not extract and moment.type == DATE:
        moment = Value(in_utc(moment), TIMESTAMP)
    kind = pg_types()[moment.type].name
    name = f"extract_{kind}" if extract else f"{kind}_part"
    return replace(python(name, replace(call_, values=(call_.values[0], moment))), fails=True)


def _unit(call_: Call) -> Value:
    """Compile date_trunc()."""
    moment, node = call_.values[1], call_.nodes[0]
    _check_finite(moment)
    field = (node.text or "").lower() if isinstance(node, Const) else ""
    if moment.type == TIMESTAMP and field in _TRUNCATED:
        return Value(f"CAST(date_trunc('{field}', {moment.sql}) AS TIMESTAMP)", TIMESTAMP)
    return replace(python(f"{pg_types()[moment.type].name}_trunc", call_), fails=True)


def _moved(call_: Call) -> Value:
    """Compile a moment plus or minus an interval, which is mostly a constant."""
    at = 0 if call_.values[0].type in MOMENTS else 1
    moment, by = call_.values[at], call_.nodes[1 - at]
    _check_finite(moment)
    found = _moved_by("-" if "_mi_" in call_.name else "+", moment, by, call_.result)
    name = call_.name.replace("timestamptz", "timestamp")
    return found or replace(python(name, call_), fails=True)


def _moved_by(name: str, moment: Value, interval: Node, result: int) -> Value | None:
    """Add an interval to a date or timestamp, or subtract it (``name``: ``+`` or ``-``).

    Returns None for an interval that is not a constant, or is longer than a thousand years: from
    the years 1 to 9999, the result must stay in DuckDB's range.
    """
    if not isinstance(interval, Const) or interval.text is None:
        return None
    constant = read_interval(interval.text)
    by = constant.negated() if name == "-" else constant
    if max(abs(by.months) / _MAX_MONTHS, abs(by.days) / _MAX_DAYS) > 1 or (
        abs(by.microseconds) > _MAX_DAYS * DAY
    ):
        return None
    start = in_utc(moment)
    sql = (
        f"({start} + to_months({by.months}) + to_days({by.days})"
        f" + to_microseconds({by.microseconds}))"
    )
    if result == TIMESTAMPTZ:
        sql = f"make_timestamptz(epoch_us{sql})"
    return Value(sql, result, None, moment.fails)


def _midnight(call_: Call) -> Value:
    (value,) = call_.values
    if value.fails:
        return Value(f"({value.sql} + TIME '00:00:00')", TIMESTAMP, None, True)
    return Value(f"CAST({value.sql} AS TIMESTAMP)", TIMESTAMP, None, True)


def _local(call_: Call) -> Value:
    return Value(in_utc(call_.values[0]), TIMESTAMP)


def _local_date(call_: Call) -> Value:
    return Value(f"CAST({in_utc(call_.values[0])} AS DATE)", DATE)


def _zoned(call_: Call) -> Value:
    (sql,) = call_.sql
    return Value(
        f"CASE WHEN isinf({sql}) THEN CAST(CAST({sql} AS VARCHAR) AS TIMESTAMPTZ)"
        f" ELSE make_timestamptz(epoch_us({sql})) END",
        TIMESTAMPTZ,
    )


def _at_time_zone(call_: Call) -> Value | None:
    """Compile AT TIME ZONE 'UTC'; other zones are not known."""
    zone, moment = call_.nodes[0], call_.values[1]
    if not isinstance(zone, Const) or (zone.text or "").upper() not in _UTC:
        return None
    return (_local if moment.type == TIMESTAMPTZ else _zoned)(replace(call_, values=[moment]))


def _zoned_midnight(call_: Call) -> Value:
    return replace(_zoned(replace(call_, values=[_midnight(call_)])), fails=True)


# Arrays


def _list(call_: Call) -> Value:
    values = list(call_.values)
    if element(call_.result) == NUMERIC and len({value.shape for value in values}) > 1:
        values = [
            replace(value, sql=list_text(value) if element(value.type) else as_text(value))
            for value in values
        ]
        values = [replace(value, shape=None) for value in values]
    name = {"append": "append", "prepend": "prepend", "cat": "concat"}[call_.name[6:]]
    sql = f"list_{name}({', '.join(value.sql for value in values)})"
    if name == "concat":
        known = " OR ".join(f"{value.sql} IS NOT NULL" for value in values)
        sql = f"CASE WHEN {known} THEN {sql} END"
    return Value(sql, call_.result, values[0].shape)


def _concat(call_: Call) -> Value | None:
    separator = ["''"] if call_.name == "concat" else call_.sql[:1]
    values = call_.values[len(call_.sql) and call_.name == "concat_ws" :]
    if any(element(value.type) for value in values):
        return None
    items = f"CAST([{', '.join(map(printed, values))}] AS VARCHAR[])"
    return Value(f"pg_text('concat_ws', {separator[0]}, {items})", TEXT)


def _array_to_string(call_: Call) -> Value:
    items = Value(texts(call_.values[0]), TEXT_ARRAY)
    name = "array_to_string" if len(call_.values) == 2 else "array_to_string_null"
    return python(name, replace(call_, values=[items, *call_.values[1:]]))


# Casts of a type to itself with a modifier, and through text


def _length(call_: Call) -> Value | None:
    """Apply an explicit length coercion: cut strings, round numerics."""
    value, typmod = call_.values[0], call_.typmod
    if len(call_.values) > 1:  # called by its name
        return None
    if value.type == VARCHAR:
        return Value(f"left({value.sql}, {length_of(typmod)})", VARCHAR)
    if value.type == BPCHAR:
        length = length_of(typmod)
        if length <= _LONGEST_MADE:
            return Value(f"rpad({value.sql}, {length}, ' ')", BPCHAR)
        return Value(f"pg_text('bpchar', {value.sql}, {length})", BPCHAR, None, True)
    shape, modifiers = precision_and_scale(typmod), numeric_modifiers(typmod)
    assert modifiers is not None
    if value.shape is not None and shape is not None and 0 <= modifiers[1] <= modifiers[0]:
        return Value(f"CAST({value.sql} AS DECIMAL({shape[0]},{shape[1]}))", NUMERIC, shape, True)
    sql = f"pg_text('numeric', {as_text(value)}, {modifiers[0]}, {modifiers[1]})"
    return Value(sql, NUMERIC, None, True)


def fitted(value: Value, typmod: int) -> Value:
    """Fit an assigned string: cut off blanks; other text that is too long raises 22001."""
    most = length_of(typmod)
    name = "character" if value.type == BPCHAR else "character varying"
    kept = f"left({value.sql}, {most})"
    refusal = raises("22001", f"value too long for type {name}({most})", "VARCHAR")
    sql = (
        f"CASE WHEN {value.sql} IS NULL OR length({value.sql}) <= {most} THEN {value.sql}"
        f" WHEN length(rtrim({value.sql}, ' ')) <= {most} THEN {kept} ELSE {refusal} END"
    )
    if value.type == BPCHAR:
        sql = f"rpad({sql}, {most}, ' ')"
    return Value(sql, value.type, None, True)


def printed(value: Value) -> str:
    """Return SQL for the text of the type's output function."""
    oid, sql = value.type, value.sql
    if oid == BOOL:
        return f"CASE WHEN {sql} THEN 't' WHEN NOT {sql} THEN 'f' END"
    if oid == NUMERIC:
        return as_text(value)
    if oid in INTEGERS:
        return f"CAST({sql} AS VARCHAR)"
    if oid in FLOATS:
        return f"pg_text('{pg_types()[oid].name}out', {sql})"
    if oid in MOMENTS:
        return moment_text(sql, oid)
    if oid == BYTEA:
        return f"('\\x' || lower(hex({sql})))"
    return f"pg_text('array_out', {texts(value)})" if element(oid) in LISTED else sql


def moment_text(sql: str, oid: int) -> str:
    """Return SQL that prints a date or timestamp, in UTC."""
    text = f"CAST({sql} AS VARCHAR)"
    if oid == TIMESTAMPTZ:
        text = (
            f"CASE WHEN isinf({sql}) THEN CAST(CAST({sql} AS TIMESTAMP) AS VARCHAR)"
            f" ELSE CAST(make_timestamp(epoch_us({sql})) AS VARCHAR) || '+00' END"
        )
    era = f"CASE WHEN {text} LIKE '% (BC)%' THEN ' BC' ELSE '' END"
    return f"(replace({text}, ' (BC)', '') || {era})"


def table_column(value: Value, column: str) -> str:
    """Return SQL that prints a result column as text; "" if Python can hold all of its values."""
    item = element(value.type)
    if (item or value.type) not in MOMENTS:
        return ""
    if item:
        return f"list_transform({column}, lambda {EACH}: {moment_text(EACH, item)})"
    return moment_text(column, value.type)


def texts(value: Value) -> str:
    """Return SQL for an array of the texts of an array's elements."""
    item = element(value.type)
    if item == NUMERIC:
        return list_text(value)
    if item in STRINGS | INTEGERS:
        return f"CAST({value.sql} AS VARCHAR[])"
    return f"list_transform({value.sql}, lambda {EACH}: {printed(Value(EACH, item))})"


def to_text(value: Value, target: int = TEXT) -> Value:
    """Cast to a string. Raises FeatureNotSupported."""
    sql = printed(value)
    if value.type == BOOL:
        sql = f"CASE WHEN {value.sql} THEN 'true' WHEN NOT {value.sql} THEN 'false' END"
    return Value(sql, target, None, value.fails)


def through_text(value: Value, target: int, reads: int = 0) -> Value:
    """Compile CoerceViaIO: to a string, or from a string by the type's input function.

    ``reads``: the type that reads the text, if values are held in another type.
    """
    if target == NAME and not reads:
        return Value(f"pg_text('name', {printed(value)})", target, None, value.fails)
    if target in STRINGS and not reads:
        return to_text(value, target)
    if is_enum(target):
        return _label(value, target)
    if value.type not in STRINGS:
        raise refused(f"the cast from {type_name(value.type)} to {type_name(target)}")
    item = element(target)
    if item and item not in LISTED:
        raise refused(f"the cast from {type_name(value.type)} to {type_name(target)}")
    name = "pg_texts('array_in'" if item else READS
    read = f"{name}, {value.sql}, {reads or target})"
    if target == BYTEA:
        read = f"unhex(substr({read}, 3))"
    elif target not in STRINGS and (target != NUMERIC):
        read = f"CAST({read} AS {duckdb_type(target, None)})"
    return Value(read, target, None, True)


def element_cast(value: Value, target: int, typmod: int, *, explicit: bool) -> Value:
    """Compile the cast of an array's element. Raises FeatureNotSupported."""
    cast = casts().get((value.type, target))
    if value.type != target:
        binary = cast is not None and cast.method == "b"
        made = call(cast.function, Call("", [value], (), target)) if cast and not binary else None
        value = replace(value, type=target) if binary else made or through_text(value, target)
    if typmod >= 0 and target in STRINGS and not explicit:
        return fitted(value, typmod)
    length = casts().get((target, target)) if typmod >= 0 else None
    made = call(length.function, Call("", [value], (), target, typmod)) if length else value
    if made is None:
        raise refused(f"the cast to {type_name(target)} with this modifier")
    return made


def _precise(call_: Call) -> Value | None:
    """Round a timestamp to so many digits of a second."""
    if len(call_.values) > 1:
        return None
    name = "timestamp_precise"
    digits = Value(str(call_.typmod), INT4)
    return replace(python(name, replace(call_, values=[call_.values[0], digits])), fails=True)


def _label(value: Value, target: int) -> Value:
    """Read an enum's label (enum_in)."""
    labels = ", ".join(map(simple_quote_literal, types()[target].labels)) or "NULL"
    message = simple_quote_literal(f'invalid input value for enum {type_name(target)}: "')
    refusal = f"CAST(error({message} || {value.sql} || '\"') AS VARCHAR)"
    known = f"{value.sql} IS NULL OR {value.sql} IN ({labels})"
    return Value(f"CASE WHEN {known} THEN {value.sql} ELSE {refusal} END", target, None, True)
