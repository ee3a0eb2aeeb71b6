"""Types of the running statement, by oid and by name (typcache.c).

They are PostgreSQL's own types and the node's enums, which ``enum_types`` sets when a statement
begins. The cache belongs to the thread, as PostgreSQL's does to a backend, so functions of the
analysis need not pass types to one another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from penstock.attribute import Attribute
from penstock.pgtypes.pg_type import RECORD
from penstock.protocol.backend_messages import FieldDescription
from penstock.sql import builtin
from penstock.sql.builtin import Type

SEARCH_PATH: Final = ("public",)
"""The schemas in which a name without a schema is looked up, after pg_catalog."""
ENUM: Final = "e"
"""pg_type.typtype"""
_VARIABLE: Final = -1
"""pg_type.typlen of a type of variable length"""


@dataclass(frozen=True, slots=True)
class _Known:
    by_oid: Mapping[int, Type]
    by_name: Mapping[tuple[str, str], Type]


_CURRENT: ContextVar[_Known | None] = ContextVar("types", default=None)


def remember(own: Sequence[Type]) -> None:
    """Set the node's own types for this thread from now on."""
    _CURRENT.set(_known(tuple(own)) if own else None)


@contextmanager
def remembered(own: Sequence[Type]) -> Iterator[None]:
    """Set the node's own types inside the ``with`` block."""
    token = _CURRENT.set(_known(tuple(own)) if own else None)
    try:
        yield
    finally:
        _CURRENT.reset(token)


@lru_cache(maxsize=16)
def _known(own: tuple[Type, ...]) -> _Known:
    by_oid = {**builtin.types(), **{type_.oid: type_ for type_ in own}}
    return _Known(by_oid, {(type_.schema, type_.name): type_ for type_ in own})


def types() -> Mapping[int, Type]:
    """Return all types by oid."""
    known = _CURRENT.get()
    return builtin.types() if known is None else known.by_oid


def named_type(name: str, schema: str | None = None) -> Type | None:
    """Return the type of that name; without a schema PostgreSQL's own types come first."""
    known = _CURRENT.get()
    own = {} if known is None else known.by_name
    if schema is not None:
        return own.get((schema, name))
    found = builtin.types_by_name().get(name)
    return found or next((own[s, name] for s in SEARCH_PATH if (s, name) in own), None)


def is_enum(oid: int) -> bool:
    """Tell whether the type is one of the node's enum types."""
    type_ = types().get(oid)
    return type_ is not None and type_.kind == ENUM


def field_descriptions(columns: Iterable[Attribute]) -> tuple[FieldDescription, ...]:
    """Return the fields of RowDescription for columns of a result (printtup.c,
    SendRowDescriptionMessage). A record's modifier is left out: only the analysis needs it."""
    return tuple(
        FieldDescription(
            replace(column, typmod=-1) if column.type_oid == RECORD else column,
            _VARIABLE if (known := types().get(column.type_oid)) is None else known.length,
        )
        for column in columns
    )
