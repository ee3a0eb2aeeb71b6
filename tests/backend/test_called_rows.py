"""Functions that do something are called as often as a server calls them, or refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.two_servers import Outcome, Server, outcome, two_servers
from fix_postgres import Database

pytestmark = pytest.mark.postgres

_SLOTS = ("called_1", "called_2", "called_3")
_FROM = "FROM pg_replication_slots WHERE slot_name LIKE 'called%'"
_LEFT = f"SELECT slot_name::text {_FROM} ORDER BY slot_name"
_MAKE = "SELECT slot_name FROM pg_create_logical_replication_slot('{}', 'pgoutput')"
_DROP = "pg_drop_replication_slot(slot_name)"

STATEMENTS = [
    f"SELECT {_DROP} {_FROM} ORDER BY slot_name LIMIT 1",
    f"SELECT slot_name, {_DROP} {_FROM} ORDER BY slot_name DESC LIMIT 1",
    f"SELECT 'x' || slot_name, {_DROP}, active {_FROM} ORDER BY active, 1 DESC OFFSET 1",
    f"SELECT {_DROP} {_FROM} ORDER BY slot_name FETCH FIRST 2 ROWS ONLY",
    f"SELECT {_DROP} {_FROM} ORDER BY slot_name LIMIT 0",
    f"SELECT {_DROP}, count(*) {_FROM} GROUP BY slot_name ORDER BY slot_name LIMIT 1",
    f"WITH q AS (SELECT slot_name AS n {_FROM}) SELECT n, pg_drop_replication_slot(n) FROM q"
    " ORDER BY n LIMIT 1",
    f"SELECT * FROM (SELECT {_DROP} {_FROM} ORDER BY slot_name LIMIT 1) AS q",
    "SELECT pg_drop_replication_slot(a.slot_name) FROM pg_replication_slots a"
    " JOIN pg_replication_slots b USING (slot_name) WHERE a.slot_name LIKE 'called%'"
    " ORDER BY b.slot_name LIMIT 1",
]

_CREATE = "pg_create_logical_replication_slot('called_4', 'pgoutput')"
_ONE = "pg_drop_replication_slot('called_1')::text"
_BY_NAME = "(SELECT slot_name FROM pg_replication_slots WHERE slot_name = 'called_1')"
ANYWHERE = [
    f"SELECT count(*) FROM (SELECT {_DROP} {_FROM}) AS x",
    f"SELECT 1 FROM (SELECT {_DROP} {_FROM}) AS x",
    f"SELECT x.slot_name FROM (SELECT slot_name, {_DROP} {_FROM}) AS x ORDER BY 1",
    f"SELECT x.d FROM (SELECT slot_name AS s, {_DROP} AS d {_FROM}) AS x WHERE s = 'called_2'",
    f"SELECT x.d, x.d FROM (SELECT {_DROP} AS d {_FROM}) AS x",
    f"SELECT * FROM (SELECT * FROM (SELECT {_DROP} {_FROM}) AS x) AS y",
    f"SELECT count(*) FROM (SELECT * FROM (SELECT {_DROP} {_FROM}) AS x) AS y",
    f"SELECT * FROM (SELECT {_DROP} {_FROM}) AS x LIMIT 1",
    f"SELECT * FROM (SELECT {_DROP} {_FROM}) AS x OFFSET 1",
    f"SELECT {_DROP} {_FROM} ORDER BY slot_name LIMIT 1 OFFSET 1",
    f"SELECT {_DROP} {_FROM} LIMIT 0",
    f"SELECT * FROM (SELECT {_DROP} {_FROM}) AS x, generate_series(1, 0)",
    f"SELECT x.* FROM (SELECT {_DROP} {_FROM}) AS x JOIN pg_database ON false",
    f"WITH q AS (SELECT {_DROP} {_FROM}) SELECT 1",
    f"WITH q AS (SELECT {_DROP} {_FROM}) SELECT count(*) FROM q",
    f"WITH q AS (SELECT {_DROP} {_FROM}) SELECT * FROM q",
    f"WITH q AS (SELECT {_DROP} AS d {_FROM}) SELECT a.d FROM q a, q b",
    f"WITH q AS MATERIALIZED (SELECT {_DROP} {_FROM}) SELECT 1 FROM q LIMIT 1",
    f"SELECT EXISTS (SELECT {_DROP} {_FROM})",
    f"SELECT 1 WHERE EXISTS (SELECT {_DROP} {_FROM})",
    f"SELECT (SELECT {_DROP} {_FROM} AND slot_name = 'called_1')",
    f"SELECT 1 FROM generate_series(1, 3) WHERE (SELECT {_DROP} {_FROM} LIMIT 1) IS NULL",
    f"SELECT array_length(ARRAY(SELECT {_DROP}::text {_FROM}), 1)",
    f"SELECT slot_name {_FROM} AND {_DROP}::text = ''",
    f"SELECT slot_name {_FROM} AND {_DROP}::text = '' AND slot_name = 'called_1'",
    f"SELECT slot_name {_FROM} AND (slot_name = 'called_1' OR {_DROP}::text = '')",
    f"SELECT CASE WHEN slot_name = 'called_1' THEN {_DROP}::text ELSE 'x' END {_FROM}",
    f"SELECT CASE WHEN slot_name = 'called_1' THEN 'x' ELSE {_DROP}::text END {_FROM}",
    f"SELECT CASE {_DROP}::text WHEN 'a' THEN 1 WHEN '' THEN 2 END {_FROM}",
    f"SELECT slot_name = 'called_1' AND {_DROP}::text = '' {_FROM}",
    f"SELECT slot_name = 'called_1' OR {_DROP}::text = '' {_FROM}",
    f"SELECT coalesce(nullif(slot_name::text, 'called_1'), {_DROP}::text) {_FROM} ORDER BY 1",
    f"SELECT nullif({_DROP}::text, 'x') {_FROM}",
    f"SELECT greatest({_DROP}::text, 'x') {_FROM}",
    f"SELECT left({_DROP}::text || slot_name, 3) {_FROM}",
    f"SELECT count({_DROP}) {_FROM}",
    f"SELECT count({_DROP}) FILTER (WHERE slot_name = 'called_1') {_FROM}",
    f"SELECT count({_DROP}::text), count({_DROP}::text) {_FROM} AND slot_name = 'called_1'",
    f"SELECT count(*) {_FROM} GROUP BY {_DROP}::text",
    f"SELECT count(*) {_FROM} HAVING count({_DROP}) > 5",
    f"SELECT slot_name {_FROM} ORDER BY {_DROP}::text, 1",
    f"SELECT {_DROP}::text {_FROM} ORDER BY 1",
    f"SELECT DISTINCT {_DROP}::text {_FROM}",
    f"SELECT row_number() OVER (ORDER BY slot_name), {_DROP} {_FROM}",
    f"SELECT max({_DROP}::text) OVER () {_FROM}",
    f"SELECT {_DROP} {_FROM} UNION ALL SELECT {_DROP} {_FROM} AND false",
    f"SELECT {_DROP}::text {_FROM} UNION SELECT 'x' ORDER BY 1",
    f"SELECT 'x' FROM pg_database WHERE false INTERSECT SELECT {_DROP}::text {_FROM}",
    f"SELECT 'x' FROM pg_database WHERE false EXCEPT SELECT {_DROP}::text {_FROM}",
    f"SELECT count(*) FROM (SELECT {_DROP} {_FROM} UNION ALL SELECT NULL) AS x",
    "VALUES (pg_drop_replication_slot('called_1')), (pg_drop_replication_slot('called_2'))",
    "SELECT 1 FROM (VALUES (pg_drop_replication_slot('called_1'))) AS v (a)",
    "SELECT v.a FROM (VALUES (pg_drop_replication_slot('called_1'))) AS v (a)",
    f"SELECT 1 FROM {_CREATE}",
    f"SELECT count(*) FROM {_CREATE}",
    f"SELECT slot_name FROM {_CREATE}",
    f"SELECT slot_name FROM {_CREATE} LIMIT 0",
    f"SELECT slot_name FROM {_CREATE} WHERE false",
    f"SELECT slot_name FROM {_CREATE} WHERE slot_name = 'x'",
    f"SELECT 1 FROM {_CREATE}, generate_series(1, 3)",
    f"SELECT 1 FROM generate_series(1, 0), {_CREATE}",
    f"SELECT 1 FROM pg_database LEFT JOIN {_CREATE} ON false LIMIT 1",
    f"SELECT count(*) FROM (SELECT slot_name FROM {_CREATE}) AS x",
    f"SELECT slot_name FROM (SELECT * FROM {_CREATE}) AS x",
    "SELECT 1 FROM pg_drop_replication_slot('called_1')",
    "SELECT * FROM pg_drop_replication_slot('called_1')",
    "SELECT pg_drop_replication_slot('called_1') FROM generate_series(1, 0)",
    "SELECT 1 FROM pg_copy_logical_replication_slot('called_1', 'called_4')",
    f"SELECT {_DROP}, generate_series(1, 2) {_FROM} AND slot_name = 'called_1'",
    f"SELECT 1 FROM {_CREATE}, generate_series(1, 0)",
    "SELECT pg_drop_replication_slot('called_1') LIMIT 0",
    "SELECT pg_drop_replication_slot('called_1') WHERE false",
    "SELECT pg_drop_replication_slot('called_1') LIMIT 1 OFFSET 1",
    f"EXPLAIN SELECT {_DROP} {_FROM}",
    f"SELECT {_DROP} FROM (SELECT slot_name {_FROM} ORDER BY 1 LIMIT 1) AS x",
    f"SELECT pg_drop_replication_slot({_BY_NAME})",
    f"SELECT d.datname FROM pg_database d WHERE d.datname IN (SELECT {_DROP}::text {_FROM})",
    f"SELECT 'x' = ANY (ARRAY['x', {_DROP}::text]) {_FROM}",
    f"SELECT 'x' <> ALL (ARRAY['x', {_ONE}])",
    f"SELECT {_ONE} = ANY (ARRAY[]::text[])",
    f"SELECT 'x' IN ('x', {_ONE})",
    f"SELECT NULL::text || {_ONE}",
    f"SELECT substr(NULL::text, length({_ONE}))",
    f"SELECT left({_ONE}, NULL)",
    f"SELECT array_length(ARRAY['a', {_ONE}], 1)",
    f"SELECT array_length(ARRAY['a', {_ONE}], 2)",
    f"SELECT substr({_ONE} || 'abc', 1 + length({_ONE.replace('1', '2')}))",
    f"SELECT {_DROP} AS d {_FROM} ORDER BY d LIMIT 1",
    f"SELECT DISTINCT {_DROP} AS d {_FROM}",
    f"SELECT {_DROP} AS d {_FROM} GROUP BY d",
    f"SELECT {_DROP} {_FROM} UNION SELECT NULL",
    f"SELECT count(DISTINCT {_DROP}) {_FROM}",
]


@pytest.fixture
def both(tmp_path: Path, database: Database) -> Iterator[list[Server]]:
    with two_servers(tmp_path, database, []) as servers:
        yield servers


def _left(server: Server, session: Any, statement: str) -> tuple[Outcome, list[str]]:
    """The outcome, and the slots that are there afterwards; then there is none."""
    for slot in _SLOTS:
        session.execute(_MAKE.format(slot))
    found = outcome(session, statement, server)
    left = [slot for (slot,) in session.execute(_LEFT).fetchall()]
    for slot in left:
        session.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    return found, left


def test_limit_spares_the_other_slots(both: list[Server]) -> None:
    seen: list[dict[str, tuple[Outcome, list[str]]]] = []
    for server in both:
        with server.connect() as session:
            seen.append({each: _left(server, session, each) for each in STATEMENTS})
    assert seen[0] == seen[1]


def test_wherever_they_stand(both: list[Server]) -> None:
    """Done as on a server, or refused and not done."""
    server, node = both
    everything = ("0A000", list(_SLOTS))
    wrong, refused = [], []
    with server.connect() as there, node.connect() as here:
        for statement in ANYWHERE:
            expected, left = _left(server, there, statement)
            found, our_left = _left(node, here, statement)
            if (found[0], our_left) == everything and expected[0] != found[0]:
                refused.append(statement)
            elif (found[0], our_left) != (expected[0], left):
                wrong.append(
                    f"{statement}\n  server {expected} {left}\n  node   {found} {our_left}"
                )
    assert not wrong, "\n".join(wrong)
    assert len(refused) < len(ANYWHERE) * 2 / 3, "\n".join(refused)


def test_what_would_be_called_for_more_rows_is_refused(both: list[Server]) -> None:
    node = both[1]
    with node.connect() as session:
        statement = f"SELECT {_DROP} {_FROM} UNION ALL SELECT NULL LIMIT 1"
        found, left = _left(node, session, statement)
    assert found == (
        "0A000",
        "LIMIT of a UNION that calls volatile functions is not supported",
        None,
    )
    assert left == list(_SLOTS)
