"""Commands: statements that change the catalog (src/backend/commands).

In: statements of ``penstock.sql``, the catalog, a way to the publisher, and the scope: who executes
them, over which warehouse. Out: changed rows, new and dropped Delta tables, and a
``CommandResult``. Commands neither start nor stop workers: a running node follows the catalog.
"""

from penstock.commands.namespace import register_all, table_columns
from penstock.commands.scope import (
    NODE_ROLE,
    CommandResult,
    CommandScope,
    CurrentRole,
    PublisherFactory,
)
from penstock.commands.utility import execute, is_command
from penstock.protocol.answers import Notice

__all__ = [
    "NODE_ROLE",
    "CommandResult",
    "CommandScope",
    "CurrentRole",
    "Notice",
    "PublisherFactory",
    "execute",
    "is_command",
    "register_all",
    "table_columns",
]
