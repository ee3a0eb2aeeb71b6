"""SCRAM-SHA-256: the server's verifiers, RFC 7677's example, and what a stranger may learn."""

from __future__ import annotations

import base64
import hashlib
import traceback

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scramp import ScramClient, ScramException
from scramp.core import Nonce

from fix_postgres import Database
from penstock.errors import AuthenticationFailure, InvalidParameterValue, PenstockError
from penstock.protocol.scram import (
    ScramExchange,
    ScramVerifier,
    is_verifier,
    mechanisms,
    mock_verifier,
)

SALT = bytes(range(16))
NONCE = b"0123456789abcdefgh"
PASSWORDS = [
    "pencil",
    "päß wörd",
    "\u00aa\u2168",
    "a\u00adb",
    "🙂",
    "\u0007",
    "\u0627 1",
    " ",
    "x" * 2000,
]


def exchange(password: str = "pencil", **more: object) -> ScramExchange:
    verifier = ScramVerifier.of_password(password, SALT)
    return ScramExchange("ada", verifier, NONCE, **more)  # type: ignore[arg-type]


def login(server: ScramExchange, password: str, binding: tuple[str, bytes] | None = None) -> None:
    """The whole conversation with scramp's own client; its check of the server is part of it."""
    names = list(mechanisms(None if binding is None else binding[1]))
    client = ScramClient(names, "anybody", password, channel_binding=binding)
    client.set_server_first(server.respond(client.get_client_first().encode()).decode())
    client.set_server_final(server.respond(client.get_client_final().encode()).decode())


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    verifier = ScramVerifier.of_password("pencil", salt)
    server = ScramExchange("user", verifier, NONCE)
    # Its server nonce is no base64, which ours always is; the rest is as printed there.
    server._server.s_nonce = Nonce("%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = server.respond(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    both = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert first == both + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    proof = b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    final = server.respond(b"c=biws," + both + b"," + proof)
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("password", ["pencil", "päß wörd", "\u00aa\u2168", "a\u00adb"])
def test_a_login(password: str) -> None:
    server = exchange(password)
    assert not server.finished
    login(server, password)
    assert server.finished


def test_a_login_bound_to_the_certificate() -> None:
    certificate = hashlib.sha256(b"certificate").digest()
    binding = ("tls-server-end-point", certificate)
    server = exchange(mechanism="SCRAM-SHA-256-PLUS", certificate_hash=certificate)
    login(server, "pencil", binding)
    assert server.finished
    another = exchange(mechanism="SCRAM-SHA-256-PLUS", certificate_hash=bytes(32))
    with pytest.raises(AuthenticationFailure, match="SCRAM channel binding check failed"):
        login(another, "pencil", binding)
    assert not another.finished


def test_clients_without_channel_binding() -> None:
    """Those that cannot do it may log in; those that were made to think we cannot may not."""
    certificate = hashlib.sha256(b"certificate").digest()
    plain = exchange(certificate_hash=certificate)
    login(plain, "pencil")
    assert plain.finished
    # Over TLS to a server that does not offer it, libpq says that it could have.
    able = exchange()
    assert able.respond(b"y,,n=,r=abc").startswith(b"r=abc")
    with pytest.raises(AuthenticationFailure, match="SCRAM channel binding negotiation error"):
        exchange(certificate_hash=certificate).respond(b"y,,n=,r=abc")
    with pytest.raises(PenstockError) as caught:
        exchange().respond(b"p=tls-server-end-point,,n=,r=abc")
    assert caught.value.detail == (
        "The client selected SCRAM-SHA-256 without channel binding,"
        " but the SCRAM message includes channel binding data."
    )


def test_wrong_passwords_and_unknown_users_are_told_the_same() -> None:
    unknown = ScramExchange("ada", mock_verifier("ada", b"node"), NONCE)
    told = []
    for server in (exchange(), unknown):
        with pytest.raises(AuthenticationFailure) as caught:
            login(server, "guess")
        told.append((caught.value.sqlstate, caught.value.report()))
        assert not server.finished
    assert told[0] == told[1]
    assert told[0] == ("28P01", 'ERROR:  password authentication failed for user "ada"')


def test_an_unknown_user_has_a_salt_that_stays() -> None:
    first, again = (mock_verifier("nobody", b"node") for _ in range(2))
    assert first == again
    assert len(first.salt) == len(SALT)
    assert first.salt != mock_verifier("another", b"node").salt
    assert first.salt != mock_verifier("nobody", b"other node").salt
    assert first.iterations == ScramVerifier.of_password("x", SALT).iterations


def test_a_mechanism_that_was_not_offered() -> None:
    for mechanism in ("SCRAM-SHA-256-PLUS", "SCRAM-SHA-1", ""):
        with pytest.raises(PenstockError, match="client selected an invalid SASL"):
            exchange(mechanism=mechanism)


def test_a_client_that_lets_the_server_begin() -> None:
    server = exchange()
    assert server.respond(None) == b""
    login(server, "pencil")
    assert server.finished


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60) | st.text("nypmr=,axbiv+/\0 ", max_size=40).map(str.encode))
def test_any_bytes_are_refused_with_an_error_of_ours(data: bytes) -> None:
    verifier = mock_verifier("ada", b"node")
    fresh, challenged = (ScramExchange("ada", verifier, NONCE) for _ in range(2))
    challenged.respond(b"n,,n=,r=abc")
    for server in (fresh, challenged):
        try:
            server.respond(data)
        except PenstockError as error:
            assert error.sqlstate in ("08P01", "28P01")
        else:
            assert server is fresh
        assert not server.finished


def test_each_message_cut_short() -> None:
    client = ScramClient(["SCRAM-SHA-256"], "ada", "pencil")
    first = client.get_client_first().encode()
    client.set_server_first(exchange().respond(first).decode())
    final = client.get_client_final().encode()
    for size in range(len(final)):
        server = exchange_after(first)
        with pytest.raises(PenstockError):
            server.respond(final[:size])
        assert not server.finished
    assert exchange_after(first).respond(final).startswith(b"v=")


VERIFIER = ScramVerifier.of_password("pencil", SALT)


def exchange_after(first: bytes) -> ScramExchange:
    server = ScramExchange("ada", VERIFIER, NONCE)
    server.respond(first)
    return server


def test_no_secret_is_shown() -> None:
    verifier = ScramVerifier.of_password("hidden", SALT)
    assert repr(verifier) == "ScramVerifier(iterations=4096)"
    password = "".join(["hid", "den"])
    try:
        ScramVerifier.of_password(password, b"short")
    except InvalidParameterValue as error:
        assert password not in "".join(traceback.format_exception(error))
    else:
        pytest.fail("a short salt was taken")
    try:
        ScramVerifier.parse("SCRAM-SHA-256$4096:hidden")
    except InvalidParameterValue as error:
        assert "hidden" not in error.report()


@pytest.mark.parametrize(
    "text",
    [
        "", "secret", "md5" + "0" * 32, "SCRAM-SHA-256$4096:AAAA", "SCRAM-SHA-256$:AAAA$AA==:AA==",
        "SCRAM-SHA-256$4096:AAECAwQFBgcICQoLDA0ODw==$AA==:AA==", f"{VERIFIER}x", f"x{VERIFIER}",
        str(VERIFIER).replace("$4096:", "$1:"), str(VERIFIER).replace("$4096:", "$999999999:"),
        str(VERIFIER).replace("AAEC", "!AEC"), str(VERIFIER).replace("=", ""),
    ],
)  # fmt: skip
def test_texts_that_are_no_verifiers(text: str) -> None:
    with pytest.raises(InvalidParameterValue):
        ScramVerifier.parse(text)


def test_the_server_makes_the_same_verifiers(database: Database) -> None:
    """Ours from PostgreSQL's salt is PostgreSQL's own, whatever SASLprep makes of the password."""
    connection = database.connect()
    connection.execute("SET password_encryption = 'scram-sha-256'")
    for password in PASSWORDS:
        connection.execute("CREATE ROLE scram_test")
        quoted = connection.execute("SELECT quote_literal(%s)", (password,)).fetchone()
        assert quoted is not None
        connection.execute(f"ALTER ROLE scram_test PASSWORD {quoted[0]}")
        query = "SELECT rolpassword FROM pg_authid WHERE rolname = 'scram_test'"
        (theirs,) = connection.execute(query).fetchone() or ("",)
        read = ScramVerifier.parse(theirs)
        assert str(read) == theirs
        assert is_verifier(theirs)
        assert ScramVerifier.of_password(password, read.salt, read.iterations) == read
        # And the server takes ours for a verifier, not for a password.
        connection.execute(f"ALTER ROLE scram_test PASSWORD '{read}'")
        assert connection.execute(query).fetchone() == (theirs,)
        connection.execute("DROP ROLE scram_test")


def test_scramps_client_checks_us() -> None:
    """The client's view: a server that does not know the password is found out."""
    client = ScramClient(["SCRAM-SHA-256"], "ada", "pencil")
    server = exchange()
    client.set_server_first(server.respond(client.get_client_first().encode()).decode())
    client.get_client_final()
    with pytest.raises(ScramException):
        client.set_server_final("v=" + base64.b64encode(bytes(32)).decode())
