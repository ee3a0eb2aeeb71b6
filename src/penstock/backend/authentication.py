"""Authenticate clients (auth.c, auth-scram.c), and look up a session's role (miscinit.c).

From the startup packet and the rules of ``hba`` a client gets a role or an error. The error does
not reveal whether the role exists or why the password is wrong. The caller delays the error of a
failed attempt.

A session remembers its role but not the role's attributes: ``role_now`` looks them up again. If the
role was dropped, the session keeps its identity without attributes, as in PostgreSQL.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

from penstock.backend.hba import Method
from penstock.catalog import Catalog, Role
from penstock.errors import AuthenticationFailure, ProtocolViolation
from penstock.protocol.authentication import SaslInitialResponse, SaslResponse
from penstock.protocol.scram import (
    NONCE_SIZE,
    ScramExchange,
    ScramVerifier,
    mechanisms,
    mock_verifier,
    password_failure,
)
from penstock.protocol.session import ServerSession
from penstock.protocol.session_input import Event

Exchange = Callable[[bytes], Event]
"""A function that sends bytes and returns the client's next message. It raises ConnectionFailure
if the client has disconnected."""


def authenticate(
    session: ServerSession,
    exchange: Exchange,
    user: str,
    role: Role | None,
    method: Method,
    *,
    secret: bytes,
    now: float,
) -> tuple[Role, bytes]:
    """Authenticate the client; return the role, and the bytes to send before AuthenticationOk.

    ``secret``: random bytes of this node, from which unknown users get a mock verifier. Raises
    AuthenticationFailure (28P01, 28000), ProtocolViolation.
    """
    last = b""
    if method is Method.SCRAM:
        last = _scram(session, exchange, user, _verifier(user, role, secret, now))
    if role is None:
        raise AuthenticationFailure(f'role "{user}" does not exist', sqlstate="28000")
    if not role.login:
        raise AuthenticationFailure(f'role "{user}" is not permitted to log in', sqlstate="28000")
    return role, last


def _verifier(user: str, role: Role | None, secret: bytes, now: float) -> ScramVerifier:
    expired = role is not None and role.valid_until is not None and now > role.valid_until
    if role is None or role.verifier is None or expired:
        return mock_verifier(user, secret)
    return ScramVerifier.parse(role.verifier)


def _scram(session: ServerSession, exchange: Exchange, user: str, verifier: ScramVerifier) -> bytes:
    first = exchange(session.request_sasl(mechanisms(None)))
    if not isinstance(first, SaslInitialResponse):
        raise ProtocolViolation("expected SASL response")
    scram = ScramExchange(user, verifier, os.urandom(NONCE_SIZE), mechanism=first.mechanism)
    answer = scram.respond(first.data)
    while not scram.finished:
        event = exchange(session.continue_sasl(answer))
        if not isinstance(event, SaslResponse):
            raise password_failure(user)
        answer = scram.respond(event.data)
    return session.finish_sasl(answer)


def role_now(catalog: Catalog, role: Role) -> Role:
    """Look up the present attributes of a session's role."""
    with catalog.read() as t:
        found = t.roles.find_oid(role.oid)
    if found is not None:
        return found
    return replace(
        role, login=False, replication=False, superuser=False, verifier=None, dropped=True
    )
