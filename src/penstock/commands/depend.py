"""Report objects that depend on a dropped object (dependency.c, reportDependentObjects), and check
objects before they are dropped.

The caller finds the dependent objects. This file makes the error of RESTRICT and the notices of
CASCADE, and refuses to drop an object that a subscription or prepared transaction still needs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from penstock.catalog import (
    CatalogTransaction,
    LakeTable,
    Subscription,
    SubscriptionRel,
    SubscriptionRelState,
)
from penstock.commands.scope import CommandScope, notice
from penstock.enum_type import EnumType
from penstock.errors import NotInPrerequisiteState, ObjectInUse
from penstock.lakehouse.schema import own_types
from penstock.protocol.answers import Notice
from penstock.sql.builtin.enum_types import enum_name
from penstock.sql.text.quoting import quote_identifier
from penstock.sqlstate import DependentObjectsStillExist


def shown_name(transaction: CatalogTransaction, scope: CommandScope, schema: str, name: str) -> str:
    """Return the name of a table or index for messages, with its schema if the name alone does not
    find it in the search path."""
    found = (first for first in scope.search_path if transaction.is_taken(first, name))
    if next(found, None) == schema:
        return quote_identifier(name)
    return f"{quote_identifier(schema)}.{quote_identifier(name)}"


def still_used_error(what: str | None, lines: Sequence[str]) -> DependentObjectsStillExist:
    """Return the error of DROP ... RESTRICT. ``what``: the object to drop; None for several
    objects. ``lines``: the lines of the detail, one for each dependency."""
    message = f"cannot drop {what} because other objects depend on it"
    if what is None:
        message = "cannot drop desired object(s) because other objects depend on them"
    return DependentObjectsStillExist(
        message,
        detail="\n".join(lines),
        hint="Use DROP ... CASCADE to drop the dependent objects too.",
    )


def cascade_notices(descriptions: Sequence[str]) -> list[Notice]:
    """Return the notice about objects that DROP ... CASCADE also dropped."""
    if not descriptions:
        return []
    if len(descriptions) == 1:
        return [notice(f"drop cascades to {descriptions[0]}")]
    detail = "\n".join(f"drop cascades to {description}" for description in descriptions)
    return [notice(f"drop cascades to {len(descriptions)} other objects", detail=detail)]


def subscribed(
    transaction: CatalogTransaction, table: LakeTable
) -> Iterator[tuple[Subscription, SubscriptionRel]]:
    """Yield the subscriptions that fill a table. They refer to the table by its name."""
    for subscription in transaction.subscriptions.all():
        for rel in transaction.relations.all(subscription.oid):
            if rel.table_name == (table.schema, table.name):
                yield subscription, rel


def check_not_prepared(
    transaction: CatalogTransaction, tables: Sequence[LakeTable], verb: str
) -> None:
    """Raise ObjectInUse if a prepared transaction changes one of the tables. In PostgreSQL the
    statement would wait for its locks."""
    names = {table.oid: table.name for table in tables}
    for prepared in transaction.prepared_blocks.holding(names.keys()):
        name = next(names[oid] for oid in prepared.relations if oid in names)
        raise ObjectInUse(
            f'cannot {verb} table "{name}" because the prepared transaction "{prepared.gid}" '
            "changes it",
            hint="End it first: COMMIT PREPARED or ROLLBACK PREPARED.",
        )


def check_not_being_made(
    transaction: CatalogTransaction,
    schemas: Collection[str] = (),
    enums: Collection[EnumType] = (),
) -> None:
    """Raise ObjectInUse if a transaction block that is being committed creates a table that needs
    one of the schemas or types. In PostgreSQL the statement would wait for the block's locks."""
    types = {oid: enum_name(enum) for enum in enums for oid in (enum.oid, enum.array_oid)}
    for table in transaction.block_commits.made():
        used = types.keys() & own_types(table.metadata["schemaString"])
        what = f"type {types[min(used)]}" if used else f"schema {table.row.schema}"
        if used or table.row.schema in schemas:
            raise ObjectInUse(
                f"cannot drop {what} because a transaction block that is being committed makes "
                f'table "{table.row.name}"'
            )


def check_not_subscribed(transaction: CatalogTransaction, table: LakeTable, verb: str) -> None:
    """Raise ObjectInUse if a subscription fills the table."""
    for subscription, _ in subscribed(transaction, table):
        raise ObjectInUse(
            f'cannot {verb} table "{table.name}" because subscription '
            f'"{subscription.name}" maintains it',
            hint="Take the table out of the publication and refresh the subscription, or "
            "drop the subscription, first.",
        )


def leave_subscriptions(transaction: CatalogTransaction, tables: Sequence[LakeTable]) -> bool:
    """Remove tables that will be dropped from all subscriptions (pg_subscription.c,
    RemoveSubscriptionRel). Return whether any subscription had one of them.

    Raises NotInPrerequisiteState while one of the tables is being copied.
    """
    left = False
    for table in tables:
        for subscription, rel in subscribed(transaction, table):
            if rel.state not in (SubscriptionRelState.READY, SubscriptionRelState.PARKED):
                raise NotInPrerequisiteState(
                    f'could not drop relation mapping for subscription "{subscription.name}"',
                    detail=f'Table synchronization for relation "{table.name}" is in progress and '
                    f'is in state "{rel.state.value}".',
                    hint="Use ALTER SUBSCRIPTION ... ENABLE to enable subscription if not already "
                    "enabled or use DROP SUBSCRIPTION ... to drop the subscription.",
                )
            transaction.relations.remove(rel)
            left = True
    return left
