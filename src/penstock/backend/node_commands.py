"""Commands of one session: each by itself, or as part of a transaction block (utility.c; xact.c).

In: parsed statements, and the end of a block. Out: outcomes. What a block has changed is told to
nobody before COMMIT, which does all of it in one transaction of the catalog: meanwhile nothing is
locked. A statement of a block is tried, together with those before it, so that its errors and
notices come where they belong; what it would do is taken back. Tables that a block makes are a part
of its rows (``executor.block``).
"""

from __future__ import annotations

from penstock.backend.cancellation import Cancellation
from penstock.backend.create_table_as import create_table_as
from penstock.backend.services import SessionServices
from penstock.backend.transaction_block import TransactionBlock
from penstock.catalog import Role
from penstock.errors import ConnectionFailure, PenstockError
from penstock.executor.writer import Writer
from penstock.protocol.answers import CommandOutcome
from penstock.sql import Statement
from penstock.sql.command_tag import command_tag
from penstock.sql.grammar.table import CreateTableAs


class NodeCommands:
    """Of the session whose block and cancellation these are."""

    def __init__(
        self, services: SessionServices, block: TransactionBlock, cancellation: Cancellation
    ) -> None:
        self._services = services
        self._block = block
        self._cancellation = cancellation

    def run(self, statement: Statement, role: Role) -> CommandOutcome:
        """Execute it, or try it in a block. Raises PenstockError."""
        check, blocks = self._cancellation.check, self._services.blocks
        try:
            if not self._block.open:
                return self._services.run_command(statement, role, check)
            if blocks is not None and blocks.defines(statement):
                tag = command_tag(statement) or ""
                rows = self._block.changing(tag, self._services.lake.open_block)
                return blocks.define(statement, role, rows)
            self._block.check_command()
            if blocks is None or not blocks.takes(statement):
                raise self._block.refusal("This statement")
            tried = (*self._block.commands, statement)
            outcome = blocks.run(tried, role, commit=False)
        except ConnectionFailure as error:  # to a publisher: this session goes on
            raise PenstockError(
                error.message, detail=error.detail, hint=error.hint, sqlstate=error.sqlstate
            ) from None
        self._block.commands = tried
        return outcome

    def commit(self, role: Role) -> None:
        """What the block has changed. Raises PenstockError: nothing of it."""
        blocks, commands = self._services.blocks, self._block.commands
        if blocks is not None and commands:
            blocks.run(commands, role, commit=True)

    def create_table_as(self, statement: CreateTableAs, writer: Writer) -> CommandOutcome:
        """Outside of a block."""
        lake, at, role = self._services.lake, self._block.now(), writer.role
        return create_table_as(
            statement,
            lambda query: lake.describe(query, at, role),
            lambda command: self.run(command, role),
            lambda change: lake.change(change, writer),
        )
