"""What the grammar makes of publications, roles, tables and sessions; mistakes are in
test_syntax_oracle.
"""

from __future__ import annotations

import pytest

from penstock.sql import (
    AddColumn,
    AddPrimaryKey,
    AlterPublicationObjects,
    AlterPublicationOptions,
    AlterPublicationOwner,
    AlterRole,
    AlterSubscriptionOwner,
    AlterTable,
    AttachPartition,
    ChangeOwner,
    ColumnDef,
    ColumnType,
    ConstrType,
    Copy,
    CreatePublication,
    CreateRole,
    CreateSchema,
    CreateTable,
    Deallocate,
    DefElem,
    DetachPartition,
    Discard,
    DropColumn,
    DropPublication,
    DropRole,
    DropSchema,
    DropTable,
    GrantSelect,
    Limit,
    PartitionBound,
    PartitionSpec,
    PublicationAction,
    PublicationSchema,
    PublicationTable,
    QueryStatement,
    RangeVar,
    RenamePublication,
    RenameRole,
    ResetVariable,
    RoleKind,
    RoleOption,
    RoleSpec,
    SetReplicaIdentity,
    SetTransaction,
    SetTransactionSnapshot,
    SetVariable,
    ShowVariable,
    Statement,
    Strategy,
    Transaction,
    TransactionKind,
    TransactionModes,
    Truncate,
    parse,
    parse_partition_bound,
)
from penstock.sql.grammar.raw_statements import parse_query, parse_select

T, U = RangeVar("t"), RangeVar("u")
R = RoleSpec("r")
ADD, SET, DROP = PublicationAction.ADD, PublicationAction.SET, PublicationAction.DROP
INT = ColumnType("int4")
A = ColumnDef("a", INT)


def table(name: RangeVar, *columns: str, where: str | None = None) -> PublicationTable:
    return PublicationTable(name, columns or None, where)


PUBLICATIONS: list[tuple[str, Statement]] = [
    ("CREATE PUBLICATION p", CreatePublication("p")),
    ("CREATE PUBLICATION p FOR ALL TABLES", CreatePublication("p", all_tables=True)),
    (
        'create publication "P" for table t, S."T" (a, "B") where ( a > \')\' ), only u, v *'
        " with (publish = 'insert', publish_via_partition_root)",
        CreatePublication(
            "P",
            (
                table(T),
                table(RangeVar("T", "s"), "a", "B", where="a > ')'"),
                table(RangeVar("u", only=True)),
                table(RangeVar("v")),
            ),
            options=(DefElem("publish", "insert"), DefElem("publish_via_partition_root")),
        ),
    ),
    (
        "CREATE PUBLICATION p FOR TABLES IN SCHEMA s, u, CURRENT_SCHEMA, TABLE t, TABLES IN SCHEMA"
        " CURRENT_SCHEMA, v",
        CreatePublication(
            "p",
            (
                PublicationSchema("s"),
                PublicationSchema("u"),
                PublicationSchema(None),
                table(T),
                PublicationSchema(None),
                PublicationSchema("v"),
            ),
        ),
    ),
    (
        "ALTER PUBLICATION p ADD TABLE t WHERE ((a) /* ) */ = $$)$$ -- )\n)",
        AlterPublicationObjects("p", ADD, (table(T, where="(a) /* ) */ = $$)$$"),)),
    ),
    (
        "ALTER PUBLICATION p SET TABLE t, u (a)",
        AlterPublicationObjects("p", SET, (table(T), table(U, "a"))),
    ),
    (
        "ALTER PUBLICATION p DROP TABLE t, TABLES IN SCHEMA s",
        AlterPublicationObjects("p", DROP, (table(T), PublicationSchema("s"))),
    ),
    (
        "ALTER PUBLICATION p SET (publish = '')",
        AlterPublicationOptions("p", (DefElem("publish", ""),)),
    ),
    ("ALTER PUBLICATION p OWNER TO r", AlterPublicationOwner("p", R)),
    (
        "ALTER PUBLICATION p OWNER TO CURRENT_ROLE",
        AlterPublicationOwner("p", RoleSpec(kind=RoleKind.CURRENT_ROLE)),
    ),
    ("ALTER PUBLICATION p RENAME TO q", RenamePublication("p", "q")),
    ("DROP PUBLICATION p", DropPublication(("p",))),
    ("DROP PUBLICATION IF EXISTS p, q CASCADE", DropPublication(("p", "q"), missing_ok=True)),
]

ROLES: list[tuple[str, Statement]] = [
    ("CREATE ROLE r", CreateRole("r")),
    ("CREATE USER r", CreateRole("r", login=True)),
    (
        "CREATE ROLE r WITH LOGIN NOSUPERUSER REPLICATION PASSWORD 'x' CONNECTION LIMIT -1"
        " VALID UNTIL '2030-01-01' INHERIT",
        CreateRole(
            "r",
            (
                RoleOption("canlogin", True),
                RoleOption("superuser", False),
                RoleOption("isreplication", True),
                RoleOption("password", "x"),
                RoleOption("connectionlimit", -1),
                RoleOption("validUntil", "2030-01-01"),
                RoleOption("inherit", True),
            ),
        ),
    ),
    ("ALTER USER r PASSWORD NULL", AlterRole(R, (RoleOption("password", None),))),
    ("ALTER ROLE r RENAME TO q", RenameRole("r", "q")),
    ("DROP ROLE IF EXISTS r, q", DropRole((R, RoleSpec("q")), missing_ok=True)),
    (
        "GRANT SELECT ON TABLE t, s.u TO r, PUBLIC",
        GrantSelect((T, RangeVar("u", "s")), (R, RoleSpec(kind=RoleKind.PUBLIC)), is_grant=True),
    ),
    ("REVOKE SELECT ON t FROM r CASCADE", GrantSelect((T,), (R,), is_grant=False)),
]

TABLES: list[tuple[str, Statement]] = [
    (
        "CREATE TABLE IF NOT EXISTS s.t (a int PRIMARY KEY, b varchar(5)[] NOT NULL)",
        CreateTable(
            RangeVar("t", "s"),
            (
                ColumnDef("a", INT, frozenset({ConstrType.PRIMARY})),
                ColumnDef(
                    "b",
                    ColumnType("varchar", modifiers=(5,), array=True),
                    frozenset({ConstrType.NOTNULL}),
                ),
            ),
            missing_ok=True,
        ),
    ),
    (
        'CREATE TABLE t (a int, CONSTRAINT k PRIMARY KEY (a)) PARTITION BY RANGE (a, "B")',
        CreateTable(T, (A,), (("a",),), partition_by=PartitionSpec(Strategy.RANGE, ("a", "B"))),
    ),
    (
        "CREATE TABLE t PARTITION OF u FOR VALUES FROM (1, 'a') TO (MAXVALUE, -2)",
        CreateTable(
            T,
            parent=U,
            bound=PartitionBound(Strategy.RANGE, lower=("1", "a"), upper=(Limit.MAXVALUE, "-2")),
        ),
    ),
    ("DROP TABLE IF EXISTS t, u CASCADE", DropTable((T, U), missing_ok=True, cascade=True)),
    (
        "ALTER TABLE t ADD a int, ADD COLUMN IF NOT EXISTS a int, ADD PRIMARY KEY (a),"
        " REPLICA IDENTITY FULL, REPLICA IDENTITY USING KEY (a, b), OWNER TO r",
        AlterTable(
            T,
            (
                AddColumn(A),
                AddColumn(A, missing_ok=True),
                AddPrimaryKey(("a",)),
                SetReplicaIdentity("f"),
                SetReplicaIdentity("i", ("a", "b")),
                ChangeOwner(R),
            ),
        ),
    ),
    ("ALTER SUBSCRIPTION s OWNER TO r", AlterSubscriptionOwner("s", R)),
    (
        "ALTER TABLE IF EXISTS t ATTACH PARTITION u DEFAULT",
        AlterTable(T, (AttachPartition(U, PartitionBound(Strategy.DEFAULT)),), missing_ok=True),
    ),
    (
        'ALTER TABLE t REPLICA IDENTITY NOTHING, REPLICA IDENTITY USING KEY ("é"), ADD a int',
        AlterTable(T, (SetReplicaIdentity("n"), SetReplicaIdentity("i", ("é",)), AddColumn(A))),
    ),
    ("ALTER TABLE t DETACH PARTITION u", AlterTable(T, (DetachPartition(U),))),
    (
        "ALTER TABLE t DROP COLUMN IF EXISTS a CASCADE, DROP a, DROP column b RESTRICT",
        AlterTable(T, (DropColumn("a", True, True), DropColumn("a"), DropColumn("b"))),
    ),
    ("CREATE SCHEMA IF NOT EXISTS s", CreateSchema("s", missing_ok=True)),
    ("CREATE SCHEMA AUTHORIZATION r", CreateSchema(None, R)),
    ("DROP SCHEMA s, t CASCADE", DropSchema(("s", "t"), cascade=True)),
]

SESSIONS: list[tuple[str, Statement]] = [
    ("SET a TO 1", SetVariable("a", (1,))),
    ("SET LOCAL a.b = b, 'C', -1.5", SetVariable("a.b", ("b", "C", "-1.5"), local=True)),
    ("SET SESSION a = DEFAULT", SetVariable("a", None)),
    ("SET TIME ZONE 'Europe/Paris'", SetVariable("timezone", ("Europe/Paris",))),
    ("SET TIME ZONE LOCAL", SetVariable("timezone", None)),
    ("SET NAMES 'UTF8'", SetVariable("client_encoding", ("UTF8",))),
    ("SET SCHEMA 's'", SetVariable("search_path", ("s",))),
    ("SET ROLE r", SetVariable("role", ("r",))),
    ("SET role TO r", SetVariable("role", ("r",))),
    ("SET SESSION AUTHORIZATION DEFAULT", SetVariable("session_authorization", None)),
    ("RESET ALL", ResetVariable(None)),
    ("RESET a", ResetVariable("a")),
    ("SET x = 'a' -- why\n  'b'", SetVariable("x", ("ab",))),
    ("SHOW server_version", ShowVariable("server_version")),
    ("SHOW TIME ZONE", ShowVariable("timezone")),
    ("SHOW TRANSACTION ISOLATION LEVEL", ShowVariable("transaction_isolation")),
    ("SHOW ALL", ShowVariable(None)),
    ("DISCARD ALL", Discard("all")),
    ('DEALLOCATE PREPARE "S"', Deallocate("S")),
    ("DEALLOCATE ALL", Deallocate(None)),
    (
        "BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ",
        Transaction(
            TransactionKind.BEGIN, TransactionModes(isolation="repeatable read", read_only=True)
        ),
    ),
    (
        "START TRANSACTION READ WRITE, NOT DEFERRABLE",
        Transaction(TransactionKind.START, TransactionModes(read_only=False, deferrable=False)),
    ),
    ("END", Transaction(TransactionKind.COMMIT)),
    ("COMMIT WORK AND CHAIN", Transaction(TransactionKind.COMMIT, chain=True)),
    ("ABORT", Transaction(TransactionKind.ROLLBACK)),
    ("SET TRANSACTION SNAPSHOT '00-1'", SetTransactionSnapshot("00-1")),
    ("SET TRANSACTION READ ONLY", SetTransaction(TransactionModes(read_only=True))),
    (
        "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        SetTransaction(TransactionModes(isolation="serializable"), session=True),
    ),
    ("COPY s.t (a, b) TO STDOUT", Copy(RangeVar("t", "s"), ("a", "b"))),
    (
        "COPY (SELECT a FROM t WHERE (b = ')')) TO STDOUT WITH (FORMAT binary)",
        Copy(
            None,
            query=parse_select("SELECT a FROM t WHERE (b = ')')"),
            options=(DefElem("format", "binary"),),
        ),
    ),
    ("COPY BINARY t TO STDOUT", Copy(T, options=(DefElem("format", "binary"),))),
    (
        "COPY t TO STDOUT CSV HEADER DELIMITER AS ';' FORCE QUOTE a, b",
        Copy(
            T,
            options=(
                DefElem("format", "csv"),
                DefElem("header", "true"),
                DefElem("delimiter", ";"),
                DefElem("force_quote", "a, b"),
            ),
        ),
    ),
    ("TRUNCATE t, ONLY u CASCADE", Truncate((T, RangeVar("u", only=True)), cascade=True)),
    *(
        (text, QueryStatement(parse_query(text)))
        for text in (
            "SELECT a FROM t",
            "(SELECT 1) UNION SELECT 2;",
            "insert into t values (';') -- end",
            "WITH x AS (SELECT 1) TABLE x",
            "VALUES (1)",
        )
    ),
]


@pytest.mark.parametrize(
    ("text", "statement"), PUBLICATIONS + ROLES + TABLES + SESSIONS, ids=lambda case: str(case)[:50]
)
def test_statement(text: str, statement: Statement) -> None:
    assert parse(text) == statement


def test_the_values_of_set_are_one_text() -> None:
    statement = parse("SET search_path = a, 'B', 1")
    assert isinstance(statement, SetVariable)
    assert statement.text == 'a, "B", 1'
    statement = parse("SET DateStyle = iso, 'MDY'")
    assert isinstance(statement, SetVariable)
    assert statement.text == "iso, MDY"


@pytest.mark.parametrize(
    "text",
    [
        "DEFAULT",
        "FOR VALUES IN (1, '-2', 'it''s', NULL, true)",
        "FOR VALUES FROM (MINVALUE, 'a') TO (MAXVALUE, '2020-01-01')",
        "FOR VALUES WITH (modulus 4, remainder 1)",
    ],
)
def test_a_bound_prints_as_the_catalog_keeps_it(text: str) -> None:
    assert str(parse_partition_bound(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "CREATE ROLE r PASSWORD 'tops3cret'",
        "ALTER ROLE r PASSWORD 'tops3cret'",
        "CREATE USER r LOGIN ENCRYPTED PASSWORD $$tops3cret$$",
    ],
)
def test_no_repr_shows_a_password(text: str) -> None:
    assert "tops3cret" not in repr(parse(text))
