"""Commands from the port: this file joins ``backend``, ``commands`` and ``walreceiver``.

A parsed statement comes in with the role that sent it; its command tag and notices go out.
``commands`` executes the statement. Sessions on a publisher are made here, as
``commands.PublisherFactory`` declares.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from penstock.catalog import BlockCatalog, Catalog, Role
from penstock.commands.scope import CommandResult, CommandScope, CurrentRole
from penstock.commands.utility import define_in_block, defines, execute, execute_block, takes
from penstock.executor.block import LakeBlock
from penstock.lakehouse.warehouse import Warehouse
from penstock.protocol.answers import CommandOutcome
from penstock.sql import Statement
from penstock.sql.builtin.search_path import search_path
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.publisher import Publisher
from penstock.walsender.sequencer import Sequencer


class SessionCommands:
    """The executor of commands for sessions."""

    def __init__(
        self,
        catalog: Catalog,
        warehouse: Warehouse,
        sequencer: Sequencer,
        database: str,
        version: int = 18,
        unsent_changes: str = "error",
    ) -> None:
        self._catalog = catalog
        self._warehouse = warehouse
        self._sequencer = sequencer
        self._database = database
        self._version = version
        self._unsent_changes = unsent_changes

    def __call__(
        self, statement: Statement, role: Role, check: Callable[[], None]
    ) -> CommandOutcome:
        """Execute a statement. ``check`` raises if the statement must end. Raises PenstockError."""
        connect = partial(connect_publisher, check=check)
        # Earlier commits must be in the log before the statement changes anything.
        self._sequencer.step()
        result = execute(statement, self._catalog, connect, self._scope(role))
        # Tables that the statement has registered are followed from here on.
        self._sequencer.step(discover=True)
        return CommandOutcome(result.tag, result.notices)

    def takes(self, statement: Statement) -> bool:
        """Tell whether a transaction block may contain the statement."""
        return takes(statement)

    def run(self, statements: Sequence[Statement], role: Role, *, commit: bool) -> CommandOutcome:
        """Execute the statements of a transaction block. Raises PenstockError."""
        result = execute_block(statements, self._catalog, self._scope(role), commit=commit)
        return CommandOutcome(result.tag, result.notices)

    def defines(self, statement: Statement) -> bool:
        """Tell whether the statement makes a table, or concerns a table that the block may have
        made."""
        return defines(statement)

    def define(self, statement: Statement, role: Role, block: LakeBlock) -> CommandOutcome:
        """Execute a statement that ``defines`` accepts, for a block. Raises PenstockError."""

        def run(catalog: BlockCatalog, warehouse: Warehouse) -> CommandResult:
            scope = replace(self._scope(role), warehouse=warehouse)
            return define_in_block(statement, catalog, scope)

        result = block.define(self._catalog, run)
        return CommandOutcome(result.tag, result.notices)

    def _scope(self, role: Role) -> CommandScope:
        current = CurrentRole(role.name, role.oid, role.superuser)
        return CommandScope(
            warehouse=self._warehouse,
            role=current,
            session_role=current,
            database=self._database,
            search_path=search_path(),
            version=self._version,
            running=True,
            unsent_changes=self._unsent_changes,
        )


_ASK_S: Final = 0.1
"""Seconds between two checks whether the connection is still wanted."""


def connect_publisher(
    conninfo: str, application_name: str, check: Callable[[], None] | None = None
) -> Publisher:
    """Open a session on the publisher. Raises AuthenticationFailure, ConnectionFailure.

    ``check`` is called during every wait for the publisher, now and later; its exception ends the
    wait.
    """
    parsed = ConnInfo.parse(conninfo)
    if check is None:
        return Publisher.connect(parsed, application_name)
    publisher = _connect_until_cancelled(lambda: Publisher.connect(parsed, application_name), check)
    publisher.connection.interrupt = check
    return publisher


def _connect_until_cancelled(
    connect: Callable[[], Publisher], check: Callable[[], None]
) -> Publisher:
    """Connect on another thread, which can be abandoned: libpq's connect cannot be interrupted."""
    attempt: Future[Publisher] = Future()

    def run() -> None:
        try:
            attempt.set_result(connect())
        except BaseException as error:
            attempt.set_exception(error)

    threading.Thread(target=run, name="connect", daemon=True).start()
    while not attempt.done():
        try:
            check()
        except BaseException:
            attempt.add_done_callback(_close)
            raise
        with suppress(TimeoutError):
            attempt.exception(_ASK_S)
    return attempt.result()


def _close(attempt: Future[Publisher]) -> None:
    if attempt.exception() is None:
        attempt.result().connection.close()
