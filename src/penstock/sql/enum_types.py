"""The node's enum types as rows of pg_type, for the statement that runs.

In: the enum types of the node's catalog. Out: types that ``type_cache`` knows, and positions of
labels. The order of an enum's values is that of its labels, whatever their texts are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache

from penstock.enum_type import EnumType
from penstock.sql import builtin, type_cache
from penstock.sql.builtin import Type
from penstock.sql.quoting import quote_identifier


def remember_enums(enums: Sequence[EnumType]) -> None:
    """The statements of this thread know these from here on."""
    type_cache.remember(_types(tuple(enums)))


def known_enums(enums: Sequence[EnumType]) -> AbstractContextManager[None]:
    """What runs within knows these."""
    return type_cache.remembered(_types(tuple(enums)))


@lru_cache(maxsize=16)
def _types(enums: tuple[EnumType, ...]) -> tuple[Type, ...]:
    return tuple(type_ for enum in enums for type_ in _rows(enum))


def enum_name(enum: EnumType) -> str:
    """format_type_be: with the schema where the name alone means another type, or none."""
    name = quote_identifier(enum.name)
    if enum.schema in type_cache.SEARCH_PATH and enum.name not in builtin.types_by_name():
        return name
    return f"{quote_identifier(enum.schema)}.{name}"


def _rows(enum: EnumType) -> Iterator[Type]:
    """The type and the type of its arrays."""
    shown = enum_name(enum)
    yield Type(
        enum.oid,
        enum.name,
        shown,
        "E",
        False,
        type_cache.ENUM,
        0,
        enum.array_oid,
        0,
        enum.schema,
        enum.texts,
    )
    yield Type(
        enum.array_oid, enum.array_name, f"{shown}[]", "A", False, "b", enum.oid, 0, 0, enum.schema
    )
