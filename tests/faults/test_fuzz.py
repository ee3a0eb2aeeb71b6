"""Texts that clients may send: whatever they are, they end in a value or in an error of ours."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Final

import pytest

from faults.fuzzing import SECONDS, Campaign, mutated
from penstock.attribute import Attribute
from penstock.backend.hba import parse_rules
from penstock.errors import PenstockError, UndefinedObject
from penstock.pg_catalog import (
    CatalogDatabase,
    CatalogSnapshot,
    SessionFacts,
    reads_catalog_only,
)
from penstock.pgoutput.options import parse_parameters
from penstock.protocol.replication_grammar import (
    AlterReplicationSlot,
    CreateReplicationSlot,
    StartReplication,
    alter_slot_options,
    create_slot_options,
    is_replication_command,
    parse_replication_command,
)
from penstock.protocol.scram import ScramVerifier
from penstock.protocol.startup import parse_options
from penstock.publication.row_filter import compile_row_filter
from penstock.sql import QueryStatement, RangeVar, parse, parse_partition_bound, parse_script
from penstock.sql.grammar.copy import copy_query
from penstock.sql.grammar.parsenodes import InsertStmt, PreparableStmt, SelectStmt
from penstock.sql.grammar.raw_statements import parse_expression, parse_query, parse_select
from penstock.sql.to_duckdb.duckdb_change import compile_expression, compile_insert
from penstock.sql.to_duckdb.duckdb_query import compile_query
from penstock.sql.typed.change_analysis import analyze_change, analyze_insert
from penstock.sql.typed.select_analysis import analyze_select
from pg_catalog import objects, subscriber_queries
from pg_catalog.test_queries import QUERIES
from publication.filters import VALUES, Filters
from publication.test_row_filter_texts import TEXTS

pytestmark = pytest.mark.faults

STATEMENTS: Final = [
    line
    for line in (Path(__file__).parents[1] / "sql" / "statements.txt")
    .read_text("utf-8")
    .split("\n")
    if line
]
OIDS: Final = {
    "smallint": 21, "integer": 23, "bigint": 20, "numeric(10,2)": 1700, "numeric": 1700,
    "real": 700, "double precision": 701, "boolean": 16, "text": 25, "varchar(20)": 1043,
    "char(5)": 1042, "date": 1082, "timestamp": 1114, "timestamptz": 1184, "uuid": 2950,
    "bytea": 17, "integer[]": 1007, "text[]": 1009, "jsonb": 3802,
}  # fmt: skip
COLUMNS: Final = [
    Attribute(f"c{n}", OIDS[name]) for n, name in enumerate(VALUES) if name in OIDS
] + [Attribute(name, oid) for name, oid in (("i4", 23), ("t", 25), ("b", 16), ("n", 1700))]
FILTERS: Final = list(TEXTS)
COMMANDS: Final = [
    "IDENTIFY_SYSTEM",
    "SHOW data_directory_mode",
    "READ_REPLICATION_SLOT s",
    "TIMELINE_HISTORY 7",
    "BASE_BACKUP (LABEL 'x', PROGRESS, WAIT 0)",
    'DROP_REPLICATION_SLOT "A""b" WAIT;',
    "ALTER_REPLICATION_SLOT s ( FAILOVER false, TWO_PHASE true );",
    "CREATE_REPLICATION_SLOT \"s\" TEMPORARY LOGICAL pgoutput (SNAPSHOT 'use', FAILOVER)",
    "CREATE_REPLICATION_SLOT s LOGICAL pgoutput TWO_PHASE NOEXPORT_SNAPSHOT",
    "START_REPLICATION SLOT s PHYSICAL 0/0 TIMELINE 3",
    "START_REPLICATION SLOT \"s\" LOGICAL FF/1f (proto_version '4', streaming 'parallel',"
    " origin 'any', publication_names '\"a\",\"it''s\"', binary 'true', messages 'off')",
    "START_REPLICATION SLOT s LOGICAL 0/0 (proto_version '1', publication_names 'a, \"b\"')",
]
RULES: Final = [
    "host all all 127.0.0.1/32 scram-sha-256",
    "hostssl lake,sea all 10.0.0.0/8 scram-sha-256 # comment",
    "hostnossl replication u ::1/128 trust",
    "host all bad,worse all reject",
]
OPTIONS: Final = ["-c a.b=c", "--datestyle=ISO -c x=y\\ z", "-cwork_mem=1 --", "-c b=UTF8"]
VERIFIER: Final = str(ScramVerifier.of_password("x", bytes(16)))
CATALOG: Final = [
    *QUERIES,
    subscriber_queries.check_publications_origin(["p", "q"]),
    subscriber_queries.table_list_14(["p"]),
    subscriber_queries.table_list_16(["p"]),
    subscriber_queries.column_list(16385, ["p"]),
    subscriber_queries.columns(16385, subscriber=18, publisher=18),
    subscriber_queries.row_filter(16385, ["p"]),
]


def statements(text: str) -> None:
    for statement in parse_script(text):
        assert repr(statement)
    parse(text)


def filters(text: str) -> None:
    compile_row_filter(text, COLUMNS, table="public.t")


def random_filter(random: Random) -> str:
    names: dict[str, list[str]] = {}
    for number, name in enumerate(VALUES):
        if name in OIDS:
            names[name] = [f"c{number}"]
    drawn = Filters(names).draw(random)
    return drawn if random.random() < 0.2 else mutated(random, [drawn, random.choice(FILTERS)])


def expressions(text: str) -> None:
    parse_expression(text)
    copy_query(parse_select(f"SELECT a FROM t WHERE {text}"))


def replication(text: str) -> None:
    for version in (14, 16, 18):
        is_replication_command(text, version)
        match command := parse_replication_command(text, version):
            case CreateReplicationSlot():
                create_slot_options(command, version)
            case AlterReplicationSlot():
                alter_slot_options(command, version)
            case StartReplication(options=options) if options:
                parse_parameters(options, version)


def parameters(text: str) -> None:
    name, _, value = text.partition("=")
    for version in (14, 18):
        parse_parameters([(name, value), ("proto_version", "1")], version)


PARAMETERS: Final = [
    "proto_version=4", 'publication_names="a","b"', "publication_names=a, B", "binary=on",
    "streaming=parallel", "two_phase=true", "origin=any", "messages=off",
]  # fmt: skip


def catalog_queries() -> Callable[[str], None]:
    database = CatalogDatabase(objects.snapshot(), objects.session())

    def check(text: str) -> None:
        query = parse_query(text)
        if reads_catalog_only(query):
            database.describe(query)
            if not _may_have_no_end(text):
                database.query(query)

    return check


def _may_have_no_end(text: str) -> bool:
    """A recursion with a mistake in it, for instance; a server does not end it either."""
    return re.search(r"\brecursive\b", text, re.IGNORECASE) is not None


MARKER: Final = "s3cretMarker"
"""Stands in a verifier and a connection string; no answer, error or line of the log has it."""
SECRETS: Final = [
    "SELECT * FROM pg_authid", "SELECT rolname, rolpassword FROM pg_authid WHERE rolpassword ~ 's'",
    "SELECT passwd FROM pg_shadow ORDER BY usename", "SELECT subconninfo FROM pg_subscription",
    "SELECT s.* FROM pg_subscription AS s (a, b, c, d) WHERE s.subname = 's1'",
    "SELECT length(n) FROM pg_subscription AS s (a, b, c, d, e, f, g, h, i, j, k, l, m, n)",
    "SELECT subname, subpublications FROM pg_subscription JOIN pg_roles ON subowner = pg_roles.oid",
    "SELECT 1 FROM pg_subscription a NATURAL JOIN (SELECT 'x'::text AS subconninfo) b",
    "WITH q AS (SELECT * FROM pg_subscription) SELECT subname, (SELECT count(*) FROM q) FROM q",
    "SELECT max(subconninfo), min(rolpassword) FROM pg_subscription, pg_authid GROUP BY subname",
    "SELECT * FROM pg_roles r LEFT JOIN pg_user u ON r.oid = u.usesysid", "TABLE pg_user",
    "SELECT subconninfo::int FROM pg_subscription UNION SELECT rolpassword::int FROM pg_authid",
    "SELECT has_table_privilege('pg_authid', 'SELECT'), current_setting('primary_conninfo', true)",
]  # fmt: skip


def queries_without_rights() -> Callable[[str], None]:
    """Of a role that is nobody, in a node whose secrets have the marker."""
    base = objects.snapshot()
    verifier = f"SCRAM-SHA-256$4096:{MARKER}$c3Q=:c2s="
    roles = tuple(replace(role, verifier=verifier) for role in base.roles)
    subscriptions = tuple(
        replace(each, conninfo=f"host={MARKER} password={MARKER}") for each in base.subscriptions
    )
    snapshot = replace(base, roles=roles, subscriptions=subscriptions)
    assert MARKER in str(_rows_of(snapshot, objects.session(), "SELECT * FROM pg_authid"))
    assert MARKER in str(_rows_of(snapshot, objects.session(), "SELECT * FROM pg_subscription"))
    database = CatalogDatabase(snapshot, objects.session(user="bob", superuser=False))
    shown: list[str] = []
    handler = logging.Handler(logging.DEBUG)
    handler.emit = lambda record: shown.append(  # type: ignore[method-assign]
        f"{record.getMessage()} {record.exc_info}"
    )

    def check(text: str) -> None:
        logger = logging.getLogger("penstock")
        level = logger.level
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
        shown.clear()
        try:
            query = parse_query(text)
            if reads_catalog_only(query) and not _may_have_no_end(text):
                shown.append(str(database.query(query)))
        except PenstockError as error:
            shown.append(f"{error!r} {error.message} {error.detail} {error.hint}")
            raise
        finally:
            logger.removeHandler(handler)
            logger.setLevel(level)
            told = [line for line in shown if MARKER in line and MARKER not in text]
            assert not told, told[0][:200]

    return check


def _rows_of(snapshot: CatalogSnapshot, session: SessionFacts, text: str) -> object:
    database = CatalogDatabase(snapshot, session)
    try:
        return database.query(parse_select(text))
    finally:
        database.close()


LAKE: Final = [
    "SELECT * FROM t", "SELECT count(*), max(a) FROM public.t AS x WHERE a > 5 GROUP BY b",
    "WITH q AS (SELECT a FROM t) SELECT q.a FROM q JOIN t ON q.a = t.a ORDER BY 1 LIMIT 5",
    "SELECT (SELECT b FROM t LIMIT 1), CASE WHEN a = 1 THEN 'x' END, a::text FROM t u, t v",
    "INSERT INTO t VALUES (1, 'x'), (2, NULL)", "INSERT INTO t (b) SELECT b || 'y' FROM t",
    "UPDATE t SET a = a + 1, b = upper(b) WHERE a IN (1, 2)", "DELETE FROM t WHERE b LIKE 'x%'",
]  # fmt: skip


TABLE: Final = (Attribute("a", 23), Attribute("b", 25))


def find_table(name: RangeVar) -> tuple[Attribute, ...]:
    if name.schema not in (None, "public") or name.name != "t":
        raise UndefinedObject(f'relation "{name}" does not exist', sqlstate="42P01")
    return TABLE


def lake_queries(text: str) -> None:
    """The whole way of a statement to what is run."""
    for statement in parse_script(text):
        if isinstance(statement, QueryStatement):
            compiled(statement.query)


def compiled(raw: PreparableStmt) -> None:
    match raw:
        case SelectStmt():
            compile_query(analyze_select(raw, find_table))
        case InsertStmt():
            compile_insert(analyze_insert(raw, TABLE, find_table))
        case _:
            plan = analyze_change(raw, TABLE, find_table)
            for name, value in plan.settings:
                compile_expression(plan, value, next(c for c in TABLE if c.name == name))
            if plan.where is not None:
                compile_expression(plan, plan.where)


def mutations(corpus: list[str]) -> Callable[[Random], str]:
    return lambda random: mutated(random, corpus)


TARGETS: Final[dict[str, tuple[float, Callable[[Random], str], Callable[[str], object]]]] = {
    "statements": (3, mutations(STATEMENTS), statements),
    "row filters": (3, random_filter, filters),
    "expressions": (1, mutations(FILTERS), expressions),
    "partition bounds": (
        0.3,
        mutations(["FOR VALUES FROM (1, 'a') TO (MAXVALUE, 5)", "DEFAULT", "FOR VALUES IN (1)"]),
        parse_partition_bound,
    ),
    "replication commands": (1, mutations(COMMANDS), replication),
    "pgoutput options": (0.3, mutations(PARAMETERS), parameters),
    "hba lines": (0.3, mutations(RULES), lambda text: parse_rules(text.split("\n"))),
    "startup options": (0.3, mutations(OPTIONS), parse_options),
    "verifiers": (0.3, mutations([VERIFIER]), ScramVerifier.parse),
    "lake queries": (1, mutations(LAKE), lake_queries),
    "catalog queries": (3, mutations(CATALOG), catalog_queries()),
    "catalog queries, no rights": (
        2,
        mutations([*SECRETS, *SECRETS, *CATALOG]),
        queries_without_rights(),
    ),
}
ALL: Final = sum(share for share, _, _ in TARGETS.values())
TEXTS_SHARE: Final = 0.7
"""Of PENSTOCK_FUZZ_SECONDS; the rest is the wire's."""


@pytest.mark.parametrize("target", TARGETS)
def test_any_text_is_understood_or_refused(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    share, make, check = TARGETS[target]
    campaign = Campaign(target)
    campaign.run(SECONDS * TEXTS_SHARE * share / ALL, make, check)
    with capsys.disabled():
        print(f"\n{campaign.report()}", end="")
    campaign.verify()


MANY_NINES: Final = "9" * 5000


@pytest.mark.parametrize(
    ("call", "text", "sqlstate"),
    [
        (statements, f"CREATE ROLE r CONNECTION LIMIT {MANY_NINES}", "42601"),
        (statements, "SELECT $99999999999", "42601"),
        (filters, f"i4 = {MANY_NINES}", "0A000"),
        (filters, f"n > '{MANY_NINES}'", "0A000"),
        (filters, f"i4 > '{MANY_NINES}'", "0A000"),
        (filters, "i4 = '٣'", "22P02"),
        (filters, "(" * 3000 + "i4" + ")" * 3000 + " > 1", "54001"),
        (filters, "NOT " * 3000 + "b", "54001"),
        (filters, " + ".join(["i4"] * 3000) + " > 1", "54001"),
        (expressions, "i4 operator(pg_catalog.", "42601"),
        (expressions, "i4 operator(", "42601"),
        (parameters, f"proto_version={MANY_NINES}", "22023"),
        (ScramVerifier.parse, VERIFIER.replace("=$", "é=$"), "22023"),
        (catalog_queries(), "SELECT " + "ARRAY[" * 20 + "1" + "]" * 20, "0A000"),
        (parse_query, "SELECT " + "(SELECT " * 2000 + "1" + ")" * 2000, "54001"),
        (parse_query, "SELECT $4294967296", "42601"),
        (catalog_queries(), "SELECT $70000", "42P02"),
        (catalog_queries(), "SELECT 1 ORDER BY 1.5", "42601"),
        (catalog_queries(), "SELECT $a", "42601"),
        (catalog_queries(), "SELECT * FROM (VALUES ('a'), (2, NULL)) v", "42601"),
        (catalog_queries(), "VALUES (1, 'x'), (2)", "42601"),
        (catalog_queries(), "SELECT $2147483647", "42P02"),
        (catalog_queries(), "SELECT ARRAY 'b c'", "42601"),
        (catalog_queries(), "SELECT ARRAY['a', ARRAY 'b c' OR 'b c']", "42601"),
        (lake_queries, "INSERT INTO t (b)", "42601"),
        (lake_queries, "DELETE FROM t WHERE b'' LIKE 'x%'", "0A000"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else "with",
)
def test_what_the_fuzz_has_found(call: Callable[[str], object], text: str, sqlstate: str) -> None:
    campaign = Campaign("found")
    with pytest.raises(PenstockError) as error:
        call(text)
    assert error.value.sqlstate == sqlstate
    campaign.try_one(text, call)
    campaign.verify()
