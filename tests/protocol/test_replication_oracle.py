"""The same replication commands to PostgreSQL and to our grammar: same verdict, same message.

Those that PostgreSQL runs are about slots that do not exist, or temporary ones; what it says of
them beyond grammar and options is not compared.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from psycopg.pq import DiagnosticField, ExecStatus

from penstock.embedded import EmbeddedPostgres
from penstock.errors import PenstockError
from penstock.protocol.replication_grammar import (
    AlterReplicationSlot,
    CreateReplicationSlot,
    alter_slot_options,
    create_slot_options,
    is_replication_command,
    parse_replication_command,
)

Verdict = tuple[str, str] | None

# What grammar and option parser say; anything else comes from execution.
_STATES = {"42601", "22023", "XX000"}
_OF_EXECUTION = ("syntax error at", "could not access", "CREATE_REPLICATION_SLOT ... (", "unable")

L = "CREATE_REPLICATION_SLOT t TEMPORARY LOGICAL test_decoding_missing"
P = "CREATE_REPLICATION_SLOT t TEMPORARY PHYSICAL"
S = "START_REPLICATION SLOT missing LOGICAL"

COMMANDS = [
    # whole
    "IDENTIFY_SYSTEM", "IDENTIFY_SYSTEM;", " \t\nIDENTIFY_SYSTEM ;", "IDENTIFY_SYSTEM;;",
    "IDENTIFY_SYSTEM x", "IDENTIFY_SYSTEM 'x", "IDENTIFY_SYSTEM \"x", "IDENTIFY_SYSTEM; 'x",
    "SHOW", "SHOW server_version", "SHOW 1", "SHOW a.", "SHOW a.b c", "SHOW 'x'", "SHOW TIMELINE",
    "TIMELINE_HISTORY", "TIMELINE_HISTORY 0", "TIMELINE_HISTORY 0 x", "TIMELINE_HISTORY 0 'x",
    "TIMELINE_HISTORY x", "TIMELINE_HISTORY 4294967296", "TIMELINE_HISTORY -1",
    "TIMELINE_HISTORY 18446744073709551616", "TIMELINE_HISTORY 99999999999999999999999",
    "READ_REPLICATION_SLOT", "READ_REPLICATION_SLOT missing", "READ_REPLICATION_SLOT 1",
    "READ_REPLICATION_SLOT a.b", "BASE_BACKUP (", "BASE_BACKUP ()", "UPLOAD_MANIFEST x",
    # slots
    "CREATE_REPLICATION_SLOT", "CREATE_REPLICATION_SLOT t", "CREATE_REPLICATION_SLOT 't' PHYSICAL",
    "CREATE_REPLICATION_SLOT t LOGICAL", "CREATE_REPLICATION_SLOT t PHYSICAL TEMPORARY",
    "CREATE_REPLICATION_SLOT t logical p", "CREATE_REPLICATION_SLOT SLOT PHYSICAL",
    f"{P} (reserve_wal maybe)", f"{P} (reserve_wal, reserve_wal)", f"{P} (snapshot 'use')",
    f"{P} (two_phase)", f"{P} (failover)", f"{P} RESERVE_WAL RESERVE_WAL", f"{P} TWO_PHASE",
    f"{P} EXPORT_SNAPSHOT", f"{P} (unknown)", f"{P} (reserve_wal 2)", f"{P} (reserve_wal 'OFF'",
    f"{P} RESERVE_WAL (x)", f"{P} ()", f"{P} (a b c)", f"{P} (,)", f"{P} (reserve_wal,)",
    f"{L} (snapshot)", f"{L} (snapshot 'x')", f"{L} (snapshot 1)", f"{L} (SNAPSHOT 'Use')",
    f"{L} (snapshot 4294967295)", f"{L} (snapshot 'use', snapshot 'use')", f"{L} (reserve_wal)",
    f"{L} (two_phase 3)", f"{L} (two_phase 1, two_phase 0)", f"{L} (failover 'yes')", f"{L} (wait)",
    f"{L} (WAIT)", f"{L} (EXPORT_SNAPSHOT)", f"{L} (TWO_PHASE nothing)", f"{L} RESERVE_WAL",
    f"{L} EXPORT_SNAPSHOT USE_SNAPSHOT", f"{L} TWO_PHASE TWO_PHASE", f"{L} FAILOVER",
    f"{L} (snapshot 'nothing' 'x')", f"{L} (unknown 'a', snapshot 'x')", f"{L} (\"Two_Phase\")",
    f"{L} (two_phase 'on', unknown)", f"{L} ('two_phase')", f"{L} (1)", f"{L} (two_phase = 1)",
    "DROP_REPLICATION_SLOT", "DROP_REPLICATION_SLOT missing", "DROP_REPLICATION_SLOT missing WAIT",
    "DROP_REPLICATION_SLOT missing wait", "DROP_REPLICATION_SLOT , 'x",
    "DROP_REPLICATION_SLOT missing WAIT WAIT", "DROP_REPLICATION_SLOT \"miss ing\";",
    "ALTER_REPLICATION_SLOT missing", "ALTER_REPLICATION_SLOT missing ()",
    "ALTER_REPLICATION_SLOT missing (failover maybe)", "ALTER_REPLICATION_SLOT missing (two_phase)",
    "ALTER_REPLICATION_SLOT missing (failover, failover)", "ALTER_REPLICATION_SLOT missing (x 1)",
    "ALTER_REPLICATION_SLOT missing (FAILOVER true);",
    # streaming
    "START_REPLICATION", "START_REPLICATION SLOT", "START_REPLICATION SLOT missing",
    "START_REPLICATION 0", "START_REPLICATION 0/", "START_REPLICATION 0/G", "START_REPLICATION x/1",
    "START_REPLICATION LOGICAL 0/0", f"{S} 0", f"{S} 0/0 TIMELINE 1", f"{S} 0/0 ()", f"{S} 0/0",
    f"{S} 0/0 (a", f"{S} 0/0 (a b)", f"{S} 0/0 (a 1)", f"{S} 0/0 ('a')", f"{S} 0/0 (a 'x' 'y')",
    f"{S} 0/0 (a 'it''s', \"b-c\")", f"{S} 0/0 (a 'x\\', b 'y')", f"{S} 0/0 (SLOT 'x')",
    f"{S} 0/0 (a 'x)", "IDENTIFY_SYSTEM 'x''", 'DROP_REPLICATION_SLOT "x""',
    f"{S} ABCDEF01/23456789 (a)", f"{S} fffffffff/fffffffffffffffffffff x",
    "START_REPLICATION SLOT missing PHYSICAL 0/0 TIMELINE 0",
    "START_REPLICATION SLOT missing PHYSICAL 0/0 TIMELINE",
    "START_REPLICATION SLOT missing PHYSICAL 0/0 (a)",
    # no replication commands
    "identify_system", "\"IDENTIFY_SYSTEM\"", "'x", "SLOT", "IDENTIFY_SYSTEMS", "; IDENTIFY_SYSTEM",
    "-- IDENTIFY_SYSTEM", "SELECT", "TIMELINE 1", "WAIT", "/* */ IDENTIFY_SYSTEM",
]  # fmt: skip


def ours(text: str, version: int) -> Verdict:
    try:
        if not is_replication_command(text, version):
            return "sql", "not a replication command"
        command = parse_replication_command(text, version)
        if isinstance(command, CreateReplicationSlot):
            create_slot_options(command, version)
        elif isinstance(command, AlterReplicationSlot):
            alter_slot_options(command, version)
    except PenstockError as error:
        return error.sqlstate, error.message
    return None


def theirs(connection: psycopg.Connection[object], text: str) -> Verdict:
    """PostgreSQL's verdict on grammar and options; None for anything else."""
    result = connection.pgconn.exec_(text.encode())
    if result.status != ExecStatus.FATAL_ERROR:
        return None
    state, message = (
        (result.error_field(which) or b"").decode()
        for which in (DiagnosticField.SQLSTATE, DiagnosticField.MESSAGE_PRIMARY)
    )
    if state not in _STATES or message.startswith(_OF_EXECUTION):
        return None
    return state, message


@pytest.mark.parametrize("version", [18, 17, 15, 14])
def test_the_same_verdicts(
    postgres_version: Callable[[int], EmbeddedPostgres], version: int
) -> None:
    server = postgres_version(version)
    info = server.conninfo() + " replication=database"
    differences = []
    with psycopg.connect(info, autocommit=True) as connection:
        for text in COMMANDS:
            mine = ours(text, version)
            if mine is not None and mine[0] == "sql":
                mine = None
            verdict = theirs(connection, text)
            if mine != verdict:
                differences.append((text, mine, verdict))
    assert not differences, "\n".join(map(str, differences))
    assert len(COMMANDS) > 100
