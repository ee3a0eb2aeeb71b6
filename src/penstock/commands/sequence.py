"""Sequences of serial and identity columns (sequence.c, init_params; parse_utilcmd.c,
generateSerialExtraStmts).

``catalog.sequences`` returns the sequences' values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.catalog import SequenceParameters
from penstock.errors import FeatureNotSupported, InvalidParameterValue, SqlSyntaxError
from penstock.pgtypes.pg_type import INT2, INT4, INT8
from penstock.sql import ColumnDef, ColumnType, ConstrType
from penstock.sql.grammar.column import SequenceOption
from penstock.sql.text.quoting import type_name

_SERIAL: Final[Mapping[str, str]] = {
    "smallserial": "int2",
    "serial2": "int2",
    "serial": "int4",
    "serial4": "int4",
    "bigserial": "int8",
    "serial8": "int8",
}
"""The serial pseudo-types, and the types of their columns (transformColumnDefinition)."""
_BITS: Final = {INT2: 16, INT4: 32, INT8: 64}


@dataclass(frozen=True, slots=True)
class OwnedSequence:
    """The sequence of a column. ``identity``: a value of pg_attribute.attidentity; "" for a serial
    column."""

    column: str
    identity: str
    parameters: SequenceParameters


def serial_type(written: ColumnType) -> ColumnType | None:
    """Return a serial type's integer type; None for other types. Raises FeatureNotSupported."""
    name = None if written.schema else _SERIAL.get(written.name)
    if name is None:
        return None
    if written.array:
        raise FeatureNotSupported("array of serial is not implemented")
    return ColumnType(name)


def has_sequence(item: ColumnDef) -> bool:
    """Tell whether a column takes its values from a sequence."""
    return bool(item.identities) or serial_type(item.type) is not None


def check_sequence(item: ColumnDef, table: str) -> None:
    """Check that a column's clauses do not conflict with its sequence (transformColumnDefinition).
    Raises SqlSyntaxError."""
    of = f'specified for column "{item.name}" of table "{table}"'
    serial = serial_type(item.type) is not None
    if serial and item.default is not None:
        raise SqlSyntaxError(f"multiple default values {of}")
    if len(item.identities) > 1:
        raise SqlSyntaxError(
            f'multiple identity specifications for column "{item.name}" of table "{table}"'
        )
    if item.identities and (serial or item.default is not None):
        raise SqlSyntaxError(f"both default and identity {of}")
    if item.generations and serial:
        raise SqlSyntaxError(f"both default and generation expression {of}")
    if item.generations and item.identities:
        raise SqlSyntaxError(f"both identity and generation expression {of}")
    if ConstrType.NULL in item.constraints and has_sequence(item):
        raise SqlSyntaxError(
            f'conflicting NULL/NOT NULL declarations for column "{item.name}" of table "{table}"'
        )


def owned_sequence(item: ColumnDef, type_oid: int) -> OwnedSequence | None:
    """Return the sequence of a column, or None. Raises InvalidParameterValue (22023),
    SqlSyntaxError."""
    if not has_sequence(item):
        return None
    if not item.identities:
        return OwnedSequence(item.name, "", _parameters(type_oid, ()))
    if type_oid not in _BITS:
        raise InvalidParameterValue("identity column type must be smallint, integer, or bigint")
    (identity,) = item.identities
    return OwnedSequence(item.name, identity.kind, _parameters(type_oid, identity.options))


def _parameters(type_oid: int, options: Iterable[SequenceOption]) -> SequenceParameters:
    """Check a sequence's options and return its parameters (init_params)."""
    given: dict[str, int | bool | None] = {}
    for name, value in options:
        if name in given:
            raise SqlSyntaxError("conflicting or redundant options")
        given[name] = value
    said = {name: int(value) for name, value in given.items() if value is not None}
    increment = said.get("increment", 1)
    if increment == 0:
        raise InvalidParameterValue("INCREMENT must not be zero")
    half = 1 << _BITS[type_oid] - 1
    up = increment > 0
    maximum = said.get("maxvalue", half - 1 if up else -1)
    minimum = said.get("minvalue", 1 if up else -half)
    for word, value in (("MAXVALUE", maximum), ("MINVALUE", minimum)):
        if not -half <= value < half:
            raise InvalidParameterValue(
                f"{word} ({value}) is out of range for sequence data type {type_name(type_oid)}"
            )
    if minimum >= maximum:
        raise InvalidParameterValue(f"MINVALUE ({minimum}) must be less than MAXVALUE ({maximum})")
    start = said.get("start", minimum if up else maximum)
    if start < minimum:
        raise InvalidParameterValue(
            f"START value ({start}) cannot be less than MINVALUE ({minimum})"
        )
    if start > maximum:
        raise InvalidParameterValue(
            f"START value ({start}) cannot be greater than MAXVALUE ({maximum})"
        )
    cache = said.get("cache", 1)
    if cache <= 0:
        raise InvalidParameterValue(f"CACHE ({cache}) must be greater than zero")
    return SequenceParameters(
        type_oid, start, increment, minimum, maximum, cache, bool(given.get("cycle"))
    )
