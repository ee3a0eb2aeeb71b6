"""Turn errors of libpq and the server into Penstock's errors with a remedy.

A failed connection attempt has only a text: libpq gives no SQLSTATE for it. The caller decides by
the class whether to retry: an AuthenticationFailure needs a person, a ConnectionFailure may pass by
itself, a PublisherError is the server's answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from psycopg.pq import DiagnosticField
from psycopg.pq.abc import PGresult

from penstock.errors import (
    AuthenticationFailure,
    ConnectionFailure,
    DuplicateObject,
    ObjectInUse,
    PenstockError,
    PublisherError,
    UndefinedObject,
    UndefinedPublication,
)
from penstock.protocol.backend_messages import Severity
from penstock.sql.text.quoting import quote_identifier

_CONNECTION: Final = "Correct the connection string."
_ANOTHER_CONNECTION: Final = "CONNECTION '...'"

_REFUSED: Final = (
    # (text in English, SQLSTATE that the server sent with it, hint, PenstockError.alter; None: the
    # remedy is at the publisher, and the connection is tried again)
    (
        r"password authentication failed",
        "28P01",
        "Check user name and password, in the connection string or the password file.",
        _ANOTHER_CONNECTION,
    ),
    (
        r"no password supplied|server requested SCRAM",
        "28P01",
        "The publisher wants a password: put it into the connection string, or into a password "
        "file that only its owner can read (mode 0600).",
        _ANOTHER_CONNECTION,
    ),
    (
        r"no pg_hba\.conf entry|pg_hba\.conf rejects",
        "28000",
        "Allow this host, user and database in the publisher's pg_hba.conf and reload it.",
        None,
    ),
    (
        r"\w+ authentication failed for user|is not permitted to log in",
        "28000",
        f"Check the publisher's pg_hba.conf and the role's LOGIN attribute. {_CONNECTION}",
        _ANOTHER_CONNECTION,
    ),
    (
        r'role ".*" does not exist',
        "28000",
        f"Create the role on the publisher: CREATE ROLE ... LOGIN REPLICATION. Or: {_CONNECTION}",
        _ANOTHER_CONNECTION,
    ),
    (r'database ".*" does not exist', "3D000", _CONNECTION, _ANOTHER_CONNECTION),
    (
        r"permission denied to start WAL sender|must be superuser or replication role",
        "42501",
        "Give the role the REPLICATION attribute: ALTER ROLE ... REPLICATION;",
        None,
    ),
    (
        r"permission denied for database",
        "42501",
        "Give the role the right to connect: GRANT CONNECT ON DATABASE ... TO ...;",
        None,
    ),
)

_NOT_REACHED: Final = (
    (
        r"max_wal_senders",
        "53300",
        "Increase max_wal_senders on the publisher or end other replication connections.",
    ),
    (
        r"too many (clients|connections)|connection slots are reserved",
        "53300",
        "Increase max_connections on the publisher or end other sessions.",
    ),
    (r"the database system is ", "57P03", "The publisher is starting or stopping; wait."),
    (
        r"server does not support SSL",
        "08006",
        "Switch TLS on at the publisher (ssl = on), or use sslmode=prefer.",
    ),
    (
        r'root certificate file ".*" does not exist',
        "08006",
        "Put the certificate of the publisher's authority there, or name its file by sslrootcert "
        "in the connection string (sslrootcert=system: those that the system trusts).",
    ),
    (
        r"certificate verify failed",
        "08006",
        "Another authority than that of sslrootcert has signed the publisher's certificate, or it "
        "has expired.",
    ),
    (
        r"server certificate for .* does not match host name",
        "08006",
        "Name the host in the connection string as the certificate does, or use sslmode=verify-ca.",
    ),
    (
        r"private key file|certificate file",
        "08006",
        "Check sslcert and sslkey in the connection string; a key must be readable by its owner "
        "alone.",
    ),
    (
        r"Connection refused|No such file or directory",
        "08006",
        "Is the publisher running there and accepting TCP/IP connections (listen_addresses)?",
    ),
    (r"timeout expired", "08006", "Check host, port and the firewalls in between."),
    (
        r"could not translate host name|failed to resolve host|Name or service not known",
        "08006",
        "Check the host name in the connection string.",
    ),
)


def connect_failure(text: str) -> ConnectionFailure:
    """Return the error for a connection that could not be opened. ``text``: libpq's message."""
    message = f"could not connect to the publisher: {_shorten(text)}"
    for pattern, sqlstate, hint, alter in _REFUSED:
        if re.search(pattern, text):
            return AuthenticationFailure(message, hint=hint, sqlstate=sqlstate, alter=alter)
    for pattern, sqlstate, hint in _NOT_REACHED:
        if re.search(pattern, text):
            return ConnectionFailure(message, hint=hint, sqlstate=sqlstate)
    return ConnectionFailure(message)


def _shorten(text: str) -> str:
    """Remove psycopg's own prefix; several attempts stay on a line each."""
    return re.sub(r"^(connection failed|connection is bad): ", "", text.strip()).strip()


def result_failure(result: PGresult, prefix: str = "") -> PenstockError:
    """Return the error for a failed command. ``prefix``: PostgreSQL's words before the server's
    message.

    It is a ConnectionFailure if the server goes away (``is_connection_sqlstate``; libpq's own
    report of a broken socket has no SQLSTATE) or ends the session by another error. Any other
    error is the server's answer.
    """
    fields: dict[int, str] = {
        field: value for field in _FIELDS if (value := _field(result, field)) is not None
    }
    text = result.error_message.decode(errors="replace").strip()
    return server_failure(fields, prefix, text)


def server_failure(fields: Mapping[int, str], prefix: str = "", text: str = "") -> PenstockError:
    """Return the error for a server message. ``fields``: by type byte (protocol chapter "Error and
    Notice Message Fields"). ``text``: the message if the fields contain none."""
    sqlstate = fields.get(DiagnosticField.SQLSTATE)
    primary = fields.get(DiagnosticField.MESSAGE_PRIMARY)
    detail = fields.get(DiagnosticField.MESSAGE_DETAIL)
    hint = fields.get(DiagnosticField.MESSAGE_HINT)
    context = fields.get(DiagnosticField.CONTEXT)
    if context:
        detail = f"{detail} ({context})" if detail else context
    alter = None
    gone = re.match(r'publication "(.*)" does not exist', primary or "")
    if fields.get(DiagnosticField.SOURCE_FUNCTION) == "check_enable_rls":
        hint = _ROW_SECURITY  # the server's own hint, if it has one, is for owners alone
    if hint is None and gone is not None:
        hint, alter = _PUBLICATION_GONE, f"DROP PUBLICATION {quote_identifier(gone[1])}"
    over = fields.get(DiagnosticField.SEVERITY_NONLOCALIZED) in (Severity.FATAL, Severity.PANIC)
    kind = ConnectionFailure if over else _kind(sqlstate)
    if gone is not None and kind is UndefinedObject:
        kind = UndefinedPublication
    return kind(
        prefix + (primary or text),
        detail=detail,
        hint=hint or hint_for(sqlstate),
        sqlstate=sqlstate,
        alter=alter,
    )


def hint_for(sqlstate: str | None) -> str | None:
    """Return the hint for an error of the publisher, if its remedy is always the same."""
    return _HINTS.get(sqlstate or "")


def is_connection_sqlstate(sqlstate: str | None) -> bool:
    """Return whether the server shuts down or never answered, so that a retry may succeed."""
    return sqlstate is None or sqlstate.startswith("08") or sqlstate in _GOING_AWAY


def _kind(sqlstate: str | None) -> type[PenstockError]:
    if is_connection_sqlstate(sqlstate):
        return ConnectionFailure
    return _CLASSES.get(sqlstate or "", PublisherError)


def _field(result: PGresult, field: DiagnosticField) -> str | None:
    value = result.error_field(field)
    return value.decode(errors="replace") if value is not None else None


_FIELDS: Final = (
    DiagnosticField.SEVERITY_NONLOCALIZED,
    DiagnosticField.SQLSTATE,
    DiagnosticField.MESSAGE_PRIMARY,
    DiagnosticField.MESSAGE_DETAIL,
    DiagnosticField.MESSAGE_HINT,
    DiagnosticField.CONTEXT,
    DiagnosticField.SOURCE_FUNCTION,
)

_GOING_AWAY: Final = ("57P01", "57P02", "57P03", "25P03", "57P05")
"""The SQLSTATEs of shutdowns, and of the server's time limits on idle sessions."""

_CLASSES: Final[dict[str, type[PenstockError]]] = {
    "42704": UndefinedObject,
    "42710": DuplicateObject,
    "55006": ObjectInUse,
}

_PUBLICATION_GONE: Final = (
    "Create the publication on the publisher. Servers before 18 look it up as it was at the time "
    "of each change. If the error stays, and it is the subscription's only one, drop the "
    "subscription and create it again. If there are others, leave it out until the subscription "
    "has caught up, and then ADD PUBLICATION again."
)

_ROW_SECURITY: Final = (
    "Policies would hide rows. On the publisher, let the role see all of them: ALTER ROLE ... "
    "BYPASSRLS; the table's owner sees them after ALTER TABLE ... NO FORCE ROW LEVEL SECURITY;"
)

_HINTS: Final = {
    "42710": "Choose another name WITH (slot_name = ...). If no other subscription uses the slot: "
    "take it as it is WITH (create_slot = false), or drop it on the publisher with "
    "pg_drop_replication_slot().",
    "55006": "Another process uses the slot: stop that subscriber, or end its walsender on the "
    "publisher with pg_terminate_backend().",
    "42501": "Give the publisher's role the missing right (REPLICATION attribute, "
    "SELECT on the table, USAGE on its schema).",
    "55P03": "Another session on the publisher holds an ACCESS EXCLUSIVE lock on a table, or waits "
    "for one (ALTER TABLE, TRUNCATE, CLUSTER, VACUUM FULL, LOCK TABLE). Try again when it has "
    "ended. To see who it is, on the publisher: SELECT pid, relation::regclass, granted FROM "
    "pg_locks WHERE locktype = 'relation' AND mode = 'AccessExclusiveLock';",
    "53400": "Drop replication slots that nobody uses or increase max_replication_slots on the "
    "publisher.",
    "53300": "Increase max_wal_senders and max_connections on the publisher or end other sessions.",
}
