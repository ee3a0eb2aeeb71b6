"""Verifiers of passwords: salt, iterations and two keys (scram-common.c, pg_authid).

In: a password and a random salt, or PostgreSQL's text of a verifier. Out: a value whose ``repr``
shows none of it. The password itself is not kept.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass, field
from typing import Final

from scramp import ScramException, ScramMechanism

from penstock.errors import InvalidParameterValue

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
    """A verifier. ``str()`` gives PostgreSQL's text; keep it out of logs all the same."""

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
        """Make a verifier that no password fits."""
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
