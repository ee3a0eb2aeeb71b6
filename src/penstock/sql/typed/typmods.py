"""Type modifiers as pg_attribute.atttypmod has them (the typmodin functions).

In: a type and the numbers in parentheses behind it. Out: the packed modifier, -1 without any.
Raises PostgreSQL's errors (22023).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.errors import (
    FeatureNotSupported,
    InvalidParameterValue,
    SqlSyntaxError,
)
from penstock.sql.text.quoting import type_name

_VARHDRSZ: Final = 4
_BPCHAR, _VARCHAR, _NUMERIC = 1042, 1043, 1700
_MAX_LENGTH: Final = 10_485_760
_MAX_PRECISION: Final = 1000
_MAX_FRACTION: Final = 6
_WITH_PRECISION: Final = (1083, 1114, 1184, 1266)


def typmod_in(type_oid: int, numbers: Sequence[int]) -> int:
    """The packed modifier."""
    if not numbers:
        return -1
    if type_oid in (_BPCHAR, _VARCHAR):
        return _length(type_oid, numbers)
    if type_oid == _NUMERIC:
        return _numeric(numbers)
    if type_oid in _WITH_PRECISION:
        if numbers[0] < 0 or len(numbers) != 1:
            raise InvalidParameterValue("invalid type modifier")
        return min(numbers[0], _MAX_FRACTION)
    if type_oid in (16, 17, 19, 20, 21, 23, 25, 700, 701, 1082, 2950):
        raise SqlSyntaxError(f'type modifier is not allowed for type "{type_name(type_oid)}"')
    raise FeatureNotSupported(f"modifiers of type {type_name(type_oid)} are not supported")


def _length(type_oid: int, numbers: Sequence[int]) -> int:
    name = "varchar" if type_oid == _VARCHAR else "char"
    if len(numbers) != 1:
        raise InvalidParameterValue("invalid type modifier")
    if numbers[0] < 1:
        raise InvalidParameterValue(f"length for type {name} must be at least 1")
    if numbers[0] > _MAX_LENGTH:
        raise InvalidParameterValue(f"length for type {name} cannot exceed {_MAX_LENGTH}")
    return numbers[0] + _VARHDRSZ


def _numeric(numbers: Sequence[int]) -> int:
    precision, scale = (*numbers, 0)[:2]
    if len(numbers) > 2:
        raise InvalidParameterValue("invalid NUMERIC type modifier")
    if not 1 <= precision <= _MAX_PRECISION:
        raise InvalidParameterValue(
            f"NUMERIC precision {precision} must be between 1 and {_MAX_PRECISION}"
        )
    if abs(scale) > _MAX_PRECISION:
        raise InvalidParameterValue(
            f"NUMERIC scale {scale} must be between -{_MAX_PRECISION} and {_MAX_PRECISION}"
        )
    return (precision << 16 | scale & 0x7FF) + _VARHDRSZ
