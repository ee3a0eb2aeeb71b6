"""Commands from the port: ``backend`` and ``commands`` joined.

In: a parsed statement and the role that sent it. Out: its command tag and notices. What a
statement does is left to ``commands``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from penstock.catalog import Catalog, Role
from penstock.commands.scope import CommandScope, CurrentRole
from penstock.commands.utility import execute
from penstock.lakehouse.warehouse import Warehouse
from penstock.node.publisher import connect_publisher
from penstock.protocol.answers import CommandOutcome
from penstock.sql import Statement
from penstock.walsender.sequencer import Sequencer


class SessionCommands:
    """Executes statements for sessions."""

    def __init__(
        self,
        catalog: Catalog,
        warehouse: Warehouse,
        sequencer: Sequencer,
        database: str,
    ) -> None:
        self._catalog = catalog
        self._warehouse = warehouse
        self._sequencer = sequencer
        self._database = database

    def __call__(
        self, statement: Statement, role: Role, check: Callable[[], None]
    ) -> CommandOutcome:
        """Execute one. ``check`` raises when it is to end. Raises PenstockError."""
        current = CurrentRole(role.name, role.oid, role.superuser)
        scope = CommandScope(
            warehouse=self._warehouse,
            role=current,
            session_role=current,
            database=self._database,
        )
        connect = partial(connect_publisher, check=check)
        result = execute(statement, self._catalog, connect, scope)
        # Tables that have become known are followed from here on.
        self._sequencer.step(discover=True)
        return CommandOutcome(result.tag, result.notices)
