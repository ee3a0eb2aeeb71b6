"""Columns and values of wal2json's two formats.

In: a tuple of a table, and the options. Out: what stands in the JSON of a change: lists of names,
types and values in format 1, objects in format 2. Values are numbers, booleans and strings by their
types; NaN and infinities, which JSON has not, are null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from penstock.decoding.plugins.wal2json_options import Wal2JsonOptions
from penstock.decoding.relation_data import AttributeData, RelationData
from penstock.decoding.tuple_columns import Tuple, Unsent
from penstock.pgtypes.pg_type import BOOL, BYTEA, FLOATS, INTEGERS, NUMERIC, OID, types

_NUMBERS: Final = INTEGERS | FLOATS | {NUMERIC, OID}
_BYTEA_MARK: Final = "\\x"

Cell = tuple[AttributeData, str]
"""A column and its value, as JSON."""
Shown = tuple[AttributeData, str | None]
"""The value is None where it is not printed."""


def quoted(text: str) -> str:
    """escape_json"""
    return json.dumps(text, ensure_ascii=False)


def columns_of(relation: RelationData, row: Tuple, options: Wal2JsonOptions) -> list[Cell]:
    """All columns that are there; a TOAST value that did not change is not."""
    return list(_cells(relation, row, options))


def identity_of(
    relation: RelationData, old: Tuple | None, new: Tuple | None, options: Wal2JsonOptions
) -> list[Cell]:
    """The replica identity's columns, of the new tuple where the old one was not needed to tell
    them. Format 1 leaves out those that are NULL."""
    row = new if old is None else old
    if row is None:
        return []
    return [
        (attribute, shown)
        for attribute, shown in _cells(
            relation, row, options, without_null=options.format_version == 1
        )
        if attribute.key
    ]


def type_of(attribute: AttributeData, options: Wal2JsonOptions) -> str:
    """As format_type prints it; in format 1, without modifiers, by its name in pg_type. What
    begins with a quote is printed as it is, if it is no array."""
    if options.include_typmod or options.format_version > 1:
        shown = attribute.type_text
    else:
        known = types().get(attribute.type_oid)
        shown = _typname(attribute.type_name) if known is None else known.name
    return shown if shown.startswith('"') and not shown.endswith("]") else quoted(shown)


def _typname(shown: str) -> str:
    """The name in pg_type of a type that format_type prints so."""
    element = shown.removesuffix("[]")
    (name,) = re.findall(r'("(?:[^"]|"")*"|[^".]+)$', element) or [element]
    if name.startswith('"'):
        name = name[1:-1].replace('""', '"')
    return name if element == shown else f"_{name}"


def lists(
    prefix: str, cells: list[Cell], options: Wal2JsonOptions, comma: str
) -> Iterator[tuple[str, str]]:
    """Format 1: keys and arrays. ``prefix``: ``column`` or ``key``."""

    def array(of: Callable[[AttributeData], str]) -> str:
        return f"[{comma.join(of(attribute) for attribute, _ in cells)}]"

    is_column = prefix == "column"
    yield f"{prefix}names", array(lambda a: quoted(a.name))
    if options.include_types:
        yield f"{prefix}types", array(lambda a: type_of(a, options))
    if options.include_type_oids:
        yield f"{prefix}typeoids", array(lambda a: str(a.type_oid))
    if is_column and options.include_column_positions:
        yield "columnpositions", array(lambda a: str(a.position))
    if is_column and options.include_not_null:
        # wal2json finds them together with the types.
        optionals = array(lambda a: _boolean(not a.not_null))
        yield "columnoptionals", optionals if options.include_types else "[]"
    yield f"{prefix}values", f"[{comma.join(value for _, value in cells)}]"


def objects(cells: Sequence[Shown], options: Wal2JsonOptions, *, identity: bool) -> str:
    """Format 2: an array of objects."""
    return f"[{','.join(_object(cell, options, identity) for cell in cells)}]"


def _object(cell: Shown, options: Wal2JsonOptions, identity: bool) -> str:
    attribute, value = cell
    parts = [f'"name":{quoted(attribute.name)}']
    if options.include_types:
        parts.append(f'"type":{type_of(attribute, options)}')
    if options.include_type_oids:
        parts.append(f'"typeoid":{attribute.type_oid}')
    if value is not None:
        parts.append(f'"value":{value}')
    if options.include_not_null and not identity:
        parts.append(f'"optional":{_boolean(not attribute.not_null)}')
    if options.include_column_positions and not identity:
        parts.append(f'"position":{attribute.position}')
    return f"{{{','.join(parts)}}}"


def _cells(
    relation: RelationData, row: Tuple, options: Wal2JsonOptions, *, without_null: bool = False
) -> Iterator[Cell]:
    for index, attribute in enumerate(relation.attributes):
        text = row.text(index)
        if isinstance(text, Unsent) or (text is None and without_null):
            continue
        yield attribute, "null" if text is None else _value(attribute.type_oid, text, options)


def _value(type_oid: int, text: str, options: Wal2JsonOptions) -> str:
    if type_oid in _NUMBERS:
        if options.numeric_data_types_as_string:
            return quoted(text)
        return "null" if text in ("NaN", "Infinity", "-Infinity") else text
    if type_oid == BOOL:
        return _boolean(text == "t")
    if type_oid == BYTEA:
        return quoted(text.removeprefix(_BYTEA_MARK))
    return quoted(text)


def _boolean(value: bool) -> str:
    return "true" if value else "false"
