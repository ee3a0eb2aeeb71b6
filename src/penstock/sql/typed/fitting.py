"""Length coercions of values by an assignment (varchar.c, numeric.c, timestamp.c).

In: a value in its type's text, the type's modifier. Out: the value as a column of that modifier
holds it, or PostgreSQL's error (22001, 22003).
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Final

from penstock.civil import EPOCH_MICROSECONDS, parse_timestamp, print_timestamp
from penstock.errors import FeatureNotSupported, PenstockError
from penstock.pgtypes.pg_type import BPCHAR, NUMERIC, TIMESTAMP, TIMESTAMPTZ, VARCHAR
from penstock.pgtypes.type_names import length_of, numeric_modifiers
from penstock.sql.text.quoting import type_name
from penstock.sql.typed.literals import canonical
from penstock.sqlstate import NumericValueOutOfRange, StringDataRightTruncation

_MAX_DIGITS: Final = 140_000
_MICROSECOND_DIGITS: Final = 6


def fitted(text: str, type_oid: int, typmod: int) -> str:
    """Return the value that a column holds.

    Raises PenstockError (22001, 22003), FeatureNotSupported for types with other modifiers.
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
    """Fit a varchar or bpchar: trailing blanks do not count."""
    if len(text) > length and text[length:].strip(" "):
        raise StringDataRightTruncation(f"value too long for type {type_name(type_oid)}({length})")
    text = text[:length]
    return text.ljust(length) if type_oid == BPCHAR else text


def rounded(text: str, scale: int) -> str:
    """Round a numeric, halves away from zero, to digits after the point; negative: before it."""
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
