"""What a role is set to changes nothing: copy, stream and backlog equal the publisher."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults
from fix_postgres import Database

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_SETTINGS = {
    "array_nulls": "off",
    "bytea_output": "escape",
    "client_encoding": "LATIN1",
    "datestyle": "SQL, DMY",
    "default_transaction_deferrable": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "enable_seqscan": "off",
    "enable_tidscan": "off",
    "escape_string_warning": "on",
    "extra_float_digits": "-15",
    "idle_in_transaction_session_timeout": "300ms",
    "idle_session_timeout": "300ms",
    "intervalstyle": "iso_8601",
    "lock_timeout": "1ms",
    "quote_all_identifiers": "on",
    "row_security": "on",
    "search_path": "evil, pg_catalog",
    "standard_conforming_strings": "off",
    "statement_timeout": "1ms",
    "timezone": "Asia/Kathmandu",
    "transform_null_equals": "on",
    "xmlbinary": "hex",
}
_NEWER = {"transaction_timeout": "2s"}
"""Of 17 and later; the role's limit holds until the session's first command."""

_TABLE = (
    "CREATE SCHEMA evil;"
    "CREATE FUNCTION evil.format(text, anyelement) RETURNS text LANGUAGE sql AS $$SELECT 'x'$$;"
    "CREATE TYPE mood AS ENUM ('sad', 'ok'); CREATE DOMAIN blob AS bytea;"
    "CREATE TYPE pair AS (a bytea, b timestamptz);"
    "CREATE TABLE t (id integer PRIMARY KEY, small smallint, big bigint, n numeric, f4 real,"
    " f8 double precision, ok boolean, v text, c char(5), b bytea, dom blob, d date, ts timestamp,"
    " tz timestamptz, iv interval, u uuid, j json, jb jsonb, arr integer[], texts text[],"
    " bs bytea[], tzs timestamptz[], m mood, p pair, r tstzrange, ip inet, reg regclass, nul text);"
    "CREATE PUBLICATION p FOR TABLE t"
)
_AS_TEXT = ("n", "c", "dom", "iv", "m", "p", "r", "ip", "reg")
_INSERT = (
    "INSERT INTO t SELECT i, -i, i::bigint << 40, i / 7.0, i + 0.5, i / 7.0, i %% 2 = 0,"
    " E'é\\\\''\"' || i, 'c' || i, decode(md5(i::text), 'hex'), decode(md5(i::text), 'hex'),"
    " date '2020-02-29' + i, timestamp '2020-02-29 12:34:56.789' + i * interval '1 hour',"
    " timestamptz '2020-03-29 00:30:00+00' + i * interval '1 hour', i * interval '1 mon 3 s',"
    " md5(i::text)::uuid, '{\"a\":  1}', '{\"a\": 1}', ARRAY[i, NULL], ARRAY['a\"', NULL, '\\'],"
    " ARRAY['\\xff00'::bytea], ARRAY[timestamptz '2020-03-29 00:30:00+00'], 'ok',"
    " ROW('\\xff'::bytea, timestamptz '2020-03-29 00:30:00+00')::pair,"
    " tstzrange('2020-03-29 00:30:00+00', NULL), '10.0.0.1/24', 'evil.\"Odd\"', NULL"
    " FROM generate_series(%s::integer, %s::integer) i"
)


@pytest.mark.parametrize("version", [14, in_make_faults(18)])
def test_a_hostile_role(
    version: int,
    local_node: Callable[..., LocalNode],
    database_on: Callable[..., Database],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, "penstock")
    monkeypatch.setenv("PGTZ", "America/New_York")
    monkeypatch.setenv("PGDATESTYLE", "German")
    database = database_on(version)
    role = f"hostile_{database.name}"
    settings = {**_SETTINGS, **(_NEWER if version >= 17 else {})}
    database.execute(
        f"CREATE ROLE {role} SUPERUSER LOGIN REPLICATION;"
        + "".join(
            f"ALTER ROLE {role} SET {name} = "
            + (value if name == "search_path" else f"'{value}'")
            + ";"
            for name, value in settings.items()
        )
    )
    database.execute(_TABLE + '; CREATE TABLE evil."Odd" (a integer)')
    database.execute(_INSERT, (1, 500))
    node = local_node(backlog_copy_threshold="64kB", copy_unit_size="64kB")
    node.node.sql(
        f"CREATE SUBSCRIPTION s CONNECTION '{database.conninfo} user={role}' PUBLICATION p"
    )
    node.caught_up("s", database)
    check(node, database)
    database.execute(_INSERT, (501, 510))
    database.execute("UPDATE t SET v = v || 'x', small = 7 WHERE id % 50 = 0")
    node.caught_up("s", database)
    check(node, database)
    node.node.sql("ALTER SUBSCRIPTION s DISABLE")
    active = "SELECT active FROM pg_replication_slots WHERE slot_name = 's'"
    node.wait_for("s", "its end", lambda _: not database.value(active))
    database.execute(_INSERT, (511, 3000))
    database.execute("UPDATE t SET v = v || 'y' WHERE id % 7 = 0")
    node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", database)
    check(node, database)
    assert "fetching the backlog by COPY" in caplog.text
    node.node.sql("DROP SUBSCRIPTION s")
    database.execute(f"DROP ROLE {role}")


def check(node: LocalNode, database: Database) -> None:
    with database.connect() as connection:
        connection.execute("SET timezone = 'UTC'; SET datestyle = 'ISO'; SET search_path = ''")
        wanted = publisher_rows(connection, "public.t", as_text=_AS_TEXT)
    assert not (lack := difference("t", wanted, node.rows("t"))), str(lack)
