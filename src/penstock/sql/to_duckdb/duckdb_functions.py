"""Compile PostgreSQL's functions and function casts to DuckDB's SQL (pg_proc.dat).

A function's name, its arguments (as values and as nodes) and its result type give a ``Value``. A
function that this file does not know is refused, even if it is immutable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.identifiers import simple_quote_literal
from penstock.pgtypes.numeric import precision_and_scale
from penstock.pgtypes.pg_type import (
    BOOL,
    BPCHAR,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    FLOATS,
    INT4,
    INTEGERS,
    NAME,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    VARCHAR,
)
from penstock.pgtypes.type_names import length_of, numeric_modifiers
from penstock.sql.builtin.type_cache import is_enum, types
from penstock.sql.text.quoting import type_name
from penstock.sql.to_duckdb.duckdb_errors import NO_BYTEA, NO_DIGIT, ODD_DIGITS
from penstock.sql.to_duckdb.duckdb_operators import as_decimal, integer_arithmetic
from penstock.sql.to_duckdb.duckdb_patterns import ascii_lower, ascii_upper
from penstock.sql.to_duckdb.duckdb_values import (
    MAX_PRECISION,
    STRINGS,
    Value,
    as_text,
    duckdb_type,
    refused,
)
from penstock.sql.to_duckdb.interval_arithmetic import MOMENTS, in_utc
from penstock.sql.typed.coercion import element
from penstock.sql.typed.primnodes import Const, FuncExpr, Node, Var, children

_TRIMS: Final = {"btrim": "trim", "ltrim": "ltrim", "rtrim": "rtrim"}
_DATE_FIELDS: Final = frozenset({"year", "month", "day", "quarter", "week", "dow", "isodow", "doy"})
_TIME_FIELDS: Final = _DATE_FIELDS | {"hour", "minute"}
_TRUNCATED: Final = frozenset(
    {"year", "quarter", "month", "week", "day", "hour", "minute", "second"}
)
_EXTRACTED_DIGITS: Final = 10
_HEX: Final = "([0-9A-Fa-f][0-9A-Fa-f])*"
_BYTES: Final = r"[^\\]+|\\\\|\\[0-3][0-7][0-7]"
_EPOCH: Final = "DECIMAL(20,0)"
_MAX_SCALE: Final = 30
_LIMIT: Final = 1_000_000
_LONGEST_MADE: Final = 10_000
"""The most characters of a padded text. DuckDB builds 2048 of them outside its memory limit."""
_COLUMN_LENGTH: Final = 100
"""The length that is assumed for a column's text in a call that makes a longer text of it."""


def function(name: str, values: Sequence[Value], nodes: Sequence[Node], result: int) -> Value:
    """Compile a call. Raises FeatureNotSupported if DuckDB's result might differ."""
    types = tuple(value.type for value in values)
    fails = any(value.fails for value in values)
    sql = _text(name, values, nodes) if types and types[0] in STRINGS else None
    sql = sql or _other(name, values, nodes)
    if sql is not None:
        return Value(sql, result, None, fails)
    found = _number(name, values, nodes, result) or _calendar(name, values, nodes, result)
    if found is None:
        shown = ", ".join(type_name(oid) for oid in types)
        raise refused(f"function {name}({shown})")
    return found


def _text(name: str, values: Sequence[Value], nodes: Sequence[Node]) -> str | None:
    first = values[0].sql
    trimmed = f"rtrim({first}, ' ')" if values[0].type == BPCHAR else first
    numbers = [_integer(node) for node in nodes[1:]]
    match name, len(values):
        case "lower", 1:
            return ascii_lower(first)
        case "upper", 1:
            return ascii_upper(first)
        case (("length" | "char_length" | "character_length"), 1):
            return f"CAST(length({trimmed}) AS INTEGER)"
        case "octet_length", 1:
            return f"CAST(strlen({first}) AS INTEGER)"
        case (("btrim" | "ltrim" | "rtrim"), 1):
            return f"{_TRIMS[name]}({first}, ' ')"
        case (("btrim" | "ltrim" | "rtrim"), 2):
            return f"{_TRIMS[name]}({first}, {values[1].sql})"
        case (("left" | "right"), 2) if numbers[0] is not None:
            return f"{name}({first}, {numbers[0]})"
        case (("substr" | "substring"), 2) if numbers[0] is not None and numbers[0] >= 1:
            return f"substring({first}, {numbers[0]})"
        case (("substr" | "substring"), 3) if None not in numbers:
            start, length = (number or 0 for number in numbers)
            return f"substring({first}, {start}, {length})" if start > 0 <= length else None
        case "replace", 3 if _length_made(nodes[0]) * _length_made(nodes[2]) <= _LIMIT:
            return f"replace({first}, {values[1].sql}, {values[2].sql})"
        case (("strpos" | "position"), 2):
            return f"CAST(instr({first}, {values[1].sql}) AS INTEGER)"
        case "md5", 1:
            return f"md5({first})"
        case "repeat", 2 if (
            numbers[0] is not None and _length_made(nodes[0]) * numbers[0] <= _LIMIT
        ):
            return f"repeat({first}, {max(numbers[0], 0)})"
        case (("lpad" | "rpad"), 2) if numbers[0] is not None and numbers[0] <= _LONGEST_MADE:
            return f"{name}({first}, {max(numbers[0], 0)}, ' ')"
        case "starts_with", 2:
            return f"starts_with({first}, {values[1].sql})"
    return None


def _length_made(node: Node) -> int:
    """Return an upper limit of the length of an expression's text, in characters."""
    if isinstance(node, Const):
        return len(node.text or "")
    if isinstance(node, Var):
        return _COLUMN_LENGTH
    lengths = [_length_made(child) for child in children(node)]
    if isinstance(node, FuncExpr) and node.name in ("repeat", "lpad", "rpad"):
        count = _integer(node.arguments[1]) or 0
        return max(count, 0) * (lengths[0] if node.name == "repeat" else 1)
    if isinstance(node, FuncExpr) and node.name == "replace":
        return lengths[0] * max(lengths[2], 1)
    return sum(lengths)


def _integer(node: Node) -> int | None:
    """Return an integer constant that means the same in DuckDB and PostgreSQL, else None."""
    if not isinstance(node, Const) or node.text is None or node.type != INT4:
        return None
    number = int(node.text)
    return number if abs(number) <= _LIMIT else None


def _other(name: str, values: Sequence[Value], nodes: Sequence[Node]) -> str | None:
    if len(values) not in (1, 2):
        return None
    first = values[0]
    if name in ("length", "octet_length") and first.type == BYTEA and len(values) == 1:
        return f"CAST(octet_length({first.sql}) AS INTEGER)"
    if name == "md5" and first.type == BYTEA and len(values) == 1:
        return f"md5({first.sql})"
    if name == "sha256" and len(values) == 1:
        return f"unhex(sha256({first.sql}))"
    if name == "cardinality" and element(first.type):
        return f"CAST(len({first.sql}) AS INTEGER)"
    dimension = name in ("array_length", "array_upper") and element(first.type)
    if dimension and _integer(nodes[1]) == 1:
        return f"CAST(nullif(len({first.sql}), 0) AS INTEGER)"
    return None


def _number(name: str, values: Sequence[Value], nodes: Sequence[Node], result: int) -> Value | None:
    first = values[0] if values else None
    if first is None:
        return None
    if name == "mod" and len(values) == 2 and first.type in INTEGERS:
        return integer_arithmetic("%", first, values[1], result)
    if name in ("round", "trunc") and first.shape is not None:
        return _rounded(name, first, nodes[1:])
    if len(values) != 1:
        return None
    if name == "round" and first.type == FLOAT8:
        return Value(f"round_even({first.sql}, 0)", result, None, first.fails)
    if name == "trunc" and first.type == FLOAT8:
        return Value(f"trunc({first.sql})", result, None, first.fails)
    if name == "abs" and (first.type in INTEGERS | FLOATS or first.shape is not None):
        fails = first.fails or first.type in INTEGERS
        return Value(f"abs({first.sql})", result, first.shape, fails)
    if name in ("floor", "ceil", "ceiling"):
        if first.type == FLOAT8:
            return Value(f"{name.removesuffix('ing')}({first.sql})", result, None, first.fails)
        if first.shape is not None and first.shape[0] - first.shape[1] < 37:
            shape = (first.shape[0] - first.shape[1] + 1, 0)
            call = f"{name.removesuffix('ing')}({first.sql})"
            sql = f"CAST({call} AS DECIMAL({shape[0]},0))"
            return Value(sql, NUMERIC, shape, first.fails)
    return None


def _rounded(name: str, value: Value, digits: Sequence[Node]) -> Value | None:
    """Round to a constant number of digits after the point, by default 0."""
    scale = _integer(digits[0]) if digits else 0
    if scale is None or value.shape is None or not 0 <= scale <= _MAX_SCALE:
        return None
    precision, has = value.shape
    shape = (precision - has + 1 + scale, scale)
    if shape[0] > MAX_PRECISION:
        return None
    call = f"{name}({value.sql}, {scale})" if scale < has else value.sql
    return Value(f"CAST({call} AS DECIMAL({shape[0]},{shape[1]}))", NUMERIC, shape, value.fails)


def _calendar(
    name: str, values: Sequence[Value], nodes: Sequence[Node], result: int
) -> Value | None:
    if len(values) != 2 or values[1].type not in MOMENTS:
        return None
    field = nodes[0].text if isinstance(nodes[0], Const) else None
    argument = values[1]
    if field is None or "infinity" in argument.sql:
        return None
    field = field.lower()
    known = _DATE_FIELDS if argument.type == DATE else _TIME_FIELDS
    moment = argument.sql if argument.type == DATE else in_utc(argument)
    if name == "extract" and field == "epoch" and argument.type != DATE:
        sql = f"(CAST(epoch_us({argument.sql}) AS {_EPOCH}) * 0.000001)"
        return Value(f"CAST({sql} AS DECIMAL(20,6))", NUMERIC, (20, 6), argument.fails)
    if name == "extract" and field in known:
        shape = (_EXTRACTED_DIGITS, 0)
        sql = f"CAST({_part(field, moment)} AS DECIMAL({shape[0]},0))"
        return Value(sql, NUMERIC, shape, argument.fails)
    if name == "date_part" and field in known:
        sql = f"CAST({_part(field, moment)} AS DOUBLE)"
        return Value(sql, result, None, argument.fails)
    if name == "date_trunc" and argument.type == TIMESTAMP and field in _TRUNCATED:
        sql = f"CAST(date_trunc('{field}', {argument.sql}) AS TIMESTAMP)"
        return Value(sql, result, None, argument.fails)
    return None


def _part(field: str, moment: str) -> str:
    part = f"extract({field} FROM {moment})"
    # The year before 1 is 0 for DuckDB, and -1 (1 BC) for PostgreSQL.
    return f"({part} - CAST({part} < 1 AS INTEGER))" if field == "year" else part


def cast(value: Value, target: int, typmod: int) -> Value:
    """Compile a cast with a function in pg_cast. Every session's time zone is UTC.

    Raises FeatureNotSupported.
    """
    source = value.type
    if source == target:
        return _length(value, typmod)
    if source in INTEGERS and target in INTEGERS | FLOATS:
        return _plain(value, target, fails=target in INTEGERS)
    if source in INTEGERS and target == NUMERIC:
        return as_decimal(value)
    if source in FLOATS and (target in FLOATS or target in INTEGERS):
        return _of_float(value, target)
    if source == NUMERIC and value.shape is None and target in FLOATS:
        return _float_of_text(value, target)
    if source == NUMERIC and value.shape is not None:
        if target in INTEGERS:
            return _plain(value, target, fails=True)
        if target in FLOATS:
            sql = f"CAST(CAST({value.sql} AS VARCHAR) AS {duckdb_type(target, None)})"
            return Value(sql, target, None, value.fails)
    if {source, target} == {BOOL, INT4}:
        return _plain(value, target)
    if source == BOOL and target in (TEXT, VARCHAR):
        sql = f"CASE WHEN {value.sql} THEN 'true' WHEN NOT {value.sql} THEN 'false' END"
        return Value(sql, target, None, value.fails)
    if source == BPCHAR and target in (TEXT, VARCHAR):
        return Value(f"rtrim({value.sql}, ' ')", target, None, value.fails)
    if source == NAME and target in (TEXT, VARCHAR):
        return Value(value.sql, target, None, value.fails)
    if (source, target) == (DATE, TIMESTAMP) and value.fails:
        return Value(f"({value.sql} + TIME '00:00:00')", TIMESTAMP, None, True)
    if (source, target) in ((DATE, TIMESTAMP), (TIMESTAMP, DATE)):
        return _plain(value, target, fails=True)
    if source == TIMESTAMPTZ and target in (TIMESTAMP, DATE):
        local = Value(f"make_timestamp(epoch_us({value.sql}))", TIMESTAMP, None, value.fails)
        return local if target == TIMESTAMP else _plain(local, DATE)
    if source == TIMESTAMP and target == TIMESTAMPTZ:
        sql = (
            f"CASE WHEN isinf({value.sql}) THEN CAST(CAST({value.sql} AS VARCHAR) AS TIMESTAMPTZ)"
            f" ELSE make_timestamptz(epoch_us({value.sql})) END"
        )
        return Value(sql, TIMESTAMPTZ, None, value.fails)
    if source == DATE and target == TIMESTAMPTZ:
        return cast(cast(value, TIMESTAMP, -1), TIMESTAMPTZ, -1)
    raise refused(f"the cast from {type_name(source)} to {type_name(target)}")


def _plain(value: Value, target: int, *, fails: bool = False) -> Value:
    sql = f"CAST({value.sql} AS {duckdb_type(target, None)})"
    return Value(sql, target, None, value.fails or fails)


def _float_of_text(value: Value, target: int) -> Value:
    """Cast the text of a numeric to float; overflow and underflow are errors (numeric_float8)."""
    held = duckdb_type(target, None)
    done = f"CAST({value.sql} AS {held})"
    checks = (
        f"WHEN isinf({done}) AND {value.sql} NOT IN ('Infinity', '-Infinity')"
        f" THEN CAST(error('value out of range: overflow') AS {held})"
        f" WHEN {done} = 0 AND regexp_matches({value.sql}, '[1-9]')"
        f" THEN CAST(error('value out of range: underflow') AS {held})"
    )
    return Value(f"CASE {checks} ELSE {done} END", target, None, True)


def _of_float(value: Value, target: int) -> Value:
    if target != FLOAT4:
        return _plain(value, target, fails=target in INTEGERS)
    done = f"CAST({value.sql} AS FLOAT)"
    checks = (
        f"WHEN isinf({done}) AND NOT isinf({value.sql})"
        " THEN CAST(error('value out of range: overflow') AS FLOAT)"
        f" WHEN {done} = 0 AND {value.sql} <> 0"
        " THEN CAST(error('value out of range: underflow') AS FLOAT)"
    )
    return Value(f"CASE {checks} ELSE {done} END", target, None, True)


def _length(value: Value, typmod: int) -> Value:
    """Apply an explicit length coercion: cut strings, round numerics or refuse the cast."""
    if value.type == VARCHAR:
        return Value(f"left({value.sql}, {length_of(typmod)})", VARCHAR, None, value.fails)
    if value.type == BPCHAR and length_of(typmod) <= _LONGEST_MADE:
        return Value(f"rpad({value.sql}, {length_of(typmod)}, ' ')", BPCHAR, None, value.fails)
    shape = precision_and_scale(typmod)
    modifiers = numeric_modifiers(typmod)
    ordinary = modifiers is not None and 0 <= modifiers[1] <= modifiers[0]
    if value.type == NUMERIC and value.shape is not None and shape is not None and ordinary:
        sql = f"CAST({value.sql} AS DECIMAL({shape[0]},{shape[1]}))"
        return Value(sql, NUMERIC, shape, True)
    raise refused(f"a cast of {type_name(value.type)} to another length")


def output_text(value: Value, target: int) -> Value:
    """Compile CoerceViaIO to text, or from a string to an enum or bytea.

    Raises FeatureNotSupported.
    """
    if is_enum(target) and value.type in (TEXT, VARCHAR):
        return _label(value, target)
    if target == BYTEA and value.type in (TEXT, VARCHAR):
        return _bytes(value)
    if target not in (TEXT, VARCHAR):
        raise refused(f"the cast from {type_name(value.type)} to {type_name(target)}")
    if value.type == NUMERIC:
        sql = as_text(value)
    elif value.type in INTEGERS | {DATE, TIMESTAMP}:
        sql = f"CAST({value.sql} AS VARCHAR)"
    elif value.type == BYTEA:
        sql = f"('\\x' || lower(hex({value.sql})))"
    elif value.type in (UUID, VARCHAR, TEXT, NAME) or is_enum(value.type):
        sql = value.sql
    else:
        raise refused(f"the cast from {type_name(value.type)} to {type_name(target)}")
    if value.type in (DATE, TIMESTAMP):
        sql = f"replace({sql}, ' (BC)', ' BC')"
    return Value(sql, target, None, value.fails)


def _bytes(value: Value) -> Value:
    """Read a bytea (byteain): hex digits, or the older escape format."""
    text = value.sql
    digits = rf"regexp_replace(substr({text}, 3), '[ \n\t\r]', '', 'g')"
    strange = f"regexp_extract({digits}, '[^0-9A-Fa-f]')"
    octal = "64 * ascii(item[2]) + 8 * ascii(item[3]) + ascii(item[4]) - 73 * ascii('0')"
    byte = (
        r"CASE WHEN item = '\\' THEN '5C'"
        rf" WHEN starts_with(item, '\') THEN format('{{:02X}}', {octal})"
        " ELSE hex(encode(item)) END"
    )
    pieces = f"regexp_extract_all({text}, '{_BYTES}')"
    escaped = f"array_to_string(list_transform({pieces}, lambda item: {byte}), '')"
    refusals = (
        (rf"starts_with({text}, '\x') AND {strange} = ''", f"'{ODD_DIGITS}'"),
        (rf"starts_with({text}, '\x')", f"'{NO_DIGIT}: \"' || {strange} || '\"'"),
        ("true", f"'{NO_BYTEA}'"),
    )
    refused_as = "".join(
        f" WHEN {which} THEN CAST(error({message}) AS BLOB)" for which, message in refusals
    )
    sql = (
        rf"CASE WHEN {text} IS NULL OR NOT contains({text}, '\') THEN encode({text})"
        rf" WHEN starts_with({text}, '\x') AND regexp_full_match({digits}, '{_HEX}')"
        f" THEN unhex({digits})"
        f" WHEN regexp_full_match({text}, '({_BYTES})*') THEN unhex({escaped}){refused_as} END"
    )
    return Value(sql, BYTEA, None, True)


def _label(value: Value, target: int) -> Value:
    """Read an enum's label (enum_in)."""
    labels = ", ".join(map(simple_quote_literal, types()[target].labels)) or "NULL"
    message = simple_quote_literal(f'invalid input value for enum {type_name(target)}: "')
    refusal = f"CAST(error({message} || {value.sql} || '\"') AS VARCHAR)"
    known = f"{value.sql} IS NULL OR {value.sql} IN ({labels})"
    return Value(f"CASE WHEN {known} THEN {value.sql} ELSE {refusal} END", target, None, True)


def fitted(value: Value, typmod: int) -> Value:
    """Fit an assigned string: cut off blanks; other text that is too long raises 22001."""
    most = length_of(typmod)
    name = "character" if value.type == BPCHAR else "character varying"
    kept = f"left({value.sql}, {most})"
    refusal = f"CAST(error('value too long for type {name}({most})') AS VARCHAR)"
    sql = (
        f"CASE WHEN {value.sql} IS NULL OR length({value.sql}) <= {most} THEN {value.sql}"
        f" WHEN length(rtrim({value.sql}, ' ')) <= {most} THEN {kept} ELSE {refusal} END"
    )
    if value.type == BPCHAR:
        sql = f"rpad({sql}, {most}, ' ')"
    return Value(sql, value.type, None, True)
