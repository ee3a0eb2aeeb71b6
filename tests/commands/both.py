"""The same script to PostgreSQL 18 and to our commands, statement by statement."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
from psycopg.errors import Diagnostic

from penstock.catalog import Catalog, LakeTable
from penstock.commands import CommandScope, CurrentRole, execute
from penstock.commands.namespace import table_columns
from penstock.errors import PenstockError
from penstock.lakehouse.warehouse import Warehouse
from penstock.sql import SetVariable, parse
from penstock.walreceiver.publisher import Publisher

Message = tuple[str, str, str, str | None, str | None]
"""Severity, SQLSTATE, message, detail, hint."""
Outcome = tuple[Message, ...]

POSTGRES = CurrentRole("postgres", superuser=True)


class Ours:
    """A node's catalog and warehouse."""

    def __init__(self, folder: Path, database: str) -> None:
        self.catalog = Catalog.create(f"sqlite:///{folder / 'state.db'}")
        self.scope = CommandScope(
            warehouse=Warehouse(str(folder / "warehouse"), fsync=False),
            role=POSTGRES,
            session_role=POSTGRES,
            node_role=POSTGRES,
            database=database,
        )

    def run(self, text: str) -> Outcome:
        try:
            statement = parse(text)
            if isinstance(statement, SetVariable) and statement.name == "role":
                self._set_role(statement.text)
                return ()
            result = execute(statement, self.catalog, Publisher.connect, self.scope)
        except PenstockError as error:
            return (("ERROR", error.sqlstate, error.message, error.detail, error.hint),)
        return tuple((n.severity, n.sqlstate, n.message, n.detail, n.hint) for n in result.notices)

    def _set_role(self, name: str) -> None:
        role = POSTGRES
        if name != "none":
            with self.catalog.read() as t:
                role = CurrentRole.of(t.roles.get(name))
        self.scope = replace(self.scope, role=role)

    def state(self) -> dict[str, Any]:
        """What the statements have left in the catalog."""
        with self.catalog.read() as t:
            owners = {role.oid: role.name for role in t.roles.all()} | {None: "postgres"}
            tables = {table.oid: table.qualified_name for table in t.tables.all()}
            publications = {p.oid: p.name for p in t.publications.all()}
            return {
                "publications": [
                    (
                        p.name, owners[p.owner], p.all_tables, p.insert, p.update, p.delete,
                        p.truncate, p.via_root, p.generated_columns,
                    )
                    for p in t.publications.all()
                ],
                "relations": sorted(
                    (
                        publications[r.publication],
                        tables[r.relation],
                        None if r.columns is None else list(r.columns),
                        r.row_filter,
                    )
                    for r in t.publications.relations()
                ),
                "schemas": sorted(
                    (publications[n.publication], n.schema) for n in t.publications.namespaces()
                ),
                "tables": sorted(
                    (
                        table.qualified_name, owners[table.owner], table.replica_identity.value,
                        sorted(table.primary_key), table.bound, table.partition_key,
                    )
                    for table in t.tables.all()
                ),
                "indexes": sorted(
                    index for table in t.tables.all() for index in _indexes(table)
                ),
                "generated": sorted(
                    (table.qualified_name, column.name, column.generation)
                    for table in t.tables.all()
                    for column in table_columns(self.scope, table)
                    if column.generated
                ),
                "roles": sorted(
                    (r.name, r.superuser, r.login, r.replication, r.connection_limit,
                     r.verifier is not None)
                    for r in t.roles.all()
                ),
                "subscriptions": [
                    (
                        s.name, owners[s.owner], s.enabled, s.slot_name, list(s.publications),
                        s.password_required, s.run_as_owner, s.binary,
                    )
                    for s in t.subscriptions.all()
                ],
                "types": sorted(
                    (
                        e.schema, e.name, e.array_name, owners[e.owner], list(e.texts),
                        [label.order for label in e.labels],
                    )
                    for e in t.types.all()
                ),
            }  # fmt: skip


def done(node: Ours, *texts: str) -> None:
    """Each of them succeeds, with nothing to say."""
    for text in texts:
        outcome = node.run(text)
        assert not outcome, (text, outcome)


def _indexes(table: LakeTable) -> list[tuple[Any, ...]]:
    """Name, table, columns, primary, of a constraint, replica identity, of a partition."""
    found = [
        (f"{table.schema}.{index.name}", table.qualified_name, list(index.columns), False,
         index.constraint, index.replica_identity, index.parent is not None)
        for index in table.indexes
    ]  # fmt: skip
    if table.primary_key:
        by_key = table.identity_key == table.primary_key and not any(i[5] for i in found)
        found.append(
            (f"{table.schema}.{table.primary_key_name}", table.qualified_name,
             list(table.primary_key), True, True, by_key, table.parent is not None)
        )  # fmt: skip
    return found


class Theirs:
    """A database of a real server; everything happens in a transaction that is rolled back."""

    def __init__(self, session: psycopg.Connection[Any]) -> None:
        self._session = session
        self._notices: list[Message] = []
        session.add_notice_handler(lambda diagnostic: self._notices.append(_message(diagnostic)))

    def run(self, text: str) -> Outcome:
        self._notices.clear()
        self._session.execute("SAVEPOINT statement")
        try:
            self._session.execute(text)
        except psycopg.Error as error:
            self._session.execute("ROLLBACK TO SAVEPOINT statement")
            return (_message(error.diag),)
        return tuple(self._notices)

    def state(self) -> dict[str, Any]:
        return {name: self._session.execute(query).fetchall() for name, query in _STATE.items()}


_STATE = {
    "publications": """
        SELECT pubname, pg_get_userbyid(pubowner), puballtables, pubinsert, pubupdate, pubdelete,
               pubtruncate, pubviaroot, pubgencols
        FROM pg_publication ORDER BY pubname COLLATE "C" """,
    "relations": """
        SELECT pubname, nspname || '.' || relname,
               (SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute
                WHERE attrelid = prrelid AND attnum = ANY (prattrs::int2[])),
               pg_get_expr(prqual, prrelid)
        FROM pg_publication_rel JOIN pg_publication p ON p.oid = prpubid
             JOIN pg_class c ON c.oid = prrelid JOIN pg_namespace n ON n.oid = relnamespace
        ORDER BY pubname COLLATE "C", (nspname || '.' || relname) COLLATE "C" """,
    "schemas": """
        SELECT pubname, nspname FROM pg_publication_namespace
             JOIN pg_publication p ON p.oid = pnpubid JOIN pg_namespace n ON n.oid = pnnspid
        ORDER BY pubname COLLATE "C", nspname COLLATE "C" """,
    "tables": """
        SELECT nspname || '.' || relname, pg_get_userbyid(relowner), relreplident,
               coalesce((SELECT array_agg(attname::text ORDER BY attname COLLATE "C")
                         FROM pg_index i JOIN pg_attribute a
                              ON attrelid = i.indrelid AND attnum = ANY (indkey::int2[])
                         WHERE i.indrelid = c.oid AND indisprimary), '{}'),
               pg_get_expr(relpartbound, c.oid), pg_get_partkeydef(c.oid)
        FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
        WHERE relkind IN ('r', 'p') AND nspname NOT IN ('pg_catalog', 'information_schema')
        ORDER BY (nspname || '.' || relname) COLLATE "C" """,
    "indexes": """
        SELECT nspname || '.' || c.relname, nspname || '.' || t.relname,
               (SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute
                WHERE attrelid = indexrelid),
               indisprimary, EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid),
               indisreplident, c.relispartition
        FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_class t ON t.oid = indrelid
             JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE nspname NOT IN ('pg_catalog', 'pg_toast')
        ORDER BY (nspname || '.' || c.relname) COLLATE "C" """,
    "generated": """
        SELECT nspname || '.' || relname, attname, pg_get_expr(adbin, adrelid)
        FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid
             JOIN pg_namespace n ON n.oid = relnamespace
             JOIN pg_attrdef d ON adrelid = attrelid AND adnum = attnum
        WHERE attgenerated <> '' AND nspname NOT IN ('pg_catalog', 'information_schema')
        ORDER BY (nspname || '.' || relname) COLLATE "C", attname COLLATE "C" """,
    "roles": """
        SELECT rolname, rolsuper, rolcanlogin, rolreplication, rolconnlimit,
               rolpassword IS NOT NULL
        FROM pg_authid WHERE oid >= 16384 ORDER BY rolname COLLATE "C" """,
    "subscriptions": """
        SELECT subname, pg_get_userbyid(subowner), subenabled, subslotname, subpublications,
               subpasswordrequired, subrunasowner, subbinary
        FROM pg_subscription JOIN pg_database d ON d.oid = subdbid
        WHERE datname = current_database() ORDER BY pg_subscription.oid """,
    "types": """
        SELECT nspname, t.typname, a.typname, pg_get_userbyid(t.typowner),
               coalesce((SELECT array_agg(enumlabel::text ORDER BY enumsortorder)
                         FROM pg_enum WHERE enumtypid = t.oid), '{}'),
               coalesce((SELECT array_agg(enumsortorder ORDER BY enumsortorder)
                         FROM pg_enum WHERE enumtypid = t.oid), '{}')
        FROM pg_type t JOIN pg_type a ON a.oid = t.typarray
             JOIN pg_namespace n ON n.oid = t.typnamespace
        WHERE t.typtype = 'e' ORDER BY nspname COLLATE "C", t.typname COLLATE "C" """,
}


def _message(diagnostic: Diagnostic) -> Message:
    return (
        str(diagnostic.severity),
        str(diagnostic.sqlstate),
        str(diagnostic.message_primary).strip(),
        diagnostic.message_detail,
        diagnostic.message_hint,
    )
