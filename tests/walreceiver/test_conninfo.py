from __future__ import annotations

import logging

import pytest

from penstock.errors import SqlSyntaxError
from penstock.walreceiver.conninfo import ConnInfo

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("foo=1", 'invalid connection option "foo"'),
        ("host='x", "unterminated quoted string in connection info string"),
        ("host", 'missing "=" after "host" in connection info string'),
    ],
)
def test_syntax_errors_are_libpqs(text: str, message: str) -> None:
    with pytest.raises(SqlSyntaxError) as caught:
        ConnInfo.parse(text)
    assert caught.value.message == f"invalid connection string syntax: {message}"
    assert caught.value.sqlstate == "42601"


@pytest.mark.parametrize(
    "text",
    [
        f"host=a password=x {SECRET}",
        f"host=a password=x {SECRET}=1",
        f'host=a password="x" a"{SECRET}',
        f"postgres://u:{SECRET}%zz@h/db",
        f"postgres://u:{SECRET}[x@[h/db",
        f"postgres://u:p@h/db?{SECRET}",
    ],
)
def test_no_piece_of_a_password_in_syntax_errors(text: str) -> None:
    with pytest.raises(SqlSyntaxError) as caught:
        ConnInfo.parse(text)
    assert SECRET not in caught.value.report()
    assert SECRET not in repr(caught.value)


@pytest.mark.parametrize(
    "text", [f"host=a user=b password={SECRET}", f"postgresql://b:{SECRET}@a/db?sslmode=disable"]
)
def test_password_is_never_printed(text: str, caplog: pytest.LogCaptureFixture) -> None:
    conninfo = ConnInfo.parse(text)
    with caplog.at_level(logging.DEBUG):
        logging.getLogger("x").info("%s %r %s", conninfo, conninfo, [conninfo])
    assert SECRET not in caplog.text
    assert "host=a" in caplog.text
    assert f"password={SECRET}" in conninfo.for_replication("s")


def test_parameters_as_libpqwalreceiver_sends_them() -> None:
    made = ConnInfo.parse(
        "host=h dbname=d options='-c work_mem=1MB' connect_timeout=3 client_encoding=LATIN1"
    )
    parameters = ConnInfo.parse(made.for_replication("sub")).parameters
    assert parameters["replication"] == "database"
    assert parameters["fallback_application_name"] == "sub"
    assert parameters["client_encoding"] == "UTF8"
    assert parameters["connect_timeout"] == "3"
    assert parameters["options"].startswith(
        "-c work_mem=1MB -c datestyle=ISO -c intervalstyle=postgres -c extra_float_digits=3"
    )
    assert "replication" not in ConnInfo.parse(made.for_sql("sub")).parameters
