"""SCRAM-SHA-256 for the server (RFC 5802, RFC 7677; auth-scram.c), on scramp.

The caller provides random bytes. The catalog has the roles' verifiers. For a role without one,
``mock_verifier`` returns a verifier that no password matches, so a client does not learn which
roles exist.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Any, Final

from scramp import ScramException, ScramMechanism

from penstock.errors import (
    AuthenticationFailure,
    InvalidParameterValue,
    PenstockError,
    ProtocolViolation,
)

# Verifiers of passwords: salt, iterations and two keys (scram-common.c, pg_authid). The ``repr``
# of one shows none of it, and the password itself is not kept.

MECHANISM: Final = "SCRAM-SHA-256"
ITERATIONS: Final = 4096
"""SCRAM_SHA_256_DEFAULT_ITERATIONS, and the fewest that are accepted (RFC 7677)."""
MAX_ITERATIONS: Final = 10_000_000
SALT_SIZE: Final = 16
"""SCRAM_DEFAULT_SALT_LEN, bytes."""
SHORTEST_SALT: Final = 12
_KEY_SIZE: Final = 32
_TEXT: Final = re.compile(rf"{MECHANISM}\$(\d{{1,9}}):([^$:]+)\$([^$:]+):([^$:]+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class ScramVerifier:
    """A verifier. ``str()`` returns PostgreSQL's text, which must not be logged."""

    iterations: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    mock: bool = field(default=False, repr=False)

    @classmethod
    def of_password(cls, password: str, salt: bytes, iterations: int = ITERATIONS) -> ScramVerifier:
        """Make the verifier of a password. Costs milliseconds of CPU, by design.

        ``salt``: SALT_SIZE random bytes. A password that SASLprep does not allow is used as it is,
        as the server and libpq do. Raises InvalidParameterValue.
        """
        _check(iterations, salt)
        try:
            _, stored, server, _ = ScramMechanism(MECHANISM).make_auth_info(
                password, iteration_count=iterations, salt=salt
            )
        except ScramException:
            stored, server = _keys(password.encode("utf-8"), salt, iterations)
        return cls(iterations, salt, stored, server)

    @classmethod
    def parse(cls, text: str) -> ScramVerifier:
        """Read ``SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>``, as in pg_authid.

        Raises InvalidParameterValue, whose message does not show the text.
        """
        match = _TEXT.fullmatch(text)
        if match is None:
            raise _invalid()
        try:
            salt, stored, server = (base64.b64decode(match[i], validate=True) for i in (2, 3, 4))
        except ValueError:  # bad base64, or not ASCII
            raise _invalid() from None
        if len(stored) != _KEY_SIZE or len(server) != _KEY_SIZE:
            raise _invalid()
        _check(int(match[1]), salt)
        return cls(int(match[1]), salt, stored, server)

    @classmethod
    def mocked(cls, salt: bytes) -> ScramVerifier:
        """Make a verifier that no password matches."""
        nothing = bytes(_KEY_SIZE)
        return cls(ITERATIONS, salt[:SALT_SIZE], nothing, nothing, mock=True)

    def __str__(self) -> str:
        salt, stored, server = (
            base64.b64encode(part).decode("ascii")
            for part in (self.salt, self.stored_key, self.server_key)
        )
        return f"{MECHANISM}${self.iterations}:{salt}${stored}:{server}"

    def as_tuple(self) -> tuple[bytes, bytes, bytes, int]:
        """Return the parts in scramp's order."""
        return self.salt, self.stored_key, self.server_key, self.iterations


def is_verifier(text: str) -> bool:
    """Tell whether CREATE ROLE ... PASSWORD got a verifier, not a password (get_password_type)."""
    return _TEXT.fullmatch(text) is not None


def _keys(password: bytes, salt: bytes, iterations: int) -> tuple[bytes, bytes]:
    salted = hashlib.pbkdf2_hmac("sha256", password, salt, iterations)
    client = hmac.digest(salted, b"Client Key", "sha256")
    return hashlib.sha256(client).digest(), hmac.digest(salted, b"Server Key", "sha256")


def _check(iterations: int, salt: bytes) -> None:
    if not ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise InvalidParameterValue(
            f"SCRAM iterations must be between {ITERATIONS} and {MAX_ITERATIONS}"
        )
    if len(salt) < SHORTEST_SALT:
        raise InvalidParameterValue(f"SCRAM salt must have at least {SHORTEST_SALT} bytes")


def _invalid() -> InvalidParameterValue:
    return InvalidParameterValue("invalid SCRAM secret")


PLUS_MECHANISM: Final = "SCRAM-SHA-256-PLUS"
NONCE_SIZE: Final = 18
"""SCRAM_RAW_NONCE_LEN: random bytes that an exchange needs."""
_CHANNEL_BINDING: Final = "tls-server-end-point"
_WRONG_PROOF: Final = "invalid-proof"


def mechanisms(certificate_hash: bytes | None) -> tuple[str, ...]:
    """Return the mechanisms to offer: channel binding only with a certificate's hash, over TLS."""
    return (MECHANISM,) if certificate_hash is None else (PLUS_MECHANISM, MECHANISM)


class ScramExchange:
    """The exchange of one login. Call ``respond`` for each client message until ``finished``.

    ``nonce``: NONCE_SIZE random bytes, new for every exchange. ``certificate_hash``: hash of the
    server's certificate as RFC 5929 has it for tls-server-end-point, None without TLS.
    """

    def __init__(
        self,
        user: str,
        verifier: ScramVerifier,
        nonce: bytes,
        *,
        mechanism: str = MECHANISM,
        certificate_hash: bytes | None = None,
    ) -> None:
        """Begin an exchange. Raises ProtocolViolation for a mechanism that was not offered."""
        if mechanism not in mechanisms(certificate_hash):
            raise ProtocolViolation("client selected an invalid SASL authentication mechanism")
        self.finished = False
        self._user = user
        self._verifier = verifier
        self._plus = mechanism == PLUS_MECHANISM
        self._server: Any = ScramMechanism(mechanism).make_server(
            lambda _: verifier.as_tuple(),
            None if certificate_hash is None else (_CHANNEL_BINDING, certificate_hash),
            base64.b64encode(nonce).decode("ascii"),
        )
        self._challenged = False

    def respond(self, data: bytes | None) -> bytes:
        """Return the answer: for SASLContinue until ``finished``, then for SASLFinal.

        ``data`` is None if the client wants the server to speak first; the answer is then empty.
        Raises ProtocolViolation for malformed messages, AuthenticationFailure (28P01) for a wrong
        password.
        """
        if data is None and not self._challenged:
            return b""
        if not data:
            raise ProtocolViolation("malformed SCRAM message", detail="The message is empty.")
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise ProtocolViolation("malformed SCRAM message") from None
        return self._final(text) if self._challenged else self._challenge(text)

    def _challenge(self, client_first: str) -> bytes:
        gs2_header, bare = self._split(client_first)
        _, comma, rest = bare.partition(",")
        # The server uses the startup packet's user. libpq leaves the name here empty, which scramp
        # would refuse; the proof covers the message that the client has sent.
        try:
            self._server.set_client_first(f"{gs2_header}n=*{comma}{rest}")
            self._server.client_first_bare = bare
            answer: str = self._server.get_server_first()
        except ScramException as error:
            raise _refusal(error) from None
        self._challenged = True
        return answer.encode("ascii")

    def _split(self, client_first: str) -> tuple[str, str]:
        flag, comma, rest = client_first.partition(",")
        authzid, second, bare = rest.partition(",")
        if not comma or not second or not bare.startswith("n="):
            raise ProtocolViolation("malformed SCRAM message")
        if flag.startswith("p=") != self._plus:
            without = "does not include" if self._plus else "includes"
            selected = PLUS_MECHANISM if self._plus else f"{MECHANISM} without channel binding"
            raise ProtocolViolation(
                "malformed SCRAM message",
                detail=f"The client selected {selected}, but the SCRAM message"
                f" {without} channel binding data.",
            )
        return f"{flag},{authzid},", bare

    def _final(self, client_final: str) -> bytes:
        try:
            self._server.set_client_final(client_final)
            answer: str = self._server.get_server_final()
        except ScramException as error:
            if _reason(error) == _WRONG_PROOF:
                raise password_failure(self._user) from None
            raise _refusal(error) from None
        if self._verifier.mock:
            raise password_failure(self._user)
        self.finished = True
        return answer.encode("ascii")


def _reason(error: ScramException) -> str | None:
    return None if error.server_error is None else str(error.server_error.value)


def _refusal(error: ScramException) -> PenstockError:
    """Return the error for a malformed message (read_client_first_message and its like)."""
    match _reason(error):
        case "server-does-support-channel-binding":
            return AuthenticationFailure(
                "SCRAM channel binding negotiation error",
                detail="The client supports SCRAM channel binding but thinks the server does not."
                "  However, this server does support channel binding.",
                sqlstate="28000",
            )
        case "channel-bindings-dont-match":
            return AuthenticationFailure("SCRAM channel binding check failed", sqlstate="28000")
    return ProtocolViolation("malformed SCRAM message")


def password_failure(user: str) -> AuthenticationFailure:
    """Return the error of every failed login with a password, whatever the reason (auth_failed)."""
    return AuthenticationFailure(f'password authentication failed for user "{user}"')


def mock_verifier(user: str, secret: bytes) -> ScramVerifier:
    """Return a verifier that no password matches, the same for the same user (mock_scram_secret).

    ``secret``: permanent random bytes of this node. So an unknown name gets the same salt each
    time, as a role does.
    """
    salt = hashlib.sha256(user.encode("utf-8") + secret).digest()
    return ScramVerifier.mocked(salt)
