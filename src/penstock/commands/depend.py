"""What is said of objects that depend on one that is dropped (dependency.c,
reportDependentObjects).

In: descriptions of objects. Out: the error for RESTRICT, the notices for CASCADE. What depends on
what is known to whoever drops.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.catalog import CatalogTransaction, LakeTable
from penstock.commands.result import Notice, notice
from penstock.commands.scope import Scope
from penstock.errors import NotInPrerequisiteState
from penstock.sql.quoting import quote_identifier

DEPENDENT_OBJECTS_STILL_EXIST = "2BP01"


def shown_name(transaction: CatalogTransaction, scope: Scope, table: LakeTable) -> str:
    """A table's name in messages: with its schema where the search path finds another or none."""
    name = quote_identifier(table.name)
    for schema in scope.search_path:
        found = transaction.tables.find(schema, table.name)
        if found is not None:
            if found.oid == table.oid:
                return name
            break
    return f"{quote_identifier(table.schema)}.{name}"


def still_used(what: str | None, lines: Sequence[str]) -> NotInPrerequisiteState:
    """``what``: the one object that was to go, None for several. ``lines``: what depends on it."""
    message = f"cannot drop {what} because other objects depend on it"
    if what is None:
        message = "cannot drop desired object(s) because other objects depend on them"
    return NotInPrerequisiteState(
        message,
        detail="\n".join(lines),
        hint="Use DROP ... CASCADE to drop the dependent objects too.",
        sqlstate=DEPENDENT_OBJECTS_STILL_EXIST,
    )


def cascade_notices(descriptions: Sequence[str]) -> list[Notice]:
    """What went with it."""
    if not descriptions:
        return []
    if len(descriptions) == 1:
        return [notice(f"drop cascades to {descriptions[0]}")]
    detail = "\n".join(f"drop cascades to {description}" for description in descriptions)
    return [notice(f"drop cascades to {len(descriptions)} other objects", detail=detail)]
