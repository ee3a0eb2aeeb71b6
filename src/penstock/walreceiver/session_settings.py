"""Settings of our sessions on the publisher, so that nobody else's settings change what is read.

In: nothing. Out: the start-up ``options`` and one command, for every session that we open: streams,
backlogs, the holder of a snapshot, executors that copy, questions. A server, a database or a role
may be set to anything (``ALTER ROLE ... SET quote_all_identifiers = on``). Each setting that shapes
values, names or rows, or that ends a session or a transaction after some time, has its value here.

``lc_monetary`` is left alone, as a stock subscriber does: it decides how many digits of a ``money``
value are a fraction, so that another value would change the amount.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_TEXT: Final = {
    # those that libpqrcv_connect sends
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
"""Settings of how values are printed. The types that are kept as text must look the same in
snapshot and stream."""

_MEANING: Final = {
    "array_nulls": "on",
    # With a limit, a filter that uses an index may find only a random part of the rows.
    "gin_fuzzy_search_limit": "0",
    "standard_conforming_strings": "on",
    "transform_null_equals": "off",
    # With "off", a policy that would hide rows is an error.
    "row_security": "off",
}
"""Settings of how our queries, and the row filters in them, are read, and which rows they find."""

_SILENCE: Final = {"client_min_messages": "error"}
"""No notices: nobody reads them, and some setting of a role may bring several with each row."""

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
"""Settings for the start-up packet. The first command needs them: it may take longer than a time
limit of the role's."""

SESSION_SETTINGS: Final = (
    "SELECT pg_catalog.set_config(name, CASE pg_catalog.lower(name)"
    + "".join(f" WHEN '{name}' THEN '{value}'" for name, value in SETTINGS.items())
    + " END, false) FROM pg_catalog.pg_settings WHERE pg_catalog.lower(name) IN ("
    + ", ".join(f"'{name}'" for name in SETTINGS)
    + ")"
)
"""The first command of every session. It is needed as settings from the environment (PGTZ,
PGDATESTYLE) win over the start-up options. It leaves out names that the server does not know."""
