"""VACUUM and ANALYZE (vacuum.c), which clients send as a matter of routine.

In: a parsed statement, the catalog, the scope. Out: that the tables are there, and a notice: there
are no dead rows to take away, and no statistics to gather. What Delta keeps of former versions is
Delta's VACUUM's.
"""

from __future__ import annotations

from penstock.catalog import Catalog
from penstock.commands.aclchk import is_owner
from penstock.commands.namespace import get_table
from penstock.commands.scope import CommandResult, CommandScope, notice, warning
from penstock.protocol.answers import Notice
from penstock.sql.grammar.vacuum import Vacuum


def vacuum(statement: Vacuum, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """ExecVacuum. Raises UndefinedObject (42P01)."""
    told: list[Notice] = []
    with catalog.write() as transaction:
        for relation in statement.relations:
            table = get_table(transaction, scope, relation)
            if not is_owner(scope.role, table.owner):
                verb = statement.tag.lower()
                told.append(warning(f'permission denied to {verb} "{table.name}", skipping it'))
    if not statement.relations or len(told) < len(statement.relations):
        told.append(
            notice(
                f"{statement.tag} has no effect on tables of the lake",
                detail="Files that no version of a Delta table needs any more go with VACUUM in "
                "Spark.",
            )
        )
    return CommandResult(statement.tag, tuple(told))
