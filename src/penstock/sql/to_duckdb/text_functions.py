"""Text functions of catalog queries, computed as in varlena.c and oracle_compat.c.

DuckDB calls the functions with values that are not NULL; they return values or raise PostgreSQL's
errors. They count the bytes of text that a query makes, because DuckDB's memory limit does not
cover text between its operators.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import md5
from typing import Any, Final

from penstock.errors import InvalidParameterValue, PenstockError
from penstock.identifiers import quote_literal
from penstock.pgtypes import pg_type
from penstock.pgtypes.pg_type import BYTEA, INT4, TEXT, TEXT_ARRAY
from penstock.sql.text.array_literals import join_array
from penstock.sql.to_duckdb.catalog_functions import CatalogFunction
from penstock.sql.to_duckdb.duckdb_patterns import common_pattern
from penstock.sqlstate import OutOfMemory, ProgramLimitExceeded

MAX_MADE: Final = 128 << 20
"""The most bytes of text that one query of the catalogs makes."""
_MAX_ALLOC: Final = (1 << 30) - 1
"""MaxAllocSize"""
_BYTES: Final = 4
"""The most bytes of a character."""
_ITEM: Final = 64
_LINE: Final = 57
"""The bytes of a line of base64, after which comes a newline (pg_base64_encode)."""
_ASCII: Final = 0x80


class Budget:
    """Counts the bytes of text that a query makes, up to ``MAX_MADE``."""

    def __init__(self) -> None:
        self._made = 0

    def reset(self) -> None:
        """Start counting for another query."""
        self._made = 0

    def take(self, size: int) -> None:
        """Count bytes before they are allocated. Raises OutOfMemory (53200)."""
        self._made += size
        if self._made > MAX_MADE:
            raise OutOfMemory(
                "out of memory",
                detail=f"A query of the catalogs makes {MAX_MADE >> 20} MB of text at most.",
            )


@dataclass(frozen=True, slots=True)
class TextFunction:
    """A function. ``of``: name and argument types in pg_proc; ``signature``: for DuckDB.
    ``size``: computes an upper limit of the result's bytes from the arguments.
    """

    of: tuple[str, tuple[int, ...]]
    signature: CatalogFunction
    call: Callable[..., Any]
    size: Callable[..., int]

    def counted(self, budget: Budget) -> Callable[..., Any]:
        """Wrap the function: count its results, and return NULL for a NULL argument."""

        def call(*cells: Any) -> Any:
            if None in cells:
                return None
            budget.take(self.size(*cells))
            return self.call(*cells)

        return call


def _left(text: str, count: int) -> str:
    return text[:count]


def _right(text: str, count: int) -> str:
    return text[-count:] if count != 0 else ""


def _substring_from(text: str, start: int) -> str:
    return text[max(start - 1, 0) :]


def _substring(text: str, start: int, length: int) -> str:
    if length < 0:
        raise PenstockError("negative substring length not allowed", sqlstate="22011")
    return text[max(start - 1, 0) : max(start - 1 + length, 0)]


def _split_part(text: str, separator: str, field: int) -> str:
    if field == 0:
        raise InvalidParameterValue("field position must not be zero")
    fields = text.split(separator) if separator and text else [text]
    at = field - 1 if field > 0 else len(fields) + field
    return fields[at] if 0 <= at < len(fields) else ""


def _repeat_size(text: str, count: int) -> int:
    size = _bytes(text) * max(count, 0)
    if size > _MAX_ALLOC:
        raise ProgramLimitExceeded("requested length too large")
    return size


def _pad_size(text: str, length: int, fill: str = " ") -> int:
    size = max(length, 0) * max(_BYTES if fill or text else 0, 1)
    if size > _MAX_ALLOC:
        raise ProgramLimitExceeded("requested length too large")
    return max(_bytes(text), max(length, 0) * max(map(_bytes, (*fill, "")), default=0))


def _padding(text: str, length: int, fill: str) -> str:
    missing = length - len(text)
    return (fill * (missing // len(fill) + 1))[:missing] if fill and missing > 0 else ""


def _lpad(text: str, length: int, fill: str = " ") -> str:
    cut = text[: max(length, 0)]
    return _padding(text, length, fill) + cut


def _rpad(text: str, length: int, fill: str = " ") -> str:
    return text[: max(length, 0)] + _padding(text, length, fill)


def _bpchar(text: str, length: int) -> str:
    return text[:length].ljust(length)


def _replace(text: str, old: str, new: str) -> str:
    return text.replace(old, new) if old else text


def _replace_size(text: str, old: str, new: str) -> int:
    grown = text.count(old) * max(_bytes(new) - _bytes(old), 0) if old else 0
    return _bytes(text) + grown


def _concat_ws(separator: str, items: list[str | None]) -> str:
    return separator.join(item for item in items if item is not None)


def _concat_ws_size(separator: str, items: list[str | None]) -> int:
    return sum(_bytes(item or "") + _bytes(separator) for item in items)


def _array_to_string(items: list[str | None], separator: str, null: str) -> str:
    return separator.join(null if item is None else item for item in items)


def _joined_size(items: list[str | None], separator: str = ",", null: str = "") -> int:
    return sum(_bytes(null if item is None else item) + _bytes(separator) for item in items)


def split_size(text: str | None, separator: str | None) -> int:
    """Return the bytes of an array of texts, including Python's overhead for each text."""
    if text is None:
        return 0
    count = len(text) if separator is None else text.count(separator) if separator else 0
    return _bytes(text) + count * _ITEM


def string_to_array(
    text: str | None, separator: str | None, null: str | None
) -> list[str | None] | None:
    """Split a text (text_to_array); without a separator every character is an element."""
    if text is None:
        return None
    if not text:
        return []
    items = list(text) if separator is None else text.split(separator) if separator else [text]
    return [None if null is not None and item == null else item for item in items]


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _plain_size(text: str, *_: Any) -> int:
    return _bytes(text)


def _get_byte(data: bytes, index: int) -> int:
    if not 0 <= index < len(data):
        raise PenstockError(
            f"index {index} out of valid range, 0..{len(data) - 1}", sqlstate="2202E"
        )
    return data[index]


def _encode(data: bytes, form: str) -> str:
    match form.lower():
        case "hex":
            return data.hex()
        case "base64":
            lines = (data[at : at + _LINE] for at in range(0, len(data), _LINE))
            return "".join(
                base64.b64encode(line).decode() + "\n" * (len(line) == _LINE) for line in lines
            )
        case "escape":
            return "".join(map(_escaped, data))
    raise InvalidParameterValue(f'unrecognized encoding: "{form}"')


def _escaped(byte: int) -> str:
    if byte == ord("\\"):
        return "\\\\"
    return chr(byte) if 0 < byte < _ASCII else f"\\{byte:03o}"


def _encoded_size(data: bytes, _: str) -> int:
    return 4 * len(data)


def _no_size(*_: Any) -> int:
    return 0


_LETTERS: Final = {"t": TEXT, "i": INT4, "a": TEXT_ARRAY, "y": BYTEA}


def _of(
    name: str, types: str, call: Callable[..., Any], size: Callable[..., int], returns: str = "text"
) -> TextFunction:
    oids = tuple(_LETTERS[letter] for letter in types)
    names = tuple(pg_type.types()[oid].name for oid in oids)
    held = CatalogFunction(f"{name}_{types}", names, returns)
    return TextFunction((name, oids), held, call, size)


_ALL: Final = (
    _of("left", "ti", _left, _plain_size),
    _of("right", "ti", _right, _plain_size),
    _of("substring", "ti", _substring_from, _plain_size),
    _of("substring", "tii", _substring, _plain_size),
    _of("substr", "ti", _substring_from, _plain_size),
    _of("substr", "tii", _substring, _plain_size),
    _of("split_part", "tti", _split_part, _plain_size),
    _of("repeat", "ti", lambda text, count: text * count, _repeat_size),
    _of("lpad", "ti", _lpad, _pad_size),
    _of("lpad", "tit", _lpad, _pad_size),
    _of("rpad", "ti", _rpad, _pad_size),
    _of("rpad", "tit", _rpad, _pad_size),
    _of("replace", "ttt", _replace, _replace_size),
    _of("quote_literal", "t", quote_literal, lambda text: 2 * _bytes(text)),
    _of("textcat", "tt", lambda a, b: a + b, lambda a, b: _bytes(a) + _bytes(b)),
    _of("common_pattern", "t", common_pattern, _plain_size),
    _of("get_byte", "yi", _get_byte, _no_size, "int4"),
    _of("octet_length", "y", len, _no_size, "int4"),
    _of("length", "y", len, _no_size, "int4"),
    _of("md5", "y", lambda data: md5(data, usedforsecurity=False).hexdigest(), _no_size),
    _of("encode", "yt", _encode, _encoded_size),
    # pg_proc has no functions with these arguments; only the compiler calls them.
    _of("bpchar", "ti", _bpchar, lambda _, length: length),
    _of("concat_ws", "ta", _concat_ws, _concat_ws_size),
    _of("array_out", "a", join_array, _joined_size),
    _of("array_to_string", "at", lambda a, b: _array_to_string(
        [item for item in a if item is not None], b, ""), _joined_size),
    _of("array_to_string", "att", _array_to_string, _joined_size),
)  # fmt: skip
TEXT_FUNCTIONS: Final[Mapping[str, TextFunction]] = {f.signature.name: f for f in _ALL}
"""Functions by the name under which DuckDB calls them."""
COMMON_PATTERN: Final = "common_pattern_t"
"""The function that checks a computed regular expression and returns it."""
BY_PROC: Final = {f.of: f.signature.name for f in _ALL}
"""The names under which DuckDB calls functions, by name and argument types in pg_proc."""
STRING_TO_ARRAY: Final = CatalogFunction("string_to_array", ("text", "text", "text"), "_text")
"""The only function that is not strict."""
