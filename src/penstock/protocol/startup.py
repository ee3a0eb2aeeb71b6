"""Parameters of a StartupMessage (backend_startup.c, postinit.c, guc.c).

In: a StartupMessage. Out: who wants which database, whether as a walsender, and the settings for
the session, with PostgreSQL's errors. The session's owner checks that the role and the database
exist, and that a setting may be set.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from penstock.errors import (
    AuthenticationFailure,
    InvalidParameterValue,
    NotInPrerequisiteState,
    SqlSyntaxError,
)
from penstock.guc import parse_bool
from penstock.identifiers import truncated
from penstock.protocol.encoding import UTF8, ClientEncoding, find_encoding
from penstock.protocol.startup_packets import PROTOCOL_3_0, StartupMessage

_PROTOCOL_OPTION: Final = "_pq_."
_REPORTED: Final[tuple[str, ...]] = (
    "application_name",
    "client_encoding",
    "DateStyle",
    "default_transaction_read_only",
    "in_hot_standby",
    "integer_datetimes",
    "IntervalStyle",
    "is_superuser",
    "server_encoding",
    "server_version",
    "session_authorization",
    "standard_conforming_strings",
    "TimeZone",
)


class ReplicationMode(Enum):
    """The sort of session that the client asks for."""

    NONE = auto()
    PHYSICAL = auto()
    DATABASE = auto()


@dataclass(frozen=True, slots=True)
class StartupParameters:
    """The parameters. ``settings``: names as sent, in the order in which they take effect.

    ``database`` is empty for PHYSICAL. The ``_pq_.`` options are in ``negotiated``.
    """

    user: str
    database: str
    replication: ReplicationMode
    settings: tuple[tuple[str, str], ...]

    def setting(self, name: str) -> str | None:
        """Return the last value given for a name, whatever its case; None if there is none."""
        wanted = name.lower()
        return next((v for n, v in reversed(self.settings) if n.lower() == wanted), None)

    @property
    def application_name(self) -> str:
        """The name with bytes other than printable ASCII as ``\\xNN`` (pg_clean_ascii)."""
        return clean_ascii(self.setting("application_name") or "")

    def client_encoding(self) -> ClientEncoding:
        """Return the encoding. Raises InvalidParameterValue for an unknown name."""
        name = self.setting("client_encoding")
        return UTF8 if name is None else find_encoding(name)


def read_startup(message: StartupMessage) -> StartupParameters:
    """Read the parameters.

    Raises InvalidParameterValue (22023), AuthenticationFailure (28000), SqlSyntaxError (42601). All
    of them are FATAL, since there is no session yet.
    """
    named = dict(message.parameters)
    own = {"user", "database", "options", "replication"}
    rest = [(n, v) for n, v in message.parameters if n not in own]
    replication = parse_replication(named.get("replication", "false"))
    user = truncated(named.get("user", ""))
    if not user:
        raise AuthenticationFailure(
            "no PostgreSQL user name specified in startup packet", sqlstate="28000"
        )
    database = truncated(named.get("database") or user)
    settings = [pair for pair in rest if not pair[0].startswith(_PROTOCOL_OPTION)]
    return StartupParameters(
        user=user,
        database="" if replication is ReplicationMode.PHYSICAL else database,
        replication=replication,
        settings=(*parse_options(named.get("options", "")), *settings),
    )


def parse_replication(value: str) -> ReplicationMode:
    """Read a boolean word, or ``database``. Raises InvalidParameterValue."""
    if value == "database":
        return ReplicationMode.DATABASE
    wanted = parse_bool(value)
    if wanted is None:
        raise InvalidParameterValue(
            f'invalid value for parameter "replication": "{value}"',
            hint='Valid values are: "false", 0, "true", 1, "database".',
        )
    return ReplicationMode.PHYSICAL if wanted else ReplicationMode.NONE


def require_database(parameters: StartupParameters) -> None:
    """Refuse a session of physical replication (logical.c, CheckLogicalDecodingRequirements).

    Raises NotInPrerequisiteState (55000).
    """
    if parameters.replication is ReplicationMode.PHYSICAL:
        raise NotInPrerequisiteState(
            "logical decoding requires a database connection",
            hint='Physical replication is not supported. Connect with "replication=database".',
        )


def negotiated(message: StartupMessage, latest_protocol: int) -> tuple[int, tuple[str, ...]]:
    """Return the protocol version to speak, and the unknown ``_pq_.`` options.

    ``latest_protocol``: 3.0 for a server that reports a version up to 17, 3.2 from 18 on.
    """
    names = (name for name, _ in message.parameters)
    unknown = tuple(name for name in names if name.startswith(_PROTOCOL_OPTION))
    return max(PROTOCOL_3_0, min(message.protocol, latest_protocol)), unknown


def reported_parameters(major_version: int) -> tuple[str, ...]:
    """Return the settings that a server of that version reports by ParameterStatus (GUC_REPORT)."""
    names = _REPORTED
    if major_version >= 16:
        names += ("scram_iterations",)
    return (*names, "search_path") if major_version >= 18 else names


def clean_ascii(text: str) -> str:
    """Write bytes other than printable ASCII as ``\\xNN`` (pg_clean_ascii)."""
    return "".join(chr(b) if 32 <= b <= 126 else f"\\x{b:02x}" for b in text.encode("utf-8"))


# Read the startup parameter ``options``: arguments for the session (postinit.c, postgres.c).
#
# In: the text. Out: settings in the order given. Only ``-c name=value`` and ``--name=value`` are
# known; PGOPTIONS and subscribers send nothing else.

_SPACES: Final = " \t\n\v\f\r"


def parse_options(text: str) -> tuple[tuple[str, str], ...]:
    """Return names (``_`` for ``-``) and values. Raises SqlSyntaxError for other arguments."""
    arguments = iter(split_options(text))
    settings = []
    for argument in arguments:
        if argument == "--":
            break
        if argument.startswith("--"):
            settings.append(_assignment("--", argument[2:]))
        elif argument == "-c":
            value = next(arguments, None)
            if value is None:
                raise _invalid(argument)
            settings.append(_assignment("-c ", value))
        elif argument.startswith("-c"):
            settings.append(_assignment("-c ", argument[2:]))
        else:
            raise _invalid(argument)
    for argument in arguments:
        raise _invalid(argument)
    return tuple(settings)


def split_options(text: str) -> list[str]:
    """Return the arguments, cut at spaces not behind a backslash (pg_split_opts)."""
    arguments: list[str] = []
    current: str | None = None
    escaped = False
    for char in text:
        if char in _SPACES and not escaped:
            if current is not None:
                arguments.append(current)
            current = None
        elif char == "\\" and not escaped:
            escaped = True
            current = current or ""
        else:
            escaped = False
            current = (current or "") + char
    return arguments if current is None else [*arguments, current]


def _assignment(flag: str, argument: str) -> tuple[str, str]:
    """Split an argument into name and value (ParseLongOption)."""
    name, equals, value = argument.partition("=")
    if not equals:
        raise SqlSyntaxError(f"{flag}{argument} requires a value")
    return name.replace("-", "_"), value


def _invalid(argument: str) -> SqlSyntaxError:
    return SqlSyntaxError(
        f"invalid command-line argument for server process: {argument}",
        hint='Try "postgres --help" for more information.',
    )
