"""Schemas in which a statement looks up names without a schema (namespace.c, fetch_search_path).

The session sets them, and the name of its database, when a statement begins. They are valid for the
thread, as the types of ``type_cache``, so functions that look up tables need not pass them on.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Final

from penstock.errors import FeatureNotSupported
from penstock.identifiers import split_identifiers

_PUBLIC: Final = ("public",)
_USER: Final = "$user"
_DATABASE: ContextVar[str | None] = ContextVar("database", default=None)
_CURRENT: ContextVar[tuple[str, ...]] = ContextVar("search_path", default=_PUBLIC)


def remember_database(name: str) -> None:
    """Set the name of the database for this thread from here on."""
    _DATABASE.set(name)


def check_database(database: str | None, name: str) -> None:
    """Check that a name's database, if it has one, is the session's. Raises FeatureNotSupported."""
    if database not in (None, _DATABASE.get() or database):
        raise FeatureNotSupported(f'cross-database references are not implemented: "{name}"')


def search_path() -> tuple[str, ...]:
    """Return the schemas in order; some may not exist. Outside of sessions it is ``public``."""
    return _CURRENT.get()


def schemas_to_search(name: str | None) -> tuple[str, ...]:
    """Return the schema of a name that has one, or else the search path."""
    return search_path() if name is None else (name,)


def remember_search_path(schemas: tuple[str, ...]) -> None:
    """Set the schemas for this thread from here on."""
    _CURRENT.set(schemas)


def read_search_path(text: str, user: str | None) -> tuple[str, ...]:
    """Return the schemas that a value of ``search_path`` names. ``user``: the schema for ``$user``,
    or None if there is none."""
    names = split_identifiers(text) or ()
    found = (user if name == _USER else name for name in names)
    return tuple(name for name in found if name)
