"""Typed expressions and their casts (parse_coerce.c).

In: DuckDB text with its PostgreSQL type. Out: the same as another type. A string constant is of no
type until something gives it one; so is a parameter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from penstock.errors import InvalidParameterValue, PenstockError
from penstock.sql.catalog_scope import Found
from penstock.sql.catalog_types import (
    INT2_FROM_0,
    NAMED_TYPES,
    UNKNOWN,
    catalog_type,
    element_type,
    is_string,
)

_INTEGER: Final = re.compile(r"\s*[+-]?\d+\s*\Z", re.ASCII)
_NUMBER: Final = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*\Z", re.ASCII)
_TRUE: Final = frozenset(("t", "true", "y", "yes", "on", "1"))
_FALSE: Final = frozenset(("f", "false", "n", "no", "off", "0"))
_ITEM: Final = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|([^,{}"]*))\s*(,|\Z)', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Typed:
    """``literal``: the text of a string constant; ``parameter``: the number of ``$n``."""

    sql: str
    type: str
    literal: str | None = None
    parameter: int | None = None


def quote(text: str) -> str:
    """A string constant."""
    return "'" + text.replace("'", "''") + "'"


def coerce(value: Typed, target: str, found: Found) -> Typed:
    """``value`` as ``target``, by an implicit or explicit cast. Raises PenstockError 22P02."""
    if value.type == target:
        return value
    if value.parameter is not None and value.type == UNKNOWN:
        found.parameters.setdefault(value.parameter, target)
        return parameter(value.parameter, target, found)
    if value.literal is not None and value.type == UNKNOWN:
        return Typed(_constant(value.literal, target, found), target)
    return Typed(_cast(value, target, found), target)


def parameter(number: int, kind: str, found: Found) -> Typed:
    """``$n`` of a type; names and numbers of what has an oid are told apart when it runs."""
    if kind in NAMED_TYPES:
        return Typed(_call(f"{kind}in", f"CAST(${number} AS VARCHAR)", found), kind)
    return Typed(f"CAST(${number} AS {catalog_type(kind).held})", kind)


def _constant(text: str, target: str, found: Found) -> str:
    element = element_type(target)
    if element is not None:
        items = ",".join(_items(text, target, element, found))
        return f"CAST([{items}] AS {catalog_type(target).held})"
    if target in NAMED_TYPES:
        return _call(f"{target}in", quote(text), found)
    held = catalog_type(target).held
    if target == "bool":
        word = text.strip().lower()
        if word not in _TRUE | _FALSE:
            raise _invalid(text, "boolean")
        return "TRUE" if word in _TRUE else "FALSE"
    if held in ("BIGINT", "INTEGER", "SMALLINT"):
        if not _INTEGER.match(text):
            raise _invalid(text, _SHOWN.get(target, target))
        return f"CAST({quote(text.strip())} AS {held})"
    if held in ("FLOAT", "DOUBLE") or held.startswith("DECIMAL"):
        if not _NUMBER.match(text):
            raise _invalid(text, _SHOWN.get(target, target))
        return f"CAST({quote(text.strip())} AS {held})"
    if target == "char":
        return quote(text[:1])
    return quote(text) if held == "VARCHAR" else f"CAST({quote(text)} AS {held})"


_SHOWN: Final = {
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
}


def _items(text: str, target: str, element: str, found: Found) -> list[str]:
    if target in ("int2vector", "oidvector"):
        return [_constant(item, element, found) for item in text.split()]
    return [
        "NULL" if item is None else _constant(item, element, found) for item in array_items(text)
    ]


def array_items(text: str) -> list[str | None]:
    """The elements of ``{a,"b c",NULL}``. Raises InvalidParameterValue (22P02)."""
    body = text.strip()
    if len(body) < 2 or body[0] != "{" or body[-1] != "}":
        raise InvalidParameterValue(
            f'malformed array literal: "{text}"',
            detail='Array value must start with "{" or dimension information.',
            sqlstate="22P02",
        )
    out: list[str | None] = []
    body, at = body[1:-1], 0
    while body.strip():
        match = _ITEM.match(body, at)
        if match is None:
            raise InvalidParameterValue(f'malformed array literal: "{text}"', sqlstate="22P02")
        quoted, plain, separator = match.groups()
        if quoted is not None:
            out.append(re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL))
        else:
            out.append(None if plain.strip().upper() == "NULL" else plain.strip())
        at = match.end()
        if not separator:
            break
    return out


def _cast(value: Typed, target: str, found: Found) -> str:
    source, held = value.type, catalog_type(target).held
    if source in NAMED_TYPES and is_string(target):
        return _call(f"{source}out", value.sql, found)
    if is_string(source) and target in NAMED_TYPES:
        return _call(f"{target}in", value.sql, found)
    if source == "bool" and is_string(target):
        return f"CASE WHEN {value.sql} THEN 'true' WHEN NOT {value.sql} THEN 'false' END"
    if catalog_type(source).held.endswith("[]") and is_string(target):
        return f"('{{' || array_to_string({value.sql}, ',') || '}}')"
    if target == "char":
        return f"left(CAST({value.sql} AS VARCHAR), 1)"
    if catalog_type(source).held == held:
        return value.sql
    return f"CAST({value.sql} AS {held})"


def cast_type(source: str, target: str) -> str:
    """The type that ``CAST(source AS target)`` has here."""
    return INT2_FROM_0 if source == "int2vector" and target == "_int2" else target


def _call(function: str, argument: str, found: Found) -> str:
    found.functions.add(function)
    return f"pg__{function}({argument})"


def _invalid(text: str, shown: str) -> PenstockError:
    return InvalidParameterValue(
        f'invalid input syntax for type {shown}: "{text}"', sqlstate="22P02"
    )
