"""What a server ends a session with is a lost connection, whatever its SQLSTATE."""

from __future__ import annotations

import pytest

from penstock.errors import ConnectionFailure, PenstockError, PublisherError, UndefinedObject
from penstock.protocol.backend_messages import Severity, error_response, message_fields
from penstock.protocol.framing import LENGTH_SIZE
from penstock.walreceiver.libpq_errors import server_failure


@pytest.mark.parametrize(
    ("severity", "sqlstate", "kind"),
    [
        (Severity.ERROR, "22012", PublisherError),
        (Severity.ERROR, "42704", UndefinedObject),
        (Severity.ERROR, "57P01", ConnectionFailure),
        (Severity.FATAL, "40001", ConnectionFailure),
        (Severity.PANIC, "XX001", ConnectionFailure),
    ],
)
def test_fields_of_a_message(severity: Severity, sqlstate: str, kind: type[PenstockError]) -> None:
    sent = PenstockError("a message", detail="a detail", hint="a hint", sqlstate=sqlstate)
    error = server_failure(
        message_fields(error_response(sent, severity)[1 + LENGTH_SIZE :]), "before: "
    )
    assert type(error) is kind
    assert (error.message, error.detail) == ("before: a message", "a detail")
    assert (error.hint, error.sqlstate) == ("a hint", sqlstate)
