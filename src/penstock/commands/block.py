"""Commands of a transaction block: all of them, or none (xact.c).

In: statements about subscriptions, in order. Out: the result of the last one; the catalog changed
in one transaction if the block is committed, else as it was. Statements may not ask a publisher, as
the catalog is locked while they run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.catalog import BlockCatalog, Catalog, LakeTable
from penstock.commands.namespace import find_schema, find_table
from penstock.commands.scope import BlockEnd, CommandResult, CommandScope, PublisherSession
from penstock.commands.subscription_targets import between_batches
from penstock.commands.utility import execute, is_subscription_command
from penstock.errors import FeatureNotSupported
from penstock.sql import AlterTable, CreateTable, DropTable, RangeVar, SetReplicaIdentity, Statement


def takes(statement: Statement) -> bool:
    """Tell whether a block may have the statement: it must change the catalog alone."""
    return is_subscription_command(statement)


def execute_block(
    statements: Sequence[Statement],
    catalog: Catalog,
    scope: CommandScope,
    *,
    commit: bool,
) -> CommandResult:
    """Execute statements that ``takes`` accepts, at least one.

    Raises what they raise, ActiveSqlTransaction (25001) for a statement that PostgreSQL refuses in
    a block, FeatureNotSupported for one that asks the publisher.
    """

    def attempt() -> tuple[CommandResult, BlockEnd]:
        end = BlockEnd()
        within = replace(scope, block_end=end)
        with catalog.one_transaction(commit=commit) as one:
            for statement in statements:
                result = execute(statement, one, _no_publisher, within)
            for action in end.before_commit if commit else ():
                action()
        return result, end

    result, end = between_batches(attempt)
    for action in end.after_commit if commit else ():
        action()
    return result


def _no_publisher(conninfo: str, application_name: str) -> PublisherSession:
    raise FeatureNotSupported(
        "a command that asks the publisher cannot run inside a transaction block",
        hint="Run it outside of BEGIN ... COMMIT, or, for CREATE SUBSCRIPTION, say connect = "
        "false.",
    )


# CREATE TABLE in a transaction block, and commands on tables that the block has made.
#
# In: a statement, the catalog as the block sees it. Out: its result; new tables are in that catalog
# and its warehouse only. A statement that reaches other tables or rows that exist is refused by
# name: tables that are partitioned or partitions, columns that come or go.

Defines = CreateTable | AlterTable | DropTable


def defines(statement: Statement) -> bool:
    """Tell whether the statement is about tables that a block may make."""
    return isinstance(statement, Defines)


def define_in_block(
    statement: Statement, catalog: BlockCatalog, scope: CommandScope
) -> CommandResult:
    """Execute a statement that ``defines`` accepts. Raises what it raises outside of a block, and
    FeatureNotSupported."""
    match statement:
        case CreateTable(partition_by=None, parent=None):
            pass
        case CreateTable():
            raise _refusal("CREATE TABLE of a partitioned table or a partition")
        case AlterTable(relation=relation, commands=commands):
            if not all(isinstance(command, SetReplicaIdentity) for command in commands):
                raise _refusal("ALTER TABLE other than REPLICA IDENTITY")
            _check_made("ALTER TABLE", relation, catalog, scope)
        case DropTable(relations=relations):
            for relation in relations:
                _check_made("DROP TABLE", relation, catalog, scope)
                _check_not_filled(relation, catalog, scope)
    return execute(statement, catalog, _no_publisher_in_block, scope)


def _check_made(what: str, name: RangeVar, catalog: BlockCatalog, scope: CommandScope) -> None:
    found = _found(name, catalog, scope)
    if found is not None and found.oid not in catalog.tables:
        raise _refusal(f"{what} of a table that the block has not made")


def _found(name: RangeVar, catalog: BlockCatalog, scope: CommandScope) -> LakeTable | None:
    with catalog.write() as transaction:
        if name.schema is not None and find_schema(transaction, scope, name.schema) is None:
            return None  # the statement itself reports the missing schema
        return find_table(transaction, scope, name)


def _check_not_filled(name: RangeVar, catalog: BlockCatalog, scope: CommandScope) -> None:
    """Refuse to drop a table that a subscription fills: the subscription would lose it at once,
    even if the block is rolled back."""
    found = _found(name, catalog, scope)
    filled = {rel.qualified_name for rel in catalog.relations()}
    if found is not None and found.qualified_name in filled:
        raise _refusal("DROP TABLE of a table that a subscription fills")


def _refusal(what: str) -> FeatureNotSupported:
    return FeatureNotSupported(
        f"{what} cannot run inside a transaction block",
        hint="Run it outside of BEGIN ... COMMIT.",
    )


def _no_publisher_in_block(conninfo: str, application_name: str) -> PublisherSession:
    raise _refusal("a command that asks a publisher")
