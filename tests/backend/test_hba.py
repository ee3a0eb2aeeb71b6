"""First match wins, as in pg_hba.conf."""

from __future__ import annotations

import pytest

from penstock.backend.hba import DEFAULT, Client, Method, method_for, parse_rules
from penstock.errors import AuthenticationFailure, ConfigurationError
from penstock.protocol.startup import ReplicationMode


def client(
    address: str = "10.0.0.7",
    *,
    tls: bool = False,
    user: str = "u",
    database: str = "lake",
    replication: ReplicationMode = ReplicationMode.NONE,
) -> Client:
    return Client(address, tls, user, database, replication)


def test_loopback_only_by_default() -> None:
    rules = parse_rules(DEFAULT)
    assert method_for(rules, client("127.0.0.1")) is Method.SCRAM
    assert method_for(rules, client("::1")) is Method.SCRAM
    for address in ("127.0.0.2", "10.0.0.7", "::2"):
        with pytest.raises(AuthenticationFailure, match=r"no pg_hba.conf entry") as error:
            method_for(rules, client(address))
        assert error.value.sqlstate == "28000"


def test_the_first_match_wins() -> None:
    rules = parse_rules(
        [
            "# comment",
            "",
            "host all bad,worse all reject  # not these",
            "hostssl lake,sea all 10.0.0.0/8 scram-sha-256",
            "hostnossl lake u 10.0.0.7/32 trust",
        ]
    )
    assert method_for(rules, client(tls=True)) is Method.SCRAM
    assert method_for(rules, client()) is Method.TRUST
    assert method_for(rules, client("::ffff:10.0.0.7")) is Method.TRUST
    with pytest.raises(AuthenticationFailure, match=r"pg_hba.conf rejects connection for host"):
        method_for(rules, client(user="worse"))
    with pytest.raises(AuthenticationFailure, match=r'database "pond", SSL encryption'):
        method_for(rules, client(tls=True, database="pond"))


def test_md5_is_scram_for_secrets_of_scram() -> None:
    assert method_for(parse_rules(["host all all all md5"]), client()) is Method.SCRAM


def test_logical_walsenders_are_let_in_by_their_database() -> None:
    rules = parse_rules(["host lake all all scram-sha-256"])
    assert method_for(rules, client(replication=ReplicationMode.DATABASE)) is Method.SCRAM
    with pytest.raises(AuthenticationFailure, match="replication connection from host"):
        method_for(rules, client(replication=ReplicationMode.PHYSICAL))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("local all all trust", "A line holds"),
        ("unix all all all trust", 'invalid connection type "unix"'),
        ("host all all all password", 'invalid authentication method "password"'),
        ("host all all nowhere trust", 'invalid IP address "nowhere"'),
    ],
)
def test_a_malformed_line_says_what_is_wrong(line: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        parse_rules([line])
    assert why in (error.value.detail or "")
