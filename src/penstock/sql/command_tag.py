"""Command tags of statements that change something (utility.c, CreateCommandTag).

The error ``cannot execute ... in a read-only transaction`` names the tag. Statements that a
read-only transaction allows have no tag here (ClassifyUtilityCommandAsReadOnly): queries, COPY TO,
SET, COMMIT, VACUUM and the like.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.sql.grammar import (
    alter_table,
    copy,
    publication,
    raw_statements,
    role,
    session,
    subscription,
    table,
    vacuum,
)
from penstock.sql.grammar import type as types
from penstock.sql.grammar.parsenodes import SelectStmt, Statement

_TAGS: Final[Mapping[type[Statement], str]] = {
    alter_table.AlterTable: "ALTER TABLE",
    alter_table.CreateIndex: "CREATE INDEX",
    alter_table.DropIndex: "DROP INDEX",
    alter_table.SetSchema: "ALTER TABLE",
    table.Truncate: "TRUNCATE TABLE",
    publication.AlterPublicationObjects: "ALTER PUBLICATION",
    publication.AlterPublicationOptions: "ALTER PUBLICATION",
    publication.AlterPublicationOwner: "ALTER PUBLICATION",
    publication.CreatePublication: "CREATE PUBLICATION",
    publication.DropPublication: "DROP PUBLICATION",
    publication.RenamePublication: "ALTER PUBLICATION",
    role.AlterRole: "ALTER ROLE",
    role.CreateRole: "CREATE ROLE",
    role.DropRole: "DROP ROLE",
    role.RenameRole: "ALTER ROLE",
    subscription.AlterSubscriptionConnection: "ALTER SUBSCRIPTION",
    subscription.AlterSubscriptionEnabled: "ALTER SUBSCRIPTION",
    subscription.AlterSubscriptionOwner: "ALTER SUBSCRIPTION",
    subscription.AlterSubscriptionPublications: "ALTER SUBSCRIPTION",
    subscription.AlterSubscriptionRefresh: "ALTER SUBSCRIPTION",
    subscription.AlterSubscriptionRefreshTables: "ALTER SUBSCRIPTION",
    subscription.AlterSubscriptionSet: "ALTER SUBSCRIPTION",
    subscription.AlterSubscriptionSkip: "ALTER SUBSCRIPTION",
    subscription.CreateSubscription: "CREATE SUBSCRIPTION",
    subscription.DropSubscription: "DROP SUBSCRIPTION",
    subscription.RenameSubscription: "ALTER SUBSCRIPTION",
    table.CreateSchema: "CREATE SCHEMA",
    table.CreateTable: "CREATE TABLE",
    table.CreateTableAs: "CREATE TABLE AS",
    table.DropSchema: "DROP SCHEMA",
    table.DropTable: "DROP TABLE",
    types.AddEnumValue: "ALTER TYPE",
    types.CreateEnum: "CREATE TYPE",
    types.DropType: "DROP TYPE",
}
_CHANGES_NOTHING: Final = frozenset(
    {
        copy.Copy,
        session.CloseCursor,
        session.Deallocate,
        session.Discard,
        session.ExecuteQuery,
        session.LockTable,
        session.PrepareQuery,
        session.ResetVariable,
        session.SetTransaction,
        session.SetTransactionSnapshot,
        session.SetVariable,
        session.ShowVariable,
        session.Transaction,
        session.Unlisten,
        vacuum.Vacuum,
    }
)


def command_tag(statement: Statement) -> str | None:
    """Return the tag of a statement; None if the statement changes nothing."""
    match statement:
        case raw_statements.QueryStatement():
            return None if isinstance(statement.query, SelectStmt) else statement.tag
        case role.GrantSelect(is_grant=is_grant):
            return "GRANT" if is_grant else "REVOKE"
    return None if type(statement) in _CHANGES_NOTHING else _TAGS[type(statement)]


def reads(statement: Statement) -> bool:
    """Tell whether the statement changes nothing."""
    return command_tag(statement) is None
