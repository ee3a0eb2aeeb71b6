"""Replication slots by SQL functions, through psql, beside a real server."""

from __future__ import annotations

import pytest

from publishing.psql_pair import Pair

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_NAMES = r"""
SELECT slot_name, lsn > '0/0' AS lsn FROM pg_create_logical_replication_slot('psql_a', 'pgoutput');
SELECT slot_name FROM pg_create_logical_replication_slot('psql_a', 'pgoutput');
SELECT slot_name FROM pg_create_logical_replication_slot('Psql', 'pgoutput');
SELECT slot_name FROM pg_create_logical_replication_slot('', 'pgoutput');
SELECT slot_name FROM pg_create_logical_replication_slot(repeat('x', 70), 'pgoutput');
SELECT slot_name FROM pg_create_logical_replication_slot('psql_b', 'pgoutput', false, true);
SELECT slot_name FROM pg_create_logical_replication_slot('psql_c', 'pgoutput', true);
SELECT slot_name FROM pg_create_logical_replication_slot('psql_d', 'pgoutput', true, false, true);
SELECT slot_name FROM pg_create_logical_replication_slot('psql_d', 'pgoutput', false, false, true);
SELECT pg_create_logical_replication_slot('psql_e', 'pgoutput') IS NOT NULL AS made;
SELECT pg_drop_replication_slot('psql_c');
SELECT slot_name, plugin, slot_type, temporary, active, two_phase, failover, wal_status,
  confirmed_flush_lsn IS NOT NULL AS confirmed, invalidation_reason
FROM pg_replication_slots WHERE slot_name LIKE 'psql%' ORDER BY 1;
SELECT pg_drop_replication_slot('psql_nowhere');
SELECT pg_drop_replication_slot('psql_d');
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = 'psql_e';
SELECT pg_replication_slot_advance('psql_nowhere', '0/1');
SELECT pg_replication_slot_advance('psql_a', '0/0');
SELECT pg_replication_slot_advance('psql_a', '0/1');
SELECT slot_name, end_lsn > '0/0' AS moved
FROM pg_replication_slot_advance('psql_a', pg_current_wal_lsn());
SELECT pg_create_logical_replication_slot(NULL, 'pgoutput');
SELECT pg_drop_replication_slot(NULL);
SELECT pg_drop_replication_slot('psql_a');
SELECT pg_drop_replication_slot('psql_b');
SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE 'psql%' AND NOT temporary;
SELECT pg_current_wal_lsn() > '0/0' AS at, pg_current_wal_lsn() - pg_current_wal_insert_lsn() AS d;
"""


def test_slots(pair: Pair) -> None:
    pair.both(_NAMES)
