"""Input functions of columns: read a text as the value of a column's type and modifier.

The text was written by a user or by another type's output function. The result is the text that the
column type's output function prints; invalid text raises PostgreSQL's error. ``literals`` reads
fewer types, because expressions must be able to compute with the values.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal, localcontext
from functools import partial
from typing import Final

from penstock.civil import (
    EPOCH_MICROSECONDS,
    parse_timestamp,
    print_timestamp,
)
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.pgtypes import pg_type
from penstock.pgtypes.pg_type import (
    BIT,
    BPCHAR,
    INTERVAL,
    NUMERIC,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    TIMETZ,
    VARBIT,
    VARCHAR,
)
from penstock.pgtypes.type_names import length_of, numeric_modifiers
from penstock.sql.builtin.type_cache import ENUM, types
from penstock.sql.text.array_literals import read_array
from penstock.sql.text.number_literals import invalid
from penstock.sql.text.quoting import type_name, type_text
from penstock.sql.text.time_literals import read_time
from penstock.sql.typed.literals import canonical
from penstock.sqlstate import (
    InvalidTextRepresentation,
    NumericValueOutOfRange,
    StringDataLengthMismatch,
    StringDataRightTruncation,
)

_BY_NAME: Final = pg_type.types_by_name()
_NAMES: Final = """
bool bytea char name int8 int2 int4 text oid json jsonb float4 float8 bpchar varchar date
timestamp timestamptz interval numeric uuid pg_lsn
"""
_PLAIN: Final = frozenset(_BY_NAME[name].oid for name in _NAMES.split())
"""Types for which ``literals`` reads every value that PostgreSQL prints."""


# Read network addresses in literals (network.c, inet_net_pton.c, mac.c).
#
# The result is the text that inet_out, cidr_out and macaddr_out print.

_PARTS: Final = re.compile(r"([0-9a-fA-F:.]+)(?:/(\d{1,3}))?", re.ASCII)
_MAC: Final = (
    *(re.compile(rf"\s*{sep.join([r'([0-9a-fA-F]+)'] * 6)}\s*", re.ASCII) for sep in ":-"),
    *(
        re.compile(rf"\s*{sep.join([r'([0-9a-fA-F]{2})' * of] * (6 // of))}\s*", re.ASCII)
        for sep, of in ((":", 3), ("-", 3), (r"\.", 2), ("-", 2), ("", 6))
    ),
)
_OCTET: Final = 255
_SHORT: Final = re.compile(r"(?!\d*\.\d*\.\d*\.\d*(?:/|\Z))(?:[0-9.]+|0[xX][0-9a-fA-F]+)(?:/\d+)?")
"""IPv4 addresses that are not four decimal numbers: shortened or hexadecimal."""


def read_inet(text: str) -> str:
    """Read an inet. Raises 22P02; FeatureNotSupported for shortened addresses."""
    if _SHORT.fullmatch(text) and "/" in text:
        raise FeatureNotSupported(f'"{text}" is not supported as an inet')
    address, bits = _address(text, "inet")
    return str_of(address) if bits == address.max_prefixlen else f"{str_of(address)}/{bits}"


def read_cidr(text: str) -> str:
    """Read a cidr. Raises 22P02; FeatureNotSupported for shortened addresses."""
    if _SHORT.fullmatch(text):
        raise FeatureNotSupported(f'"{text}" is not supported as a cidr')
    address, bits = _address(text, "cidr")
    if int(address) & ((1 << address.max_prefixlen - bits) - 1):
        raise InvalidTextRepresentation(
            f'invalid cidr value: "{text}"', detail="Value has bits set to right of mask."
        )
    return f"{str_of(address)}/{bits}"


def _address(text: str, name: str) -> tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]:
    match = _PARTS.fullmatch(text)
    if match is None:
        raise invalid(name, text)
    try:
        address = ipaddress.ip_address(_without_zeros(match[1]))
    except ValueError:
        if {":", "."} <= set(match[1]) or match[1][-1] in ".:":  # inet_net_pton reads some
            raise FeatureNotSupported(f'"{text}" is not supported as {name}') from None
        raise invalid(name, text) from None
    bits = address.max_prefixlen if match[2] is None else int(match[2])
    zero = match[2] is not None and address.version == 6 and match[2] != str(bits)
    if bits > address.max_prefixlen or zero:
        raise invalid(name, text)
    return address, bits


def _without_zeros(address: str) -> str:
    """Drop leading zeros: inet_net_pton reads 010 as 10, which Python refuses."""
    if ":" in address:
        return address
    return ".".join(part.lstrip("0") or part[:1] for part in address.split("."))


def str_of(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Print an address as inet_net_ntop does: an IPv4 address inside an IPv6 one is dotted."""
    if address.version == 6 and (mapped := _embedded(address)):
        return mapped
    return str(address)


def _embedded(address: ipaddress.IPv6Address) -> str | None:
    groups = [int(address) >> 16 * (7 - n) & 0xFFFF for n in range(8)]
    quad = str(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if any(groups[:5]):
        return None
    if groups[5] == 0xFFFF:
        return f"::ffff:{quad}"
    if groups[5] == 0 and groups[6] != 0:
        return f"::{quad}"
    return None


def read_macaddr(text: str) -> str:
    """Read a macaddr. Raises 22P02, 22003; FeatureNotSupported for forms that are not read here."""
    for form in _MAC:
        if match := form.fullmatch(text):
            parts = [int(part, 16) for part in match.groups()]
            if max(parts) > _OCTET:
                raise NumericValueOutOfRange(f'invalid octet value in "macaddr" value: "{text}"')
            return ":".join(f"{part:02x}" for part in parts)
    if re.fullmatch(r"[-+:.0-9a-fA-FxX\s]+", text):  # PostgreSQL's sscanf may read it
        raise FeatureNotSupported(f'"{text}" is not supported as a macaddr')
    raise invalid("macaddr", text)


_OTHERS: Final[dict[int, Callable[[str], str]]] = {
    _BY_NAME["inet"].oid: read_inet,
    _BY_NAME["cidr"].oid: read_cidr,
    _BY_NAME["macaddr"].oid: read_macaddr,
}
_WITH_MODIFIERS: Final = frozenset({BPCHAR, VARCHAR, NUMERIC, TIMESTAMP, TIMESTAMPTZ})
_ANY_PRECISION: Final = 6


def has_input(type_oid: int, typmod: int) -> bool:
    """Tell whether every text that PostgreSQL prints for the type can be read here."""
    type_ = types().get(type_oid)
    if type_ is None:
        return False
    if type_.element and not type_.is_vector:
        return has_input(type_.element, typmod)
    if type_oid == INTERVAL:
        return typmod < 0
    return type_.kind == ENUM or type_oid in _PLAIN | _OTHERS.keys() | {TIME, TIMETZ, BIT, VARBIT}


def input_function(type_oid: int, typmod: int) -> Callable[[str], str]:
    """Return the reader of a type that ``has_input``.

    It raises PostgreSQL's errors; FeatureNotSupported for text that PostgreSQL may read and we do
    not.
    """
    type_ = types()[type_oid]
    if type_.element and not type_.is_vector:
        element = input_function(type_.element, typmod)
        return partial(read_array, canonical=element)
    if type_oid in (BIT, VARBIT):
        return partial(read_bit, typmod=typmod, varying=type_oid == VARBIT)
    if type_oid in (TIME, TIMETZ):
        digits = _ANY_PRECISION if typmod < 0 else typmod
        return partial(read_time, zone=type_oid == TIMETZ, digits=digits)
    if type_oid in _OTHERS:
        return _OTHERS[type_oid]
    if not has_input(type_oid, typmod):
        raise FeatureNotSupported(f"values of type {type_text(type_oid, typmod)} are not read")
    if typmod < 0 or type_oid not in _WITH_MODIFIERS:
        return partial(canonical, type_oid=type_oid)
    return lambda text: fitted(canonical(text, type_oid), type_oid, typmod)


# Read bit strings in literals (varbit.c): ``101``, ``b101``, ``x1F``.
#
# The result is the text that bit_out prints, fitted to the type's modifier.

_HEX = "0123456789abcdefABCDEF"


def read_bit(text: str, typmod: int, *, varying: bool) -> str:
    """Read a bit string as bit_in and varbit_in do: they check the length before the digits.

    ``typmod``: the length, -1 for any. Raises 22P02, 22026, 22001.
    """
    hexadecimal = text[:1] in ("x", "X")
    digits = text[1:] if text[:1] in ("x", "X", "b", "B") else text
    bits = len(digits.encode()) * (4 if hexadecimal else 1)
    if typmod > 0 and varying and bits > typmod:
        raise StringDataRightTruncation(f"bit string too long for type bit varying({typmod})")
    if typmod > 0 and not varying and bits != typmod:
        raise StringDataLengthMismatch(
            f"bit string length {bits} does not match type bit({typmod})"
        )
    allowed, name = (_HEX, "hexadecimal") if hexadecimal else ("01", "binary")
    wrong = next((digit for digit in digits if digit not in allowed), None)
    if wrong is not None:
        raise InvalidTextRepresentation(f'"{wrong}" is not a valid {name} digit')
    return "".join(f"{int(digit, 16):04b}" for digit in digits) if hexadecimal else digits


_MAX_DIGITS: Final = 140_000
_MICROSECOND_DIGITS: Final = 6


def fitted(text: str, type_oid: int, typmod: int) -> str:
    """Return the value that a column of this type and modifier stores.

    Raises PenstockError (22001, 22003); FeatureNotSupported for modifiers of other types.
    """
    if type_oid in (BPCHAR, VARCHAR):
        return _string(text, type_oid, length_of(typmod))
    if type_oid == NUMERIC:
        return _numeric(text, typmod)
    if type_oid in (TIMESTAMP, TIMESTAMPTZ):
        return _timestamp(text, type_oid, typmod)
    raise FeatureNotSupported(
        f"a default for a column of type {type_name(type_oid)} with a modifier is not supported"
    )


def _string(text: str, type_oid: int, length: int) -> str:
    """Fit a varchar or bpchar: only trailing blanks may be cut off."""
    if len(text) > length and text[length:].strip(" "):
        raise StringDataRightTruncation(f"value too long for type {type_name(type_oid)}({length})")
    text = text[:length]
    return text.ljust(length) if type_oid == BPCHAR else text


def rounded(text: str, scale: int) -> str:
    """Round a numeric, halves away from zero, to ``scale`` digits, which may be negative."""
    with localcontext() as context:
        context.prec = _MAX_DIGITS
        exact = Decimal(text).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
    return canonical(f"{exact:f}", NUMERIC)


def _numeric(text: str, typmod: int) -> str:
    """Fit a numeric (apply_typmod)."""
    modifiers = numeric_modifiers(typmod)
    if modifiers is None:
        return text
    precision, scale = modifiers
    if text == "NaN":
        return text
    shown = f"A field with precision {precision}, scale {scale}"
    if "Infinity" in text:
        raise _overflow(f"{shown} cannot hold an infinite value.")
    found = rounded(text, scale)
    number = Decimal(found)
    if number and number.adjusted() >= precision - scale:
        whole = precision - scale
        bound = f"10^{whole}" if whole else "1"
        raise _overflow(f"{shown} must round to an absolute value less than {bound}.")
    return found


def _overflow(detail: str) -> PenstockError:
    return NumericValueOutOfRange("numeric field overflow", detail=detail)


def _timestamp(text: str, type_oid: int, digits: int) -> str:
    """Fit a timestamp (AdjustTimestampForTypmod)."""
    zone = type_oid == TIMESTAMPTZ
    moment = parse_timestamp(text.encode(), zone)
    if moment is None:  # infinity
        return text
    unit = 10 ** (_MICROSECOND_DIGITS - digits)
    since = moment - EPOCH_MICROSECONDS
    whole = (abs(since) + unit // 2) // unit * unit
    return print_timestamp(EPOCH_MICROSECONDS + (whole if since >= 0 else -whole), zone)
