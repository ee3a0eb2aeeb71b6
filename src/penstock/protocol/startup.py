"""The first packet of a connection, and the parameters of a StartupMessage (backend_startup.c,
postinit.c, guc.c).

The body of a packet names the role and the database, asks for a walsender or not, and has settings
for the session. Errors are PostgreSQL's. The session's owner checks that the role and the database
exist, and that a setting may be set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from penstock.errors import (
    AuthenticationFailure,
    FeatureNotSupported,
    InvalidParameterValue,
    ProtocolViolation,
    SqlSyntaxError,
)
from penstock.guc import parse_bool
from penstock.identifiers import truncated
from penstock.protocol.encoding import UTF8, ClientEncoding, find_encoding
from penstock.protocol.framing import MessageReader

# The first packet of a connection (ProcessStartupPacket): the body of a packet without a type
# byte is a StartupMessage, SSLRequest, GSSENCRequest or CancelRequest.

PROTOCOL_3_0: Final = 3 << 16
PROTOCOL_3_2: Final = 3 << 16 | 2
CANCEL_REQUEST_CODE: Final = 1234 << 16 | 5678
SSL_REQUEST_CODE: Final = 1234 << 16 | 5679
GSSENC_REQUEST_CODE: Final = 1234 << 16 | 5680
MAX_STARTUP_PACKET_LENGTH: Final = 10_000
"""Bytes of a packet's body."""
_LONGEST_CANCEL_KEY: Final = 256


@dataclass(frozen=True, slots=True)
class StartupMessage:
    """``protocol``: major version << 16 | minor; parameters in the client's order."""

    protocol: int
    parameters: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class SslRequest:
    """The client asks for TLS; the answer is the byte ``S`` or ``N``."""


@dataclass(frozen=True, slots=True)
class GssEncRequest:
    """The client asks for GSSAPI encryption; the answer is the byte ``G`` or ``N``."""


@dataclass(frozen=True, slots=True)
class CancelRequest:
    """A request to cancel the statement of the session with that id and key; it gets no answer."""

    process_id: int
    key: bytes = field(repr=False)


StartupPacket = StartupMessage | SslRequest | GssEncRequest | CancelRequest


def decode_startup(body: bytes, latest_protocol: int = PROTOCOL_3_2) -> StartupPacket:
    """Read a packet. Raises ProtocolViolation, FeatureNotSupported for other major versions."""
    reader = MessageReader(body, UTF8)
    protocol = reader.uint32()
    if protocol == SSL_REQUEST_CODE:
        return SslRequest()
    if protocol == GSSENC_REQUEST_CODE:
        return GssEncRequest()
    if protocol == CANCEL_REQUEST_CODE:
        return _cancel_request(reader)
    if protocol >> 16 != PROTOCOL_3_0 >> 16:
        raise unsupported_protocol(protocol, latest_protocol)
    return StartupMessage(protocol, tuple(_parameters(reader)))


def unsupported_protocol(protocol: int, latest_protocol: int) -> FeatureNotSupported:
    """Return the error for a major version that the node does not speak."""
    return FeatureNotSupported(
        f"unsupported frontend protocol {protocol >> 16}.{protocol & 0xFFFF}:"
        f" server supports 3.0 to 3.{latest_protocol & 0xFFFF}"
    )


def _parameters(reader: MessageReader) -> list[tuple[str, str]]:
    """Return the pairs up to an empty name, which must be the packet's last byte."""
    parameters = []
    try:
        while name := reader.raw_string():
            value = reader.raw_string()
            parameters.append((UTF8.decode(name), UTF8.decode(value)))
    except ProtocolViolation as error:
        if error.sqlstate != ProtocolViolation.default_sqlstate:
            raise
        raise _layout() from None
    if reader.left:
        raise _layout()
    return parameters


def _layout() -> ProtocolViolation:
    return ProtocolViolation("invalid startup packet layout: expected terminator as last byte")


def _cancel_request(reader: MessageReader) -> CancelRequest:
    if reader.left < 4:
        raise ProtocolViolation("invalid length of cancel request packet")
    process_id = reader.int32()
    if not 0 < reader.left <= _LONGEST_CANCEL_KEY:
        raise ProtocolViolation("invalid length of cancel key in cancel request packet")
    return CancelRequest(process_id, reader.raw(reader.left))


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
# Only ``-c name=value`` and ``--name=value`` are known; PGOPTIONS and subscribers send nothing
# else.

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
