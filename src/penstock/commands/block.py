"""Commands of a transaction block: all of them, or none (xact.c).

In: statements about subscriptions, in order. Out: what the last one gives; the catalog changed in
one transaction where the block is committed, else as it was. No publisher is asked: the catalog is
locked while they run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from penstock.catalog import Catalog
from penstock.commands.scope import BlockEnd, CommandResult, CommandScope, PublisherSession
from penstock.commands.subscription_targets import between_batches
from penstock.commands.utility import execute, is_subscription_command
from penstock.errors import FeatureNotSupported
from penstock.sql import Statement


def takes(statement: Statement) -> bool:
    """Whether a block may have it: what changes the catalog alone."""
    return is_subscription_command(statement)


def execute_block(
    statements: Sequence[Statement],
    catalog: Catalog,
    scope: CommandScope,
    *,
    commit: bool,
) -> CommandResult:
    """Execute statements that ``takes`` takes, at least one.

    Raises what they raise, ActiveSqlTransaction (25001) for what PostgreSQL refuses in a block,
    FeatureNotSupported for what asks the publisher.
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
