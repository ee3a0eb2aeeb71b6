"""Commands: statements that change the catalog (src/backend/commands).

A command gets a parsed statement of ``penstock.sql``, the catalog and a ``CommandScope``. It
changes rows of the catalog, creates and drops Delta tables, and returns a ``CommandResult``.
Commands do not start or stop workers: a running node does so, because it watches the catalog.
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
