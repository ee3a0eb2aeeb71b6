"""ALTER SUBSCRIPTION ... RENAME TO (alter.c, AlterObjectRename_internal).

In: a parsed statement, the catalog, the scope with its warehouse. Out: the subscription and its
cuts under the new name. Slot, tables and positions stay: they are told by other keys.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.catalog import Catalog
from penstock.commands.result import CommandResult
from penstock.commands.scope import Scope
from penstock.commands.subscriptioncmds import ALTERED, get_subscription
from penstock.errors import DuplicateObject
from penstock.lakehouse.cuts import CutOwner
from penstock.sql import RenameSubscription


def rename_subscription(
    statement: RenameSubscription, catalog: Catalog, scope: Scope
) -> CommandResult:
    """Raises UndefinedObject, DuplicateObject. A worker that runs starts again by the new name."""
    with catalog.write() as transaction:
        subscription = get_subscription(transaction, statement.name)
        if transaction.subscriptions.find(statement.new_name) is not None:
            raise DuplicateObject(f'subscription "{statement.new_name}" already exists')
        transaction.subscriptions.save(replace(subscription, name=statement.new_name))
        if scope.warehouse is not None:
            owner = CutOwner(statement.new_name, subscription.app_id)
            known = transaction.subscriptions.all()
            living = [CutOwner(one.name, one.app_id) for one in known]
            scope.warehouse.cuts.forget_others(owner, living)
            scope.warehouse.cuts.rename(owner)
    return CommandResult(ALTERED)
