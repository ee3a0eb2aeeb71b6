"""Functions of slots, messages and the log's positions: the answers and errors of a stock server,
by position and by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from backend.two_servers import Server, two_servers
from fix_postgres import Database

pytestmark = pytest.mark.postgres

_CREATE = "pg_create_logical_replication_slot"
_COPY = "pg_copy_logical_replication_slot"
_EMIT = "pg_logical_emit_message"

_POSITIONS = [
    "SELECT pg_walfile_name('0/1'), pg_walfile_name('0/2000000'), pg_walfile_name('1A/FF000028')",
    "SELECT pg_walfile_name(NULL) IS NULL, pg_walfile_name('x')",
    "SELECT * FROM pg_walfile_name_offset('3/2000028')",
    "SELECT * FROM pg_walfile_name_offset('3/2000000')",
    "SELECT * FROM pg_walfile_name_offset(NULL)",
    "SELECT pg_walfile_name_offset('3/2000028')",
    "SELECT segment_number::text, timeline_id"
    " FROM pg_split_walfile_name('000000010000000300000002')",
    "SELECT * FROM pg_split_walfile_name('00000a01000000ff000001ab')",
    "SELECT pg_split_walfile_name(file_name => '00000001000000030000000A')",
    "SELECT pg_split_walfile_name('00000001000000030000000')",
    "SELECT pg_split_walfile_name('')",
    "SELECT pg_split_walfile_name(NULL) IS NULL",
    "SELECT pg_wal_lsn_diff('1/0', '0/FFFFFFFF'), pg_wal_lsn_diff('0/1', 'FFFFFFFF/0')",
    "SELECT pg_wal_lsn_diff(NULL, '0/0') IS NULL",
    "SELECT pg_current_wal_lsn() <= pg_current_wal_insert_lsn(),"
    " pg_current_wal_flush_lsn() <= pg_current_wal_insert_lsn()",
    "SELECT pg_current_xact_id_if_assigned() IS NULL, txid_current_if_assigned() IS NULL",
    "SELECT pg_xact_status('0'::xid8), pg_xact_status('2'::xid8), txid_status(0)",
    "SELECT txid_status(9000000000)",
    "SELECT pg_last_committed_xact()",
    "SELECT * FROM pg_last_committed_xact()",
    "SELECT pg_xact_commit_timestamp('3'::xid)",
    "SELECT * FROM pg_xact_commit_timestamp_origin('3'::xid)",
    "SELECT pg_xact_commit_timestamp(NULL) IS NULL",
]
_MESSAGES = [
    f"SELECT {_EMIT}(false, 'p', 'c') > '0/0'",
    f"SELECT {_EMIT}(true, 'p', '\\x00ff'::bytea) > '0/0'",
    f"SELECT {_EMIT}(false, 'p', 'c', true) < {_EMIT}(false, 'p', 'c', false)",
    f"SELECT {_EMIT}(NULL, 'p', 'c'), {_EMIT}(true, NULL, 'c'), {_EMIT}(true, 'p', NULL::text)",
    f"SELECT {_EMIT}(true, 'p', 'c', NULL)",
    f"SELECT {_EMIT}(message => 'c'::text, prefix => 'p', transactional => true) IS NOT NULL",
    f"SELECT {_EMIT}(true, 'p', flush => true, message => 'c'::bytea) IS NOT NULL",
    f"SELECT {_EMIT}(true, 'p')",
    f"SELECT {_EMIT}(true, 'p', 1)",
    f"SELECT {_EMIT}(true, 'p', message => 1)",
    f"SELECT {_EMIT}(true, 'p', 'c', content => 1)",
    f"SELECT {_EMIT}(true, 'p', prefix => 'c')",
    f"SELECT {_EMIT}(prefix => 'p', true, 'c')",
    f"SELECT {_EMIT}(true, prefix => 'p', prefix => 'c')",
    f"SELECT {_EMIT}('maybe', 'p', 'c')",
    f"SELECT count(DISTINCT {_EMIT}(g % 2 = 0, 'p', g::text)) FROM generate_series(1, 5) g",
    "SELECT count(x => 1)",
    "SELECT rank(x => 1) OVER ()",
    "SELECT * FROM generate_series(start => 1, stop => 2)",
    "SELECT int8(a => 1)",
]
_SLOTS = [
    f"SELECT slot_name FROM {_CREATE}(slot_name => 'n_a', plugin => 'pgoutput')",
    f"SELECT slot_name FROM {_CREATE}('n_b', plugin => 'pgoutput', failover => true)",
    f"SELECT slot_name FROM {_CREATE}(plugin => 'pgoutput', slot_name => 'n_t', temporary => true)",
    f"SELECT {_CREATE}(slot_name => 'n_x', plugin => 'pgoutput', twophase => NULL)",
    f"SELECT {_CREATE}(name => 'n_x', plugin => 'pgoutput')",
    f"SELECT {_CREATE}(slot_name => 'n_x')",
    f"SELECT {_CREATE}('n_x', slot_name => 'n_y', plugin => 'pgoutput')",
    f"SELECT slot_name FROM {_CREATE}('n_v', 'pgoutput', VARIADIC false)",
    f"SELECT slot_name FROM {_COPY}('n_a', 'n_c')",
    f"SELECT slot_name FROM {_COPY}('n_b', 'n_d', true)",
    f"SELECT slot_name FROM {_COPY}('n_t', 'n_e')",
    f"SELECT slot_name FROM {_COPY}(dst_slot_name => 'n_f', src_slot_name => 'n_t',"
    " temporary => false, plugin => 'pgoutput')",
    "SELECT c.slot_name, c.plugin, c.temporary, c.two_phase, c.failover, c.active,"
    " c.confirmed_flush_lsn = s.confirmed_flush_lsn"
    " FROM pg_replication_slots c JOIN pg_replication_slots s ON s.slot_name = CASE"
    " WHEN c.slot_name = 'n_c' THEN 'n_a' WHEN c.slot_name = 'n_d' THEN 'n_b' ELSE 'n_t' END"
    " WHERE c.slot_name IN ('n_c', 'n_d', 'n_e', 'n_f') ORDER BY 1",
    f"SELECT c.lsn = s.confirmed_flush_lsn FROM {_COPY}('n_a', 'n_g', true) c,"
    " pg_replication_slots s WHERE s.slot_name = 'n_a'",
    f"SELECT {_COPY}('n_a', 'n_a')",
    f"SELECT slot_name FROM {_COPY}('n_a', 'n_t')",
    f"SELECT {_COPY}('nowhere', 'n_x')",
    f"SELECT {_COPY}('nowhere', 'N x')",
    f"SELECT {_COPY}('n_a', 'N x')",
    f"SELECT {_COPY}('n_a', '')",
    f"SELECT {_COPY}('n_a', repeat('x', 64)::name) IS NOT NULL",
    f"SELECT {_COPY}('n_a', 'n_x', false, 'nothing')",
    f"SELECT {_COPY}('n_a', 'n_a', false, 'nothing')",
    f"SELECT {_COPY}('n_a', NULL), {_COPY}(NULL, 'n_x')",
    f"SELECT {_COPY}('n_a', 'n_x', NULL), {_COPY}('n_a', 'n_x', false, NULL)",
    f"SELECT {_COPY}('n_a', 'n_x', plugin => 'pgoutput')",
    f"SELECT {_COPY}('n_a')",
    "SELECT pg_drop_replication_slot(slot_name => 'n_c')",
    "SELECT pg_replication_slot_advance(slot_name => 'n_a', upto_lsn => '0/1')",
    "SELECT count(pg_drop_replication_slot(slot_name)) FROM pg_replication_slots"
    " WHERE slot_name ~ '^(n_|x)'",
]


@pytest.fixture
def servers(tmp_path: Path, database: Database) -> Iterator[list[Server]]:
    with two_servers(tmp_path, database, []) as both:
        yield both


def _answers(session: Any) -> Iterator[tuple[str, object]]:
    for query in [*_POSITIONS, *_MESSAGES, *_SLOTS]:
        try:
            yield query, session.execute(query).fetchall()
        except psycopg.Error as error:
            diag = error.diag
            message = (diag.message_primary or "").replace("n_a", "SLOT")
            at = "minimum is"
            message = message.partition(at)[0] + at if at in message else message
            yield query, (diag.sqlstate, message)


def test_answers_and_errors(servers: list[Server]) -> None:
    stock, node = servers
    node.lake.slots._max_slots = 20  # type: ignore[union-attr]
    with stock.connect() as theirs, node.connect() as ours:
        wanted, found = dict(_answers(theirs)), dict(_answers(ours))
    different = {q: (wanted[q], found[q]) for q in wanted if wanted[q] != found[q]}
    assert different == {}, "\n".join(f"{q}: {d}" for q, d in different.items())


def test_blocks_and_limits(servers: list[Server]) -> None:
    _, node = servers
    with node.connect() as session:
        session.execute("BEGIN")
        session.execute(f"SELECT {_EMIT}(false, 'p', 'written at once')")
        session.execute("ROLLBACK")
        session.execute(f"SELECT {_CREATE}('one', 'pgoutput')")
        for number in range(3):
            session.execute(f"SELECT {_COPY}('one', 'n_{number}')")
        with pytest.raises(psycopg.errors.ConfigurationLimitExceeded, match="all replication"):
            session.execute(f"SELECT {_COPY}('one', 'too_many')")
        node.lake.slots.invalidate("one", "wal_removed")  # type: ignore[union-attr]
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="reserve WAL"):
            session.execute(f"SELECT {_COPY}('one', 'n_4')")
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            session.execute("SELECT pg_current_xact_id()")
