"""Connection strings to the publisher, checked by libpq and kept secret (libpqrcv_check_conninfo).

In: what the user wrote after CONNECTION, keyword/value or URI. Out: ``ConnInfo``, which prints
without secrets everywhere, and the parameters that a replication or SQL connection is opened with.
``connection`` opens them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from psycopg import OperationalError
from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo

from penstock.errors import SqlSyntaxError
from penstock.walreceiver.session_settings import SESSION_OPTIONS

DEFAULT_CONNECT_TIMEOUT_S: Final = 10

_DEFAULTS: Final = {
    "connect_timeout": str(DEFAULT_CONNECT_TIMEOUT_S),
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
}
"""Our values for what the user does not set: a dead peer is noticed within a minute."""

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
    """Blank out the piece that libpq could not read and quotes, if it may be part of a password."""
    quoted = re.search(r'"(.*)"', message, re.DOTALL)
    if quoted is None or quoted[1] in _KNOWN or len(quoted[1]) <= 1:
        return message
    if "password" not in text.lower() and "://" not in text:
        return message
    return f'{message[: quoted.start()]}"***"{message[quoted.end() :]}'
