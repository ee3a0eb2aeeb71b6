"""Functions of json and jsonb, computed as in jsonfuncs.c and jsonb_op.c.

A value is its text. Parts of a jsonb's text are the texts of its parts, since jsonb is printed in
one form only. DuckDB calls the functions by the names in ``FUNCTIONS`` (``fmgr``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from json import decoder
from typing import Any, Final

from penstock.errors import InvalidParameterValue
from penstock.sql.to_duckdb.fmgr import PythonFunction
from penstock.sql.to_duckdb.numeric_functions import to_integer
from penstock.sqlstate import UntranslatableCharacter

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_INDEX: Final = re.compile(r"\s*[-+]?[0-9]{1,9}")
_scan: Final[Any] = decoder.scanstring  # type: ignore[attr-defined]
_DECODER: Final = json.JSONDecoder(parse_float=Decimal, parse_int=Decimal)
_TYPES: Final = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean"}


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _kind(text: str) -> str:
    first = text[_skip(text, 0)]
    return "null" if first == "n" else _TYPES.get(first, "number")


def _parts(text: str) -> tuple[dict[str, str], list[str]]:
    """Return the texts of the fields of an object, or of the elements of an array."""
    at = _skip(text, 0)
    fields: dict[str, str] = {}
    items: list[str] = []
    if text[at] not in "{[":
        return fields, items
    keyed = text[at] == "{"
    at = _skip(text, at + 1)
    while text[at] not in "}]":
        name = ""
        if keyed:
            name, at = _scan(text, at + 1)
            at = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, at)
        if keyed:
            fields[name] = text[at:end]
        else:
            items.append(text[at:end])
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at
    return fields, items


def _field(text: str, name: str) -> str | None:
    return _parts(text)[0].get(name)


def _element(text: str, index: int) -> str | None:
    items = _parts(text)[1]
    return items[index] if -len(items) <= index < len(items) else None


def _jsonb_element(text: str, index: int) -> str | None:
    """Return an element; a scalar is stored as an array of one element."""
    scalar = _kind(text) not in ("array", "object")
    return text if scalar and index in (0, -1) else _element(text, index)


def _at_path(text: str, *path: Any) -> str | None:
    found: str | None = text
    for step in path[0] if isinstance(path[0], list) else path:
        if found is None or step is None:
            return None
        if _kind(found) != "array":
            found = _field(found, step)
        else:
            found = _element(found, int(step)) if _INDEX.fullmatch(step) else None
    return found


def _as_text(part: str | None) -> str | None:
    if part is None or _kind(part) == "null":
        return None
    if _kind(part) != "string":
        return part
    text: str = json.loads(part)
    if "\0" in text:
        raise UntranslatableCharacter("unsupported Unicode escape sequence")
    return text


def _text_of(part: Callable[..., str | None]) -> Callable[..., str | None]:
    return lambda *arguments: _as_text(part(*arguments))


def _array_length(text: str) -> int:
    kind = _kind(text)
    if kind != "array":
        what = "a non-array" if kind == "object" else "a scalar"
        raise InvalidParameterValue(f"cannot get array length of {what}")
    return len(_parts(text)[1])


def _exists(text: str, name: str) -> bool:
    fields, items = _parts(text)
    strings = items if _kind(text) == "array" else [text]
    return name in fields or any(_kind(s) == "string" and json.loads(s) == name for s in strings)


def _contains(one: str, other: str) -> bool:
    whole, part = (_DECODER.decode(text) for text in (one, other))
    if isinstance(whole, list) and not isinstance(part, list | dict):
        return any(_equal(item, part) for item in whole)
    return _within(whole, part)


def _within(whole: Any, part: Any) -> bool:
    if isinstance(whole, dict) and isinstance(part, dict):
        return all(name in whole and _within(whole[name], value) for name, value in part.items())
    if isinstance(whole, list) and isinstance(part, list):
        return all(any(_within(item, value) for item in whole) for value in part)
    return _equal(whole, part)


def _equal(one: Any, other: Any) -> bool:
    return type(one) is type(other) and one == other


def _cast(kind: str, name: str, made: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return the cast of a jsonb that is such a value; NULL for null."""

    def cast(text: str) -> Any:
        found = _kind(text)
        if found not in (kind, "null"):
            shown = found.replace("number", "numeric")
            raise InvalidParameterValue(f"cannot cast jsonb {shown} to type {name}")
        return None if found == "null" else made(text)

    return cast


_CALLS: Final[Mapping[str, Callable[..., Any]]] = {
    "json_object_field": _field,
    "json_object_field_text": _text_of(_field),
    "json_array_element": _element,
    "json_array_element_text": _text_of(_element),
    "jsonb_array_element": _jsonb_element,
    "jsonb_array_element_text": _text_of(_jsonb_element),
    "json_extract_path": _at_path,
    "json_extract_path_text": _text_of(_at_path),
    "json_typeof": _kind,
    "json_array_length": _array_length,
    "jsonb_exists": _exists,
    "jsonb_exists_any": lambda text, names: any(n is not None and _exists(text, n) for n in names),
    "jsonb_exists_all": lambda text, names: all(n is None or _exists(text, n) for n in names),
    "jsonb_contains": _contains,
    "jsonb_bool": _cast("boolean", "boolean", lambda text: text == "true"),
    "jsonb_numeric": _cast("number", "numeric", str),
    "jsonb_int2": _cast("number", "smallint", to_integer(16)),
    "jsonb_int4": _cast("number", "integer", to_integer(32)),
    "jsonb_int8": _cast("number", "bigint", to_integer(64)),
    "jsonb_contained": lambda one, other: _contains(other, one),
}
FUNCTIONS: Final = {name: PythonFunction(call) for name, call in _CALLS.items()}
