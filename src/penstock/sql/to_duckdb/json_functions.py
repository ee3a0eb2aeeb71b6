"""Functions of json and jsonb, computed as in jsonfuncs.c and jsonb_op.c.

A value is its text. Parts of a jsonb's text are the texts of its parts, since jsonb is printed in
one form only. DuckDB calls the functions by the names in ``FUNCTIONS`` (``fmgr``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from penstock.errors import InvalidParameterValue
from penstock.sql.to_duckdb.fmgr import PythonFunction
from penstock.sql.to_duckdb.numeric_functions import to_integer
from penstock.sqlstate import InvalidTextRepresentation, UntranslatableCharacter

_SPACE: Final = re.compile(r"[ \t\n\r]*")
_INDEX: Final = re.compile(r"\s*[-+]?[0-9]{1,9}")
_STRING: Final = r'"[^"\\]*(?:\\.[^"\\]*)*+"'
_SCALAR: Final = re.compile(rf"{_STRING}|[-+.\w]+", re.ASCII)
_TOKEN: Final = re.compile(rf"{_STRING}|[\[\]{{}}\"]")
_TYPES: Final = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean"}


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _kind(text: str) -> str:
    first = text[_skip(text, 0)]
    return "null" if first == "n" else _TYPES.get(first, "number")


def _end(text: str, at: int) -> int:
    """Return the end of the value that begins there, however deep it is. Raises ValueError."""
    if text[at] not in "[{":
        scalar = _SCALAR.match(text, at)
        if scalar is not None:
            return scalar.end()
    depth = 0
    for token in _TOKEN.finditer(text, at):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
        if depth <= 0:
            return token.end()
        if token[0] == '"':
            break
    raise ValueError


def _parts(text: str, kind: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names and texts of an object's fields, or the texts of an array's elements.

    ``kind``: object or array, if the other one has no parts.
    """
    at = _skip(text, 0)
    if text[at] not in {"object": "{", "array": "["}.get(kind, "{["):
        return
    keyed = text[at] == "{"
    at = _skip(text, at + 1)
    while text[at] not in "}]":
        name = ""
        if keyed:
            end = _end(text, at)
            name, at = json.loads(text[at:end]), _skip(text, _skip(text, end) + 1)
        end = _end(text, at)
        yield name, text[at:end]
        at = _skip(text, end)
        at = _skip(text, at + 1) if text[at] == "," else at


def _field(text: str, name: str) -> str | None:
    found = None
    for each, value in _parts(text, "object"):
        found = value if each == name else found
    return found


def _element(text: str, index: int) -> str | None:
    if index < 0:
        index += _count(text)
    elements = (value for n, (_, value) in enumerate(_parts(text, "array")) if n == index)
    return next(elements, None)


def _count(text: str) -> int:
    return sum(1 for _ in _parts(text, "array"))


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
    return _count(text)


def _exists(text: str, name: str) -> bool:
    if _kind(text) == "object":
        return any(each == name for each, _ in _parts(text))
    strings = (value for _, value in _parts(text)) if _kind(text) == "array" else (text,)
    return any(_kind(each) == "string" and json.loads(each) == name for each in strings)


def _contains(one: str, other: str) -> bool:
    if _kind(one) == "array" and _kind(other) not in ("array", "object"):
        return any(_scalar(value) == _scalar(other) for _, value in _parts(one))
    # A stack of our own, because Python's has room for a thousand levels.
    steps, answer = [_within(one, other)], None
    while steps:
        try:
            asked = steps[-1].send(answer)
        except StopIteration as done:
            answer = bool(done.value)
            steps.pop()
        else:
            answer = None
            steps.append(_within(*asked))
    return bool(answer)


def _within(whole: str, part: str) -> Generator[tuple[str, str], bool | None, bool]:
    """Tell whether a value contains another one (JsonbDeepContains). Yields pairs of parts, and is
    sent whether the first contains the second."""
    kind = _kind(part)
    if kind != _kind(whole):
        return False
    if kind == "object":
        fields = _parts(whole)  # both are sorted by name
        for name, value in _parts(part):
            found = next((text for each, text in fields if each == name), None)
            if found is None or not (yield found, value):
                return False
        return True
    if kind == "array":
        for _, value in _parts(part):
            for _, each in _parts(whole):
                if (yield each, value):
                    break
            else:
                return False
        return True
    return _scalar(whole) == _scalar(part)


def _scalar(text: str) -> tuple[str, Any]:
    """Return what is equal for equal scalars."""
    kind = _kind(text)
    return kind, Decimal(text) if kind == "number" else json.loads(
        text
    ) if kind == "string" else text


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


def _checked(call: Callable[..., Any]) -> Callable[..., Any]:
    """Report texts that are no json, which other writers may leave in a table."""

    def checked(*arguments: Any) -> Any:
        try:
            return call(*arguments)
        except (ValueError, IndexError, ArithmeticError):
            raise InvalidTextRepresentation("invalid input syntax for type json") from None

    return checked


FUNCTIONS: Final = {name: PythonFunction(_checked(call)) for name, call in _CALLS.items()}
