"""Statements that begin, prepare and end transactions, and those that change rows within one
(xact.c).

In: parsed statements of one session. Out: answers. The state of the block is
``transaction_block``'s, the rows are the lake's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from penstock.backend.cancellation import Cancellation
from penstock.backend.node_commands import NodeCommands
from penstock.backend.services import SessionServices
from penstock.backend.standby_wait import StandbyWait
from penstock.backend.transaction_block import TransactionBlock
from penstock.catalog import Role
from penstock.executor.writer import Writer
from penstock.protocol.answers import Answer, CommandOutcome, Done, Notice
from penstock.sql import Transaction, TransactionKind

_Ended = tuple[str, Sequence[Notice]]
"""The tag, and what comes before it."""


class Transactions:
    """Of one session."""

    def __init__(
        self,
        services: SessionServices,
        block: TransactionBlock,
        commands: NodeCommands,
        cancellation: Cancellation,
        standbys: StandbyWait,
    ) -> None:
        self._services = services
        self._block = block
        self._commands = commands
        self._cancellation = cancellation
        self._standbys = standbys

    def change(self, what: str, text: str, writer: Writer) -> CommandOutcome:
        """INSERT, UPDATE or DELETE: a commit, or staged in the block. Raises PenstockError."""
        lake = self._services.lake
        if not self._block.open:
            return lake.change(text, writer)
        rows = self._block.changing(what, lake.open_block)
        lake = self._services.within(rows).lake
        return lake.stage(text, self._block.snapshot(), writer, rows)

    def run(self, statement: Transaction, role: Callable[[], Role]) -> Iterator[Answer]:
        """Raises PenstockError; where COMMIT does, the block has ended."""
        if statement.kind in (TransactionKind.BEGIN, TransactionKind.START):
            self._block.check()
            yield from self._block.begin(statement.modes)
            yield Done(statement.kind.value)
            return
        tag, warnings = self._run(statement, role)
        yield from warnings
        yield Done(tag)

    def _run(self, statement: Transaction, role: Callable[[], Role]) -> _Ended:
        tag = statement.kind.value
        match statement.kind:
            case TransactionKind.SAVEPOINT:
                self._block.define_savepoint(statement.name)
                return tag, ()
            case TransactionKind.RELEASE:
                self._block.release_savepoint(statement.name)
                return tag, ()
            case TransactionKind.ROLLBACK_TO:
                self._block.rollback_to_savepoint(statement.name)
                return "ROLLBACK", ()
            case TransactionKind.COMMIT | TransactionKind.ROLLBACK:
                return self._end(statement, role)
            case TransactionKind.PREPARE:
                return self._prepare(statement.name, role)
            case TransactionKind.COMMIT_PREPARED | TransactionKind.ROLLBACK_PREPARED:
                return self._end_prepared(statement, role)
        raise AssertionError(statement.kind)

    def _prepare(self, gid: str, role: Callable[[], Role]) -> _Ended:
        """PrepareTransactionBlock: what cannot be prepared is rolled back."""
        prepares = self._block.open and not self._block.failed
        before = self._standbys.now() if prepares else None
        if prepares:
            try:
                self._block.check_prepare()
                with self._cancellation.running():
                    self._services.lake.prepare(gid, self._block.rows, role(), self._cancellation)
            except BaseException:
                self._block.abandon()
                raise
        tag, warning = self._block.end(TransactionKind.PREPARE.value if prepares else "ROLLBACK")
        waited = tuple(self._standbys.after(before))
        return tag, waited if warning is None else (*waited, warning)

    def _end_prepared(self, statement: Transaction, role: Callable[[], Role]) -> _Ended:
        """The second phase, in any session."""
        tag, lake = statement.kind.value, self._services.lake
        self._block.check()
        self._block.outside(tag)
        before = self._standbys.now()
        if statement.kind is TransactionKind.ROLLBACK_PREPARED:
            lake.rollback_prepared(statement.name, role())
        else:
            lake.commit_prepared(statement.name, role())
        return tag, tuple(self._standbys.after(before))

    def _end(self, statement: Transaction, role: Callable[[], Role]) -> _Ended:
        tag = statement.kind.value
        if statement.chain:
            self._block.check_chain(tag)
        commits = self._block.commits(tag)
        writes = commits and (self._block.commands or self._block.rows is not None)
        before = self._standbys.now() if writes else None
        try:
            if commits:
                self._commands.commit(role())
                if self._block.rows is not None:
                    self._services.lake.commit(self._block.rows)
        except BaseException:
            self._block.abandon()
            raise
        end = self._block.chained if statement.chain else self._block.end
        tag, warning = end(tag)
        waited = tuple(self._standbys.after(before))
        return tag, waited if warning is None else (*waited, warning)
