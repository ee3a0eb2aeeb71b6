"""The node's enum types as rows of pg_type, for the running statement.

``type_cache`` finds the types that this file sets. The order of an enum's values is that of its
labels, whatever their texts are.
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
    """Set the enums that the statements of this thread know from here on."""
    type_cache.remember(_types(tuple(enums)))


def known_enums(enums: Sequence[EnumType]) -> AbstractContextManager[None]:
    """Set the enums that the code within knows."""
    return type_cache.remembered(_types(tuple(enums)))


@lru_cache(maxsize=16)
def _types(enums: tuple[EnumType, ...]) -> tuple[Type, ...]:
    return tuple(type_ for enum in enums for type_ in type_rows(enum))


def enum_name(enum: EnumType) -> str:
    """Return the enum's name as format_type_be prints it.

    The schema is added if the name alone means another type, or none.
    """
    name = quote_identifier(enum.name)
    if enum.schema in type_cache.SEARCH_PATH and enum.name not in builtin.types_by_name():
        return name
    return f"{quote_identifier(enum.schema)}.{name}"


def type_rows(enum: EnumType) -> tuple[Type, Type]:
    """Return the rows of the type and of the type of its arrays."""
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
