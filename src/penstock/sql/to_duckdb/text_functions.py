"""Functions of text and bytea, computed as in varlena.c, oracle_compat.c, bytea.c and encode.c.

DuckDB calls them by the names in ``FUNCTIONS`` (``fmgr``). Lower and upper case are those of
collation C.
"""

from __future__ import annotations

import base64
import hashlib
import re
import string
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from penstock.errors import InvalidParameterValue, PenstockError
from penstock.identifiers import quote_literal, truncated
from penstock.pgtypes.floating import float_out
from penstock.pgtypes.pg_type import BYTEA, DATE, JSON, JSONB, TIMESTAMP, TIMESTAMPTZ
from penstock.sql.text.array_literals import join_array, split_array
from penstock.sql.text.quoting import quote_identifier
from penstock.sql.to_duckdb.duckdb_patterns import (
    common_pattern,
    like_escape,
    like_matches,
    lower_pattern,
)
from penstock.sql.to_duckdb.duckdb_values import duckdb_date
from penstock.sql.to_duckdb.fmgr import ITEM, MAX_MADE, PythonFunction, cached
from penstock.sql.typed.literals import canonical
from penstock.sqlstate import InvalidTextRepresentation, OutOfMemory, ProgramLimitExceeded

_MAX_ALLOC: Final = (1 << 30) - 1
"""MaxAllocSize"""
_LINE: Final = 57
"""The bytes of a line of base64, after which comes a newline (pg_base64_encode)."""
_CHARACTER: Final = 4
"""The most bytes of a character."""
_MAX_INT: Final = (1 << 31) - 1
_SURROGATES: Final = range(0xD800, 0xE000)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _right(text: str, count: int) -> str:
    return text[-count:] if count != 0 else ""


def _left(text: str, count: int) -> str:
    return text[:count]


def _substring(text: Any, start: int, length: int | None = None) -> Any:
    if length is not None and length < 0:
        raise PenstockError("negative substring length not allowed", sqlstate="22011")
    end = _MAX_INT + 1 if length is None else start + length
    return text[max(start - 1, 0) : len(text) if end > _MAX_INT else max(end - 1, 0)]


def _overlay(text: Any, by: Any, start: int, length: int | None = None) -> Any:
    count = len(by) if length is None else length
    if start <= 0:
        raise PenstockError("negative substring length not allowed", sqlstate="22011")
    after = start + count
    if after > _MAX_INT:
        raise PenstockError("integer out of range", sqlstate="22003")
    return text[: start - 1] + by + text[max(after - 1, 0) :]


def _split_part(text: str, separator: str, field: int) -> str:
    if field == 0:
        raise InvalidParameterValue("field position must not be zero")
    if not separator:
        return text if field in (1, -1) else ""
    before = field - 1 if field > 0 else text.count(separator) + 1 + field
    start = 0
    for _ in range(before):
        found = text.find(separator, start)
        if found < 0:
            return ""
        start = found + len(separator)
    end = text.find(separator, start)
    return "" if before < 0 else text[start:] if end < 0 else text[start:end]


def _repeat_size(text: str, count: int) -> int:
    size = _bytes(text) * max(count, 0)
    if size > _MAX_ALLOC:
        raise ProgramLimitExceeded("requested length too large")
    return size


def _pad_size(text: str, length: int, fill: str = " ") -> int:
    size = max(length, 0) * max(_CHARACTER if fill or text else 0, 1)
    if size > _MAX_ALLOC:
        raise ProgramLimitExceeded("requested length too large")
    return max(_bytes(text), max(length, 0) * max(map(_bytes, (*fill, "")), default=0))


def _padding(text: str, length: int, fill: str) -> str:
    missing = length - len(text)
    return (fill * (missing // len(fill) + 1))[:missing] if fill and missing > 0 else ""


def _lpad(text: str, length: int, fill: str = " ") -> str:
    return _padding(text, length, fill) + text[: max(length, 0)]


def _rpad(text: str, length: int, fill: str = " ") -> str:
    return text[: max(length, 0)] + _padding(text, length, fill)


def _replace(text: str, old: str, new: str) -> str:
    return text.replace(old, new) if old else text


def _replace_size(text: str, old: str, new: str) -> int:
    grown = text.count(old) * max(_bytes(new) - _bytes(old), 0) if old else 0
    return _bytes(text) + grown


def _translate(text: str, of: str, to: str) -> str:
    table: dict[int, str | None] = {}
    for number, character in enumerate(of):
        table.setdefault(ord(character), to[number] if number < len(to) else None)
    return text.translate(table)


def _initcap(text: str) -> str:
    return re.sub("[A-Za-z0-9]+", lambda word: _upper(word[0][0]) + _lower(word[0][1:]), text)


_TO_LOWER: Final = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_TO_UPPER: Final = str.maketrans(string.ascii_lowercase, string.ascii_uppercase)


def _lower(text: str) -> str:
    return text.translate(_TO_LOWER)


def _upper(text: str) -> str:
    return text.translate(_TO_UPPER)


def _chr(code: int) -> str:
    if code < 0:
        raise InvalidParameterValue("character number must be positive")
    if code == 0:
        raise PenstockError("null character not permitted", sqlstate="54000")
    if code > 0x10FFFF:
        raise PenstockError(f"requested character too large for encoding: {code}", sqlstate="54000")
    if code in _SURROGATES:
        raise PenstockError(f"requested character not valid for encoding: {code}", sqlstate="54000")
    return chr(code)


def _based(digit: str, bits: int) -> Callable[[int], str]:
    return lambda number: format(number & ((1 << bits) - 1), digit)


# Arrays of texts


def _concat_ws(separator: str, items: list[str | None]) -> str:
    return separator.join(item for item in items if item is not None)


def _joined_size(items: list[str | None], separator: str = ",", null: str | None = "") -> int:
    return sum(_bytes((null or "") if i is None else i) + _bytes(separator) for i in items)


def _array_to_string(items: list[str | None], separator: str, null: str | None = None) -> str:
    shown = (null if item is None else item for item in items)
    return separator.join(item for item in shown if item is not None)


def _array_to_string_or_null(
    items: list[str | None] | None, separator: str | None, null: str | None
) -> str | None:
    if items is None or separator is None:
        return None
    return _array_to_string(items, separator, null)


def _split_size(text: str | None, separator: str | None, null: str | None = None) -> int:
    """Return the bytes of an array of texts, including Python's overhead for each text."""
    if text is None:
        return 0
    count = len(text) if separator is None else text.count(separator) if separator else 0
    return _bytes(text) + count * ITEM


def _string_to_array(
    text: str | None, separator: str | None, null: str | None = None
) -> list[str | None] | None:
    """Split a text (text_to_array); without a separator every character is an element."""
    if text is None:
        return None
    if not text:
        return []
    items = list(text) if separator is None else text.split(separator) if separator else [text]
    return [None if null is not None and item == null else item for item in items]


# bytea


def _like_size(text: str, pattern: str) -> int:
    """Return a number of bytes for the time of a match: "_" is compared with each character."""
    return len(text) * len(pattern) >> 4 if "_" in pattern else 0


def _reverse(value: Any) -> Any:
    return value[::-1]


def _trim(left: bool, right: bool) -> Callable[[bytes, bytes], bytes]:
    def trim(value: bytes, characters: bytes) -> bytes:
        few = bytes(set(characters))  # lstrip looks through all of them for each byte
        value = value.lstrip(few) if left else value
        return value.rstrip(few) if right else value

    return trim


def _checked_index(at: int, count: int) -> None:
    if not 0 <= at < count:
        raise PenstockError(f"index {at} out of valid range, 0..{count - 1}", sqlstate="2202E")


def _get_byte(value: bytes, at: int) -> int:
    _checked_index(at, len(value))
    return value[at]


def _set_byte(value: bytes, at: int, byte: int) -> bytes:
    _checked_index(at, len(value))
    return value[:at] + bytes([byte & 255]) + value[at + 1 :]


def _get_bit(value: bytes, at: int) -> int:
    _checked_index(at, len(value) * 8)
    return value[at // 8] >> at % 8 & 1


def _set_bit(value: bytes, at: int, bit: int) -> bytes:
    _checked_index(at, len(value) * 8)
    if bit not in (0, 1):
        raise InvalidParameterValue("new bit must be 0 or 1")
    byte = value[at // 8] & ~(1 << at % 8) | bit << at % 8
    return value[: at // 8] + bytes([byte]) + value[at // 8 + 1 :]


def _bytea_of(size: int) -> Callable[[int], bytes]:
    return lambda number: number.to_bytes(size, "big", signed=True)


def _integer_of(size: int, name: str) -> Callable[[bytes], int]:
    def read(value: bytes) -> int:
        if len(value) > size:
            raise PenstockError(f"{name} out of range", sqlstate="22003")
        return int.from_bytes(value.rjust(size, b"\0"), "big", signed=True)

    return read


def _encode(value: bytes, form: str) -> str:
    match form.lower():
        case "hex":
            return value.hex()
        case "base64":
            lines = (value[at : at + _LINE] for at in range(0, len(value), _LINE))
            return "".join(
                base64.b64encode(line).decode() + "\n" * (len(line) == _LINE) for line in lines
            )
        case "escape":
            return "".join(
                "\\\\" if byte == 92 else f"\\{byte:03o}" if not 0 < byte < 128 else chr(byte)
                for byte in value
            )
    raise _encoding(form)


def _decode(text: str, form: str) -> bytes:
    match form.lower():
        case "hex":
            return _of_hex(text)
        case "base64":
            return _base64(re.sub(r"[ \t\n\r]", "", text))
        case "escape":
            if text.startswith("\\x"):
                raise InvalidTextRepresentation("invalid input syntax for type bytea")
            return bytes.fromhex(canonical(text, BYTEA)[2:])
    raise _encoding(form)


def _of_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return bytes.fromhex(canonical(f"\\x{text}", BYTEA)[2:])


def _base64(text: str) -> bytes:
    wrong = re.search(r"[^A-Za-z0-9+/=]", text)
    if wrong is not None:
        raise InvalidParameterValue(
            f'invalid symbol "{wrong[0]}" found while decoding base64 sequence'
        )
    if not re.fullmatch(r"(?:[^=]{4})*+(?:[^=]{2}==|[^=]{3}=)?", text):
        raise InvalidParameterValue("invalid base64 end sequence")
    return base64.b64decode(text)


def _encoding(form: str) -> PenstockError:
    return InvalidParameterValue(f'unrecognized encoding: "{form}"')


_CRC32C: Final = [
    (lambda crc: [crc := crc >> 1 ^ (0x82F63B78 if crc & 1 else 0) for _ in range(8)][-1])(byte)
    for byte in range(256)
]


def _crc32c(value: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in value:
        crc = _CRC32C[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


# Input and output functions of types


@cached
def read_text(text: str, oid: int) -> str:
    """Read a text by the type's input function, and write the value as DuckDB reads it."""
    if oid in (JSON, JSONB):
        _check_parts(text)
    read = canonical(text, oid)
    return duckdb_date(read, oid) if oid in (DATE, TIMESTAMP, TIMESTAMPTZ) else read


def _check_parts(text: str) -> None:
    """Refuse a text whose parts may need too much memory while it is read."""
    if len(text) * ITEM // 2 > MAX_MADE:
        raise OutOfMemory("out of memory")


@cached
def _array_in(text: str, oid: int) -> list[str | None]:
    _check_parts(text)
    return split_array(canonical(text, oid))


def _float_out(kind: pa.DataType) -> Callable[[float], str]:
    return lambda value: float_out(value, kind)


_PLAIN: Final[Mapping[str, Callable[..., Any]]] = {
    "left": _left,
    "right": _right,
    "substring": _substring,
    "split_part": _split_part,
    "translate": _translate,
    "reverse": _reverse,
    "chr": _chr,
    "ascii": lambda text: ord(text[0]) if text else 0,
    "quote_ident": quote_identifier,
    "name": truncated,
    "common_pattern": common_pattern,
    "lower_pattern": lambda pattern: lower_pattern(common_pattern(pattern)),
    "like_escape": like_escape,
    "position": lambda value, part: value.find(part) + 1,
    "btrim": _trim(True, True),
    "ltrim": _trim(True, False),
    "rtrim": _trim(False, True),
    "get_byte": _get_byte,
    "set_byte": _set_byte,
    "get_bit": _get_bit,
    "set_bit": _set_bit,
    "bit_count": lambda value: int.from_bytes(value, "big").bit_count(),
    "crc32": zlib.crc32,
    "crc32c": _crc32c,
    "sha224": lambda value: hashlib.sha224(value).digest(),
    "sha384": lambda value: hashlib.sha384(value).digest(),
    "sha512": lambda value: hashlib.sha512(value).digest(),
    "int2_bytea": _bytea_of(2),
    "int4_bytea": _bytea_of(4),
    "int8_bytea": _bytea_of(8),
    "bytea_int2": _integer_of(2, "smallint"),
    "bytea_int4": _integer_of(4, "integer"),
    "bytea_int8": _integer_of(8, "bigint"),
    "to_bin4": _based("b", 32),
    "to_bin8": _based("b", 64),
    "to_oct4": _based("o", 32),
    "to_oct8": _based("o", 64),
    "to_hex4": _based("x", 32),
    "to_hex8": _based("x", 64),
    "input": read_text,
    "array_in": _array_in,
    "float4out": _float_out(pa.float32()),
    "float8out": _float_out(pa.float64()),
}
_SIZED: Final[Mapping[str, tuple[Callable[..., Any], Callable[..., int]]]] = {
    "repeat": (lambda text, count: text * count, _repeat_size),
    "lpad": (_lpad, _pad_size),
    "rpad": (_rpad, _pad_size),
    "replace": (_replace, _replace_size),
    "overlay": (_overlay, lambda text, by, *_: _CHARACTER * (2 * len(text) + len(by))),
    "quote_literal": (quote_literal, lambda text: 2 * _bytes(text)),
    "textcat": (lambda a, b: a + b, lambda a, b: _bytes(a) + _bytes(b)),
    "like": (like_matches, _like_size),
    "initcap": (_initcap, lambda text: ITEM * len(text) // 8),
    "bpchar": (lambda text, length: text[:length].ljust(length), lambda _, length: length),
    "concat_ws": (_concat_ws, lambda by, items: _joined_size(items, by)),
    "array_out": (join_array, _joined_size),
    "array_to_string": (_array_to_string, _joined_size),
    "decode": (_decode, lambda text, _: len(text)),
    "encode": (_encode, lambda value, _: 4 * len(value)),
}
FUNCTIONS: Final[Mapping[str, PythonFunction]] = {
    **{name: PythonFunction(call) for name, call in _PLAIN.items()},
    **{name: PythonFunction(call, size) for name, (call, size) in _SIZED.items()},
    "string_to_array": PythonFunction(_string_to_array, _split_size, strict=False),
    "array_to_string_null": PythonFunction(
        _array_to_string_or_null,
        lambda items, by, null: _joined_size(items or [], by or "", null),
        strict=False,
    ),
}
