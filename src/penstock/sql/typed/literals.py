"""Turn literals into constants: read them as the type's input function does.

The ``Const`` has the text that the type's output function prints. Raises PostgreSQL's errors
(22P02, 22003, 22007, 22008) for values that the type cannot hold; FeatureNotSupported for types
whose literals are not supported.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final, NoReturn

import pyarrow as pa

from penstock.errors import FeatureNotSupported, InvalidParameterValue
from penstock.guc import parse_bool
from penstock.identifiers import truncated
from penstock.pgtypes import pg_type
from penstock.sql.builtin import Type
from penstock.sql.builtin.type_cache import ENUM, types
from penstock.sql.text.array_literals import read_array
from penstock.sql.text.datetime_literals import read_date, read_timestamp
from penstock.sql.text.interval_literals import read_interval
from penstock.sql.text.number_literals import (
    SPACE,
    float_reader,
    integer_reader,
    invalid,
    read_numeric,
    unsigned_reader,
)
from penstock.sql.text.quoting import type_name
from penstock.sql.text.range_literals import read_range
from penstock.sql.text.time_literals import read_time
from penstock.sql.typed.primnodes import Const, Constants
from penstock.sqlstate import (
    InvalidTextRepresentation,
    StatementTooComplex,
    UntranslatableCharacter,
)

_HEX: Final = re.compile(r"(?:[0-9a-fA-F]{2}|[ \n\t\r])*+")
_UUID: Final = re.compile(r"\{?(?:[0-9a-fA-F]{4}-?){7}[0-9a-fA-F]{4}\}?")


def read_literal(text: str | None, type_oid: int) -> Const:
    """Return a literal as a constant of this type."""
    if text is None:
        return Const(type_oid, None)
    return Const(type_oid, canonical(text, type_oid))


def read_literals(texts: Sequence[str | None], type_oid: int) -> Constants:
    """Return literals as constants of this type."""
    if type_oid in (pg_type.TEXT, pg_type.VARCHAR):
        return Constants(type_oid, tuple(texts))
    read = (None if text is None else canonical(text, type_oid) for text in texts)
    return Constants(type_oid, tuple(read))


def canonical(text: str, type_oid: int) -> str:
    """Read ``text`` with the input function, and return the output function's text."""
    type_ = types().get(type_oid)
    if type_ is not None and type_.element and type_oid not in _READERS:
        return read_array(text, lambda item: canonical(item, type_.element))
    if type_ is not None and type_.kind == ENUM:
        return _enum(text, type_)
    reader = _READERS.get(type_oid)
    if reader is None:
        raise FeatureNotSupported(f"constants of type {type_name(type_oid)} are not supported")
    return reader(text)


def _enum(text: str, type_: Type) -> str:
    """Read an enum's label, which must match exactly (enum_in)."""
    if text not in type_.labels:
        message = f'invalid input value for enum {type_.sql_name}: "{text}"'
        raise InvalidTextRepresentation(message)
    return text


def _boolean(text: str) -> str:
    value = parse_bool(text.strip(SPACE))
    if value is None:
        raise invalid("boolean", text)
    return "t" if value else "f"


def _uuid(text: str) -> str:
    braces = text.startswith("{") == text.endswith("}")
    if not _UUID.fullmatch(text) or not braces:
        raise invalid("uuid", text)
    digits = re.sub(r"[{}-]", "", text).lower()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _bytea(text: str) -> str:
    if text.startswith("\\x"):
        return "\\x" + _hex_digits(text[2:])
    if not re.fullmatch(r"(?:[^\\]|\\\\|\\[0-3][0-7][0-7])*+", text):
        raise InvalidTextRepresentation("invalid input syntax for type bytea")
    data = re.sub(
        rb"\\(\\|[0-7]{3})",
        lambda match: b"\\" if match[1] == b"\\" else bytes([int(match[1], 8)]),
        text.encode(),
    )
    return "\\x" + data.hex()


def _hex_digits(text: str) -> str:
    """Return the hexadecimal digits; blanks are allowed only between bytes (hex_decode_safe)."""
    match = _HEX.match(text)
    rest = text[match.end() :] if match else text
    if len(rest) == 1 and rest in string.hexdigits:
        raise InvalidParameterValue("invalid hexadecimal data: odd number of digits")
    if rest:
        wrong = rest[1] if rest[0] in string.hexdigits else rest[0]
        raise InvalidParameterValue(f'invalid hexadecimal digit: "{wrong}"')
    return re.sub(r"[ \n\t\r]", "", text).lower()


def _same(text: str) -> str:
    return text


def _char(text: str) -> str:
    """Read and print one byte (charin, charout); a byte beyond ASCII is printed as octal digits."""
    if re.match(r"\\[0-3][0-7][0-7]\Z", text):
        byte = int(text[1:], 8)
    else:
        byte = (text.encode() or b"\0")[0]
    if byte > 127:
        return f"\\{byte:03o}"
    return chr(byte) if byte else ""


def _lsn(text: str) -> str:
    if not re.fullmatch(r"[0-9a-fA-F]{1,8}/[0-9a-fA-F]{1,8}", text):
        raise invalid("pg_lsn", text)
    return "/".join(f"{int(half, 16):X}" for half in text.split("/"))


def _vector(item: int) -> Callable[[str], str]:
    """Return a reader of numbers separated by blanks (int2vectorin, oidvectorin)."""
    return lambda text: " ".join(canonical(number, item) for number in text.split())


SUBTYPES: Final = {
    3904: pg_type.INT4,
    3906: pg_type.NUMERIC,
    3908: pg_type.TIMESTAMP,
    3910: pg_type.TIMESTAMPTZ,
    3912: pg_type.DATE,
    3926: pg_type.INT8,
}
"""pg_range.rngsubtype by rngtypid."""
_SUCCESSORS: Final = {pg_type.INT4: 32, pg_type.INT8: 64, pg_type.DATE: 1}


def _range(subtype: int) -> Callable[[str], str]:
    def key(bound: str) -> Any:
        """Return what sorts like the bound."""
        if subtype in (pg_type.INT4, pg_type.INT8, pg_type.NUMERIC):
            number = Decimal(bound)
            return (True, 0) if number.is_nan() else (False, number)
        if "BC" in bound or "infinity" in bound:
            raise FeatureNotSupported(f'a range with the bound "{bound}" is not supported')
        return bound.index("-"), bound

    bits = _SUCCESSORS.get(subtype, 0)
    return lambda text: read_range(text, lambda item: canonical(item, subtype), key, bits)


# Read literals of json and jsonb (json.c, jsonb.c).
#
# The result is the text that the output functions print. json stays as it was written. jsonb is
# printed with sorted, unique keys, and numbers as numeric_out prints them.

_SURROGATES = range(0xD800, 0xE000)


class _Number(str):
    """The text of a number, as it was written."""


def read_json(text: str) -> str:
    """Read a json. Raises PenstockError (22P02)."""
    _loaded(text)
    return text


def read_jsonb(text: str) -> str:
    """Read a jsonb. Raises PenstockError (22P02, 22P05)."""
    try:
        return _printed(_loaded(text))
    except RecursionError:
        raise StatementTooComplex("stack depth limit exceeded") from None


def _loaded(text: str) -> Any:
    def wrong(_: str) -> NoReturn:
        raise ValueError

    try:
        return json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=wrong)
    except ValueError:
        raise InvalidTextRepresentation("invalid input syntax for type json") from None
    except RecursionError:
        raise StatementTooComplex("stack depth limit exceeded") from None


def _printed(value: Any) -> str:
    match value:
        case _Number():
            return read_numeric(value)
        case str():
            return _string(value)
        case list():
            return f"[{', '.join(map(_printed, value))}]"
        case dict():
            ordered = sorted(value.items(), key=lambda item: (len(item[0].encode()), item[0]))
            shown = (f"{_string(name)}: {_printed(inner)}" for name, inner in ordered)
            return "{" + ", ".join(shown) + "}"
    return json.dumps(value)


def _string(text: str) -> str:
    if "\0" in text:
        raise UntranslatableCharacter("unsupported Unicode escape sequence")
    if any(ord(character) in _SURROGATES for character in text):
        raise InvalidTextRepresentation("invalid input syntax for type json")
    return json.dumps(text, ensure_ascii=False)


_READERS: Final[dict[int, Callable[[str], str]]] = {
    pg_type.BOOL: _boolean,
    pg_type.BYTEA: _bytea,
    pg_type.CHAR: _char,
    pg_type.NAME: truncated,
    pg_type.INT8: integer_reader(64, "bigint"),
    pg_type.INT2: integer_reader(16, "smallint"),
    pg_type.INT4: integer_reader(32, "integer"),
    pg_type.INT2VECTOR: _vector(pg_type.INT2),
    pg_type.TEXT: _same,
    pg_type.OID: unsigned_reader(32, "oid"),
    pg_type.XID: unsigned_reader(32, "xid"),
    pg_type.OIDVECTOR: _vector(pg_type.OID),
    pg_type.JSON: read_json,
    pg_type.JSONB: read_jsonb,
    pg_type.FLOAT4: float_reader("real", pa.float32()),
    pg_type.FLOAT8: float_reader("double precision", pa.float64()),
    pg_type.BPCHAR: _same,
    pg_type.VARCHAR: _same,
    pg_type.DATE: read_date,
    pg_type.TIMESTAMP: lambda text: read_timestamp(text, zone=False),
    pg_type.TIMESTAMPTZ: lambda text: read_timestamp(text, zone=True),
    pg_type.INTERVAL: lambda text: str(read_interval(text)),
    pg_type.TIME: lambda text: read_time(text, zone=False),
    pg_type.TIMETZ: lambda text: read_time(text, zone=True),
    pg_type.NUMERIC: read_numeric,
    pg_type.UUID: _uuid,
    pg_type.PG_LSN: _lsn,
    pg_type.XID8: unsigned_reader(64, "xid8"),
    **dict.fromkeys(pg_type.REG_TYPES, _same),
    pg_type.UNKNOWN: _same,
    **{oid: _range(subtype) for oid, subtype in SUBTYPES.items()},
}
