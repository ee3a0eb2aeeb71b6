"""Settings are checked and shown as a server does, value for value."""

from __future__ import annotations

import psycopg
import pytest

from fix_postgres import Database
from penstock.backend.session_settings import SessionSettings
from penstock.errors import FeatureNotSupported, InvalidParameterValue, PenstockError
from penstock.guc.guc_tables import settings

_VALUES = ("on", "TRUE", "of", "0", "1", "-1", "7", "1.5", "64MB", "8kB", "5min", "1d", "3 s", "x")
_OURS = frozenset(
    """bytea_output datestyle intervalstyle timezone standard_conforming_strings role
    session_authorization default_table_access_method client_encoding transaction_isolation
    transaction_read_only transaction_deferrable xmloption tcp_keepalives_count
    tcp_keepalives_idle tcp_keepalives_interval tcp_user_timeout array_nulls
    transform_null_equals""".split()  # noqa: SIM905
)
"""Of which a node has its own, or which a hook checks or shows."""
_ENDING = frozenset(
    """statement_timeout transaction_timeout idle_session_timeout
    idle_in_transaction_session_timeout""".split()  # noqa: SIM905
)
_OF_SERVERS = frozenset(("postmaster", "sighup"))
_MILLISECONDS = ("1", "7", "1.5")
"""In these units such a timeout ends the server's session while the test is at work. How they are
read shows `lock_timeout`, of the same kind and unit."""


def _told(error: object, hint: str | None) -> tuple[str, str | None]:
    return str(error).splitlines()[0], hint


def test_values_are_a_servers(database: Database) -> None:
    ours = SessionSettings({"is_superuser": "on"}, {}, 18)
    wrong = []
    with psycopg.connect(database.conninfo, autocommit=True) as server:
        for key, setting in settings(18).items():
            if setting.kind == "string" or key in _OURS or setting.context in _OF_SERVERS:
                continue
            for value in _VALUES:
                if key in _ENDING and value in _MILLISECONDS:
                    continue
                expected: object
                found: object
                try:
                    server.execute(f"SET {setting.name} = '{value}'")
                    expected = server.execute(f"SHOW {setting.name}").fetchone()[0]  # type: ignore
                except psycopg.Error as error:
                    if error.diag.message_detail or "cannot" in str(error):
                        continue  # a hook's, or this build cannot
                    expected = _told(error, error.diag.message_hint)
                try:
                    ours.set(setting.name, value)
                    found = ours.show(setting.name)
                except PenstockError as error:
                    found = _told(error.message, error.hint)
                if found != expected:
                    wrong.append(f"{setting.name} = {value}: {expected} | {found}")
                server.execute(f"RESET {setting.name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "usual", "other"),
    [("array_nulls", "yes", "off"), ("transform_null_equals", "0", "on")],
)
def test_settings_that_change_what_an_expression_means(name: str, usual: str, other: str) -> None:
    ours = SessionSettings({"is_superuser": "on"}, {}, 18)
    ours.set(name, usual)
    with pytest.raises(FeatureNotSupported, match="cannot be set"):
        ours.set(name, other)
    with pytest.raises(InvalidParameterValue, match="Boolean"):
        ours.set(name, "x")


@pytest.mark.parametrize(
    ("name", "sqlstate"),
    [
        ("fsync", "55P02"),
        ("shared_buffers", "55P02"),
        ("server_version", "55P02"),
        ("ignore_system_indexes", "55P02"),
        ("log_statement", "42501"),
        ("nothing", "42704"),
    ],
)
def test_who_may_set_what_when(name: str, sqlstate: str, database: Database) -> None:
    database.execute("CREATE ROLE plain_setter")
    try:
        with psycopg.connect(database.conninfo, autocommit=True) as server:
            server.execute("SET ROLE plain_setter")
            with pytest.raises(psycopg.Error) as theirs:
                server.execute(f"SET {name} = 'on'")
    finally:
        database.execute("DROP ROLE plain_setter")
    with pytest.raises(PenstockError) as ours:
        SessionSettings({}, {}, 18).set(name, "on")
    assert ours.value.sqlstate == theirs.value.sqlstate == sqlstate
    assert ours.value.message == theirs.value.diag.message_primary


def test_a_zone_that_jdbc_sends_leaves_the_session_in_utc() -> None:
    started = SessionSettings({}, [("TimeZone", "Europe/Berlin"), ("jit", "off")], 18)
    assert (started.show("timezone"), started.show("jit")) == ("UTC", "off")


def test_parameters_of_the_server_are_shown(database: Database) -> None:
    """Those that drivers and tools ask for, such as max_worker_processes, are among them. A server
    computes some from its memory, which a node does not have."""
    ours = SessionSettings({"is_superuser": "on"}, {}, 18)
    given = (
        "SELECT name, current_setting(name) FROM pg_settings WHERE source = 'default'"
        " AND boot_val = reset_val"
        " AND context IN ('postmaster', 'sighup') AND vartype <> 'string' AND name !~ '[.]'"
    )
    theirs = dict(database.rows(given))
    assert len(theirs) > 100
    assert {name: ours.show(name) for name in theirs} == theirs
