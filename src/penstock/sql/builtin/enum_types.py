"""The node's enum types as rows of pg_type, for the running statement.

This file registers the enum types with ``type_cache``, which finds them. An enum's values sort in
the order of its labels, not alphabetically.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import lru_cache
from typing import Final

from penstock.enum_type import EnumType
from penstock.sql import builtin
from penstock.sql.builtin import Type, type_cache
from penstock.sql.text.quoting import quote_identifier

_ENUM_RECV: Final = 3532
"""pg_proc.oid of enum_recv"""


def remember_enums(enums: Sequence[EnumType]) -> None:
    """Set the enums that this thread's statements know from now on."""
    type_cache.remember(_types(tuple(enums)))


def known_enums(enums: Sequence[EnumType]) -> AbstractContextManager[None]:
    """Set the enums that are known inside the ``with`` block."""
    return type_cache.remembered(_types(tuple(enums)))


@lru_cache(maxsize=16)
def _types(enums: tuple[EnumType, ...]) -> tuple[Type, ...]:
    return tuple(type_ for enum in enums for type_ in type_rows(enum))


def enum_name(enum: EnumType) -> str:
    """Return the enum's name as format_type_be prints it.

    The schema is added if the name alone would mean another type, or no type.
    """
    name = quote_identifier(enum.name)
    if enum.schema in type_cache.SEARCH_PATH and enum.name not in builtin.types_by_name():
        return name
    return f"{quote_identifier(enum.schema)}.{name}"


def type_rows(enum: EnumType) -> tuple[Type, Type]:
    """Return the enum's row of pg_type and the row of its array type."""
    shown = enum_name(enum)
    own = Type(
        oid=enum.oid,
        name=enum.name,
        sql_name=shown,
        length=4,
        by_value=True,
        kind=type_cache.ENUM,
        category="E",
        preferred=False,
        delimiter=",",
        typelem=0,
        array=enum.array_oid,
        align="i",
        storage="p",
        collation=0,
        input="enum_in",
        output="enum_out",
        receive="enum_recv",
        receive_oid=_ENUM_RECV,
        schema=enum.schema,
        labels=enum.texts,
    )
    array = builtin.types_by_name()["_int4"]
    return own, replace(
        array,
        oid=enum.array_oid,
        name=enum.array_name,
        sql_name=f"{shown}[]",
        typelem=enum.oid,
        schema=enum.schema,
    )
