"""Compile operators to DuckDB's SQL with PostgreSQL's results and errors.

An operator's name, its operands and its result type give a ``Value``. Where DuckDB differs
(division by zero gives NULL, floats overflow to infinity), the SQL spells out PostgreSQL's rule. An
operator for which that is impossible is refused.
"""

from __future__ import annotations

from typing import Final

from penstock.pgtypes.pg_type import (
    BOOL,
    BPCHAR,
    BYTEA,
    DATE,
    FLOATS,
    INT8,
    INTEGERS,
    NAME,
    NUMERIC,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
)
from penstock.sql.builtin.type_cache import is_enum
from penstock.sql.text.quoting import type_name
from penstock.sql.to_duckdb.duckdb_patterns import like, regular_expression
from penstock.sql.to_duckdb.duckdb_values import (
    DUCKDB,
    MAX_PRECISION,
    STRINGS,
    Shape,
    Value,
    comparable,
    duckdb_type,
    integer_shape,
    refused,
)
from penstock.sql.typed.coercion import element
from penstock.sql.typed.primnodes import Const, Node

_ORDERS: Final = frozenset({"<", "<=", ">", ">="})
COMPARISONS: Final = _ORDERS | {"=", "<>"}
_LIKES: Final = {
    "~~": (False, False),
    "!~~": (True, False),
    "~~*": (False, True),
    "!~~*": (True, True),
}
_REGEXES: Final = {
    "~": (False, False),
    "!~": (True, False),
    "~*": (False, True),
    "!~*": (True, True),
}
_DATES: Final = frozenset({DATE, TIMESTAMP})
_TEXTS: Final = STRINGS - {BPCHAR}
_WIDE_DIGITS: Final = 19
_SMALL_DAYS: Final = 1_000_000
_FIRST_DATE: Final = "DATE '4714-11-24 (BC)'"
_LAST_DATE: Final = "DATE '5874897-12-31'"
_DIVISION: Final = "error('division by zero')"
OVERFLOW: Final = "error('value out of range: overflow')"
_UNDERFLOW: Final = "error('value out of range: underflow')"


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
        by_label = is_enum(element(left))  # enums do not sort by their text
        return left == right and not by_label and _comparable_types(element(left), element(right))
    pair = {left, right}
    if pair <= INTEGERS or pair <= FLOATS or pair <= _DATES or pair <= _TEXTS:
        return True
    return left == right and (left == NUMERIC or left in DUCKDB or is_enum(left))


def refused_operator(name: str, left: int, right: int) -> Exception:
    """Return the error for an unsupported operator."""
    return refused(f"operator {type_name(left)} {name} {type_name(right)}")


def binary(name: str, left: Value, right: Value, result: int, right_node: Node) -> Value:
    """Compile a binary operator. A pattern, in ``right_node``, must be a constant."""
    if name in COMPARISONS:
        return compare(name, left, right)
    if name in _LIKES or name in _REGEXES:
        return _match(name, left, right, right_node)
    pair = {left.type, right.type}
    if name == "||" and pair <= _TEXTS:
        return _both(f"({left.sql} || {right.sql})", left, right, result)
    if name == "||" and len(pair & _TEXTS) == 1 and pair - _TEXTS <= INTEGERS:
        # textanycat and anytextcat cast the other operand to text.
        texts = [f"CAST({value.sql} AS VARCHAR)" for value in (left, right)]
        return _both(f"({' || '.join(texts)})", left, right, result)
    if name == "^@" and pair <= _TEXTS:
        return _both(f"starts_with({left.sql}, {right.sql})", left, right, result)
    if name in ("+", "-", "*", "/", "%"):
        if pair <= INTEGERS:
            return integer_arithmetic(name, left, right, result)
        if pair <= FLOATS and name != "%":
            return _float_arithmetic(name, left, right, result)
        if pair == {NUMERIC}:
            return _numeric_arithmetic(name, left, right)
        if DATE in pair and name in ("+", "-"):
            return _date_arithmetic(name, left, right, result, right_node)
    raise refused_operator(name, left.type, right.type)


def _match(name: str, left: Value, right: Value, pattern: Node) -> Value:
    if left.type not in STRINGS or right.type not in STRINGS:
        raise refused_operator(name, left.type, right.type)
    if not isinstance(pattern, Const):
        raise refused("a pattern that is not a constant")
    if pattern.text is None:
        return Value("CAST(NULL AS BOOLEAN)", BOOL, None, left.fails)
    negated, insensitive = (_LIKES | _REGEXES)[name]
    make = like if name in _LIKES else regular_expression
    sql = make(left.sql, pattern.text, insensitive)
    return Value(f"(NOT {sql})" if negated else sql, BOOL, None, left.fails)


def prefix(name: str, operand: Value) -> Value:
    """Compile ``- x`` or ``+ x``."""
    if name == "+" and (operand.type in INTEGERS | FLOATS or operand.type == NUMERIC):
        return operand
    if name == "-" and (operand.type in INTEGERS | FLOATS or operand.shape is not None):
        if operand.type in INTEGERS:
            return Value(_checked("-", "0", operand.sql, operand.type), operand.type, None, True)
        return Value(f"(- {operand.sql})", operand.type, operand.shape, operand.fails)
    raise refused(f"operator {name} {type_name(operand.type)}")


def _both(sql: str, left: Value, right: Value, result: int) -> Value:
    return Value(sql, result, None, left.fails or right.fails)


def integer_arithmetic(name: str, left: Value, right: Value, result: int) -> Value:
    """Compile arithmetic of integers. In both systems overflow is an error, division truncates."""
    type_ = duckdb_type(result, None)
    if name in ("+", "-", "*"):
        return Value(_checked(name, left.sql, right.sql, result), result, None, True)
    a, b = f"CAST({left.sql} AS {type_})", f"CAST({right.sql} AS {type_})"
    by_zero = f"WHEN {b} = 0 AND {a} IS NOT NULL THEN CAST({_DIVISION} AS {type_})"
    if name == "/":
        return Value(f"CASE {by_zero} ELSE {a} // {b} END", result, None, True)
    minus_one = f"WHEN {b} = -1 AND {a} IS NOT NULL THEN CAST(0 AS {type_})"
    return Value(f"CASE {by_zero} {minus_one} ELSE {a} % {b} END", result, None, True)


def _checked(name: str, left: str, right: str, result: int) -> str:
    """Compute in a wider type and cast back.

    In a comparison, DuckDB's optimizer moves constants of plain sums and differences to the other
    side, and an overflow is lost.
    """
    wide = "HUGEINT" if result == INT8 else "BIGINT"
    sql = f"(CAST({left} AS {wide}) {name} CAST({right} AS {wide}))"
    return f"CAST({sql} AS {duckdb_type(result, None)})"


def _float_arithmetic(name: str, left: Value, right: Value, result: int) -> Value:
    """Compile float8_pl, float8_mul, float8_div: finite operands must not give infinity."""
    type_ = duckdb_type(result, None)
    a, b = f"CAST({left.sql} AS {type_})", f"CAST({right.sql} AS {type_})"
    done = f"({a} {name} {b})"
    checks = []
    if name == "/":
        checks.append(f"WHEN {b} = 0 AND NOT isnan({a}) THEN CAST({_DIVISION} AS {type_})")
        checks.append(f"WHEN isinf({done}) AND NOT isinf({a}) THEN CAST({OVERFLOW} AS {type_})")
        lost = f"{done} = 0 AND {a} <> 0 AND NOT isinf({b})"
    else:
        finite = f"NOT isinf({a}) AND NOT isinf({b})"
        checks.append(f"WHEN isinf({done}) AND {finite} THEN CAST({OVERFLOW} AS {type_})")
        lost = f"{done} = 0 AND {a} <> 0 AND {b} <> 0"
    if name in ("*", "/"):
        checks.append(f"WHEN {lost} THEN CAST({_UNDERFLOW} AS {type_})")
    return Value(f"CASE {' '.join(checks)} ELSE {done} END", result, None, True)


def _numeric_arithmetic(name: str, left: Value, right: Value) -> Value:
    """Compile exact arithmetic if every result fits into DuckDB's 38 digits."""
    if left.shape is None or right.shape is None:
        raise refused(f"operator {name} of numeric without precision")
    (p1, s1), (p2, s2) = left.shape, right.shape
    if name in ("+", "-"):
        scale = max(s1, s2)
        shape: Shape = (max(p1 - s1, p2 - s2) + 1 + scale, scale)
    elif name == "*":
        shape = (p1 + p2, s1 + s2)
    else:
        raise refused(f"operator {name} of numeric")
    if shape[0] > MAX_PRECISION:
        raise refused(f"operator {name} with a result of more than {MAX_PRECISION} digits")
    type_ = f"DECIMAL({shape[0]},{shape[1]})"
    if name == "*":
        # DuckDB multiplies two decimals of up to 18 digits in 64 bits, even if the product does not
        # fit.
        wide = f"CAST({left.sql} AS DECIMAL({max(p1, _WIDE_DIGITS)},{s1}))"
        first = wide if shape[0] >= _WIDE_DIGITS > max(p1, p2) else left.sql
        sql = f"CAST(({first} * {right.sql}) AS {type_})"
    else:
        sql = f"CAST((CAST({left.sql} AS {type_}) {name} CAST({right.sql} AS {type_})) AS {type_})"
    return Value(sql, NUMERIC, shape, left.fails or right.fails)


def _date_arithmetic(name: str, left: Value, right: Value, result: int, right_node: Node) -> Value:
    infinite = isinstance(right_node, Const) and "infinity" in (right_node.text or "")
    if infinite or "infinity" in left.sql:
        raise refused("arithmetic with infinite dates")
    pair = (left.type, right.type)
    fails = left.fails or right.fails or not _small(right_node)
    if pair == (DATE, DATE) and name == "-":
        sql = f"CAST(({left.sql} - {right.sql}) AS INTEGER)"
    elif {left.type, right.type} - {DATE} <= INTEGERS and (name == "+" or left.type == DATE):
        if pair == (DATE, DATE):
            raise refused_operator(name, left.type, right.type)
        first, second = (left, right) if left.type == DATE else (right, left)
        sql = f"({first.sql} {name} CAST({second.sql} AS INTEGER))"
        if fails:
            sql = (
                f"CASE WHEN {sql} NOT BETWEEN {_FIRST_DATE} AND {_LAST_DATE}"
                f" THEN CAST(error('date out of range') AS DATE) ELSE {sql} END"
            )
    else:
        raise refused_operator(name, left.type, right.type)
    return Value(sql, result, None, fails)


def _small(node: Node) -> bool:
    """Tell whether the number of days, added to any date of the lake, stays in range."""
    if not isinstance(node, Const) or node.text is None or node.type not in INTEGERS:
        return False
    return abs(int(node.text)) <= _SMALL_DAYS


def as_decimal(value: Value) -> Value:
    """Return an integer as a numeric."""
    shape = integer_shape(value.type)
    return Value(f"CAST({value.sql} AS DECIMAL({shape[0]},0))", NUMERIC, shape, value.fails)


PLAIN: Final = (
    INTEGERS
    | FLOATS
    | _TEXTS
    | {
        DATE,
        TIMESTAMP,
        TIMESTAMPTZ,
        UUID,
        BYTEA,
        NAME,
        BOOL,
    }
)
"""Types whose values DuckDB compares as PostgreSQL does."""
