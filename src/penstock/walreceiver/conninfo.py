"""Connection strings to the publisher, checked by libpq and kept secret (libpqrcv_check_conninfo).

``connection`` opens sessions by them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from psycopg import OperationalError
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from penstock.errors import SqlSyntaxError

# Settings of our sessions on the publisher. They override settings of the server, the database and
# the role (such as ``ALTER ROLE ... SET quote_all_identifiers = on``). Each setting that affects
# values, names or rows, or that ends a session or a transaction after some time, is listed here.
# ``lc_monetary`` stays unchanged, as in PostgreSQL's subscriber: it sets the number of fractional
# digits of a ``money`` value, so another value would change the amount.

_TEXT: Final = {
    # libpqrcv_connect sends these
    "datestyle": "ISO",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "timezone": "UTC",
    "bytea_output": "hex",
    # regclass, regtype and the like
    "quote_all_identifiers": "off",
    "search_path": "",
    "xmlbinary": "base64",
    "xmloption": "content",
}
"""Settings for printed values. Types that are kept as text must look the same in snapshot and
stream."""

_MEANING: Final = {
    "array_nulls": "on",
    # With a limit, a filter that uses an index may find only a random part of the rows.
    "gin_fuzzy_search_limit": "0",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    # With "off", a policy that would hide rows is an error.
    "row_security": "off",
}
"""Settings for the meaning of our queries and their row filters, and for the rows that the queries
find."""

_SILENCE: Final = {"client_min_messages": "error"}
"""No notices: nobody reads them, and a role's settings may cause several for each row."""

_TRANSACTIONS: Final = {
    "default_transaction_deferrable": "off",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
}

_TIMEOUTS: Final = {
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "lock_timeout": "0",
    "statement_timeout": "0",
}

_NEWER: Final = {"transaction_timeout": "0"}
"""Settings that not every server knows. An unknown name in the start-up options ends the
connection."""

SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {**_TEXT, **_MEANING, **_SILENCE, **_TRANSACTIONS, **_TIMEOUTS, **_NEWER}
)


def _escape(value: str) -> str:
    """Escape a value for ``options``, where a backslash keeps a blank (pg_split_opts)."""
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


SESSION_OPTIONS: Final = " ".join(
    f"-c {name}={_escape(value)}" for name, value in SETTINGS.items() if name not in _NEWER
)
"""Settings for the start-up packet. The first command needs them: it may exceed a time limit that
the role has."""

SESSION_SETTINGS: Final = (
    "SELECT pg_catalog.set_config(name, CASE pg_catalog.lower(name)"
    + "".join(f" WHEN '{name}' THEN '{value}'" for name, value in SETTINGS.items())
    + " END, false) FROM pg_catalog.pg_settings WHERE pg_catalog.lower(name) IN ("
    + ", ".join(f"'{name}'" for name in SETTINGS)
    + ")"
)
"""The first command of every session. It is needed because settings from the environment (PGTZ,
PGDATESTYLE) override the start-up options. It leaves out names that the server does not know."""


DEFAULT_CONNECT_TIMEOUT_S: Final = 10

_DEFAULTS: Final = {
    "connect_timeout": str(DEFAULT_CONNECT_TIMEOUT_S),
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
"""Our values for parameters that the user does not set: a dead peer is noticed within a minute."""

_KNOWN: Final = {option.keyword.decode(): option for option in Conninfo.get_defaults()}
_SECRET: Final = frozenset(name for name, option in _KNOWN.items() if option.dispchar == b"*")


@dataclass(frozen=True, slots=True)
class ConnInfo:
    """A valid connection string. ``text`` is as the user wrote it and may hold a password."""

    text: str = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> ConnInfo:
        """Check the syntax as libpq does. Raises SqlSyntaxError (42601), without any password."""
        _parse(text)
        return cls(text)

    @property
    def parameters(self) -> dict[str, str]:
        """The keywords that have a value, secrets included."""
        return _parse(self.text)

    def for_replication(self, application_name: str) -> str:
        """Return the string by which libpq opens a walsender of the named database
        (libpqrcv_connect)."""
        return self._with_session(application_name, {"replication": "database"})

    def for_sql(self, application_name: str) -> str:
        """Return the string by which libpq opens an ordinary session."""
        return self._with_session(application_name, {})

    def _with_session(self, application_name: str, extra: dict[str, str]) -> str:
        given = self.parameters
        settings = " ".join(filter(None, (given.get("options"), SESSION_OPTIONS)))
        return make_conninfo(
            **{
                **_DEFAULTS,
                "fallback_application_name": application_name,
                **{k: v for k, v in given.items() if k != "replication"},
                "options": settings,
                "client_encoding": "UTF8",
                **extra,
            }
        )

    def __str__(self) -> str:
        """Return the parameters without secrets, in keyword/value form."""
        return make_conninfo(**{k: v for k, v in self.parameters.items() if k not in _SECRET})

    def __repr__(self) -> str:
        return f"ConnInfo({str(self)!r})"


def _parse(text: str) -> dict[str, str]:
    try:
        options = Conninfo.parse(text.encode())
    except OperationalError as error:
        raise SqlSyntaxError(
            f"invalid connection string syntax: {_without_secrets(str(error).strip(), text)}",
            hint="Write keyword=value pairs or a postgresql:// URI; "
            "quote values that hold blanks with single quotes.",
        ) from None
    return {o.keyword.decode(): o.val.decode() for o in options if o.val is not None}


def _without_secrets(message: str, text: str) -> str:
    """Blank out the piece that libpq could not parse and quotes: it may be part of a password."""
    quoted = re.search(r'"(.*)"', message, re.DOTALL)
    if quoted is None or quoted[1] in _KNOWN or len(quoted[1]) <= 1:
        return message
    if "password" not in text.lower() and "://" not in text:
        return message
    return f'{message[: quoted.start()]}"***"{message[quoted.end() :]}'
