"""Rules for clients: who may connect from where, and how to authenticate (hba.c, pg_hba.conf).

The first rule that matches a connection gives the authentication method; if none matches, the
client is refused. The default rules accept only connections from the same host.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from penstock.errors import AuthenticationFailure, ConfigurationError
from penstock.protocol.startup import ReplicationMode

DEFAULT: Final = (
    "host all all 127.0.0.1/32 scram-sha-256",
    "host all all ::1/128 scram-sha-256",
    "host replication all 127.0.0.1/32 scram-sha-256",
    "host replication all ::1/128 scram-sha-256",
)

_Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_ALL: Final = "all"
_REPLICATION: Final = "replication"
_FIELDS: Final = 5


class Method(StrEnum):
    """An authentication method."""

    TRUST = "trust"
    REJECT = "reject"
    SCRAM = "scram-sha-256"


class ConnectionKind(StrEnum):
    """The connections that a rule applies to: all, only with TLS, only without TLS."""

    HOST = "host"
    HOSTSSL = "hostssl"
    HOSTNOSSL = "hostnossl"


@dataclass(frozen=True, slots=True)
class Client:
    """The facts about a new connection that rules are compared with."""

    address: str
    tls: bool
    user: str
    database: str
    replication: ReplicationMode


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. ``network``: None for any address."""

    kind: ConnectionKind
    databases: tuple[str, ...]
    users: tuple[str, ...]
    network: _Network | None
    method: Method

    def matches(self, client: Client) -> bool:
        """Tell whether the rule applies to this connection (check_hba)."""
        if self.kind is not ConnectionKind.HOST and client.tls is not (
            self.kind is ConnectionKind.HOSTSSL
        ):
            return False
        return (
            self._of_database(client)
            and (_ALL in self.users or client.user in self.users)
            and self._of_address(client.address)
        )

    def _of_database(self, client: Client) -> bool:
        # "all" and database names match walsenders for logical replication, but not physical.
        if client.replication is ReplicationMode.PHYSICAL:
            return _REPLICATION in self.databases
        return _ALL in self.databases or client.database in self.databases

    def _of_address(self, text: str) -> bool:
        if self.network is None:
            return True
        address = ipaddress.ip_address(text)
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return address in self.network


def parse_rules(lines: Sequence[str]) -> tuple[Rule, ...]:
    """Parse lines; skip empty lines and comments. Raises ConfigurationError (F0000)."""
    rules = []
    for line in lines:
        words = line.partition("#")[0].split()
        if words:
            rules.append(_rule(line, words))
    return tuple(rules)


def method_for(rules: Sequence[Rule], client: Client) -> Method:
    """Return the method of the first rule that matches.

    Raises AuthenticationFailure (28000) if this rule rejects the connection, or no rule matches.
    """
    rule = next((rule for rule in rules if rule.matches(client)), None)
    if rule is not None and rule.method is not Method.REJECT:
        return rule.method
    encryption = "SSL encryption" if client.tls else "no encryption"
    what = (
        f'replication connection from host "{client.address}", user "{client.user}"'
        if client.replication is ReplicationMode.PHYSICAL
        else f'host "{client.address}", user "{client.user}", database "{client.database}"'
    )
    reason = (
        f"pg_hba.conf rejects {'' if what.startswith('repl') else 'connection for '}{what}"
        if rule is not None
        else f"no pg_hba.conf entry for {what}"
    )
    raise AuthenticationFailure(f"{reason}, {encryption}", sqlstate="28000")


def _rule(line: str, words: list[str]) -> Rule:
    if len(words) != _FIELDS:
        raise _malformed_error(line, "A line holds: type, databases, users, address, method.")
    kind, databases, users, address, method = words
    if kind not in tuple(ConnectionKind):
        raise _malformed_error(line, f'invalid connection type "{kind}"')
    if method == "md5":  # all secrets here are SCRAM's, for which a server does not use MD5 either
        method = Method.SCRAM
    if method not in tuple(Method):
        raise _malformed_error(line, f'invalid authentication method "{method}"')
    try:
        network = None if address == _ALL else ipaddress.ip_network(address)
    except ValueError:
        raise _malformed_error(line, f'invalid IP address "{address}"') from None
    return Rule(
        ConnectionKind(kind),
        tuple(databases.split(",")),
        tuple(users.split(",")),
        network,
        Method(method),
    )


def _malformed_error(line: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f'could not read the rule "{line}" of parameter "hba"',
        detail=why,
        hint=f'For example: "{DEFAULT[0]}".',
    )
