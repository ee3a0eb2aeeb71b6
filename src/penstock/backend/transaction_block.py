"""The state of one session's transaction block (xact.c).

``TransactionBlock`` follows BEGIN, COMMIT, savepoints and errors. It returns the status for
ReadyForQuery, and the consistent point at which a statement reads, with the block's own changes.
The session's settings commit and roll back with the block. Outside of a block each statement is a
transaction. Commands are kept for COMMIT (``runner.NodeCommands``), changed rows are staged
(``executor.block``). A block cannot have both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from penstock.backend.session_settings import OwnValues, SessionSettings
from penstock.errors import FeatureNotSupported, NotInPrerequisiteState, PenstockError
from penstock.executor.block import LakeBlock, Staged
from penstock.protocol.answers import Notice
from penstock.protocol.backend_messages import TransactionStatus
from penstock.sql import Statement
from penstock.sql.grammar.session import TransactionModes
from penstock.sqlstate import (
    ActiveSqlTransaction,
    InFailedSqlTransaction,
    ReadOnlySqlTransaction,
)
from penstock.walsender.sequencer import Position

_ONE_SNAPSHOT = ("repeatable read", "serializable")


@dataclass(frozen=True, slots=True)
class _Savepoint:
    """The block's state at SAVEPOINT."""

    name: str
    modes: TransactionModes
    commands: tuple[Statement, ...]
    staged: Staged
    settings: OwnValues


@dataclass(slots=True)
class _Block:
    modes: TransactionModes
    snapshot: Position | None = None
    queried: bool = False
    failed: bool = False
    commands: tuple[Statement, ...] = ()
    rows: LakeBlock | None = None
    savepoints: list[_Savepoint] = field(default_factory=list)

    def read(self, position: Position) -> Position:
        """Return the position with the block's own changes."""
        return position if self.rows is None else self.rows.at(position)


class TransactionBlock:
    """The transaction block of one session. ``now`` returns the latest consistent point;
    ``settings``: the session's settings; ``ended`` is called when a block has ended."""

    def __init__(
        self,
        now: Callable[[], Position],
        settings: SessionSettings,
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        self._now = now
        self._settings = settings
        self._ended = ended
        self._block: _Block | None = None

    def refuse(self, what: str) -> None:
        """Raise FeatureNotSupported inside a block, for a statement that commits by itself."""
        if self.open:
            raise self.refusal(what)

    def refusal(self, what: str) -> FeatureNotSupported:
        """Return the error for a statement that is not allowed in a block."""
        return FeatureNotSupported(
            f"{what} cannot run inside a transaction block",
            hint="One statement is one commit of the lake: run it outside of BEGIN ... COMMIT.",
        )

    @property
    def status(self) -> TransactionStatus:
        """The status that ReadyForQuery reports."""
        if self._block is None:
            return TransactionStatus.IDLE
        return TransactionStatus.FAILED if self._block.failed else TransactionStatus.IN_TRANSACTION

    @property
    def open(self) -> bool:
        """True inside a block."""
        return self._block is not None

    @property
    def read_only(self) -> bool:
        """True in a read-only transaction (XactReadOnly)."""
        return bool(self.modes.read_only)

    def check_read_only(self, tag: str | None) -> None:
        """Check that a statement may run (PreventCommandIfReadOnly). ``tag``: its command tag; None
        if it changes nothing. Raises ReadOnlySqlTransaction (25006)."""
        if tag is not None and self.read_only:
            raise ReadOnlySqlTransaction(f"cannot execute {tag} in a read-only transaction")

    @property
    def commands(self) -> tuple[Statement, ...]:
        """The commands that COMMIT will execute."""
        return () if self._block is None else self._block.commands

    @commands.setter
    def commands(self, commands: tuple[Statement, ...]) -> None:
        assert self._block is not None
        self._block.commands = commands

    @property
    def rows(self) -> LakeBlock | None:
        """The block's staged rows, tables and messages; None if it has staged nothing."""
        return None if self._block is None else self._block.rows

    def changing(self, what: str, open_rows: Callable[[], LakeBlock]) -> LakeBlock:
        """Return the ``LakeBlock`` in which a statement stages its rows. Raises
        FeatureNotSupported."""
        block = self._block
        assert block is not None
        if block.modes.isolation == "serializable":
            raise FeatureNotSupported(
                f"{what} in a SERIALIZABLE transaction block is not supported",
                hint="REPEATABLE READ is.",
            )
        return self._opened(block, what, open_rows)

    def emit(
        self, prefix: str, content: bytes, what: str, open_rows: Callable[[], LakeBlock]
    ) -> None:
        """Stage a message, to be committed with the block. Raises FeatureNotSupported."""
        assert self._block is not None
        self._opened(self._block, what, open_rows).emit(prefix, content)

    @staticmethod
    def _opened(block: _Block, what: str, open_rows: Callable[[], LakeBlock]) -> LakeBlock:
        if block.commands:
            raise FeatureNotSupported(
                f"{what} after commands in a transaction block is not supported"
            )
        if block.rows is None:
            block.rows = open_rows()
        return block.rows

    def check_no_writes(self) -> None:
        """Raise PenstockError (25001) if the block has written (CreateInitDecodingContext)."""
        block = self._block
        if block is not None and (block.rows is not None or block.commands):
            raise ActiveSqlTransaction(
                "cannot create logical replication slot in transaction that has performed writes"
            )

    def check_command(self) -> None:
        """Raise FeatureNotSupported if the block has staged rows, tables or messages."""
        if self._block is not None and self._block.rows is not None:
            raise FeatureNotSupported(
                "commands after changes of rows in a transaction block are not supported"
            )

    @property
    def failed(self) -> bool:
        """True if the block can only be rolled back."""
        return self._block is not None and self._block.failed

    def check_prepare(self) -> None:
        """Raise FeatureNotSupported if PREPARE TRANSACTION cannot store the block's changes."""
        if self.commands:
            raise FeatureNotSupported(
                "PREPARE TRANSACTION after commands in a transaction block is not supported",
                hint="Only rows that a block has changed can be prepared.",
            )
        if self.rows is not None and self.rows.made:
            raise FeatureNotSupported(
                "PREPARE TRANSACTION after CREATE TABLE in a transaction block is not supported",
                hint="Create the table in a transaction of its own.",
            )

    def commits(self, tag: str) -> bool:
        """Tell whether ending the block with ``tag`` commits it."""
        return self.open and not self.failed and tag == "COMMIT"

    def check_catalogs(self) -> None:
        """Raise FeatureNotSupported if catalog queries would not see the block's commands."""
        if self.commands:
            raise FeatureNotSupported(
                "queries on the catalogs after commands in the same transaction block are not "
                "supported",
                hint="What the block has changed is to be seen after COMMIT.",
            )

    @property
    def modes(self) -> TransactionModes:
        """The modes of the running transaction; outside of a block, the session's defaults."""
        if self._block is not None:
            return self._block.modes
        show = self._settings.show
        return TransactionModes(
            show("default_transaction_isolation"),
            show("default_transaction_read_only") == "on",
            show("default_transaction_deferrable") == "on",
        )

    def begin(self, modes: TransactionModes) -> Iterator[Notice]:
        """Begin a block. Inside a block, yield a warning and act as ``set_modes``."""
        if self._block is not None:
            message = "there is already a transaction in progress"
            yield Notice("WARNING", message, sqlstate="25001")
            self.set_modes(modes)
        else:
            self._settings.commit()
            self._block = _Block(with_defaults(modes, self.modes))

    def check_chain(self, tag: str) -> None:
        """Raise PenstockError (25P01) for COMMIT or ROLLBACK AND CHAIN outside of a block."""
        if self._block is None:
            raise PenstockError(
                f"{tag} AND CHAIN can only be used in transaction blocks", sqlstate="25P01"
            )

    def chained(self, tag: str) -> tuple[str, Notice | None]:
        """End the block, and begin another block with the same modes."""
        assert self._block is not None
        modes = self._block.modes
        ended, _ = self.end(tag)
        self._block = _Block(modes)
        return ended, None

    def end(self, tag: str) -> tuple[str, Notice | None]:
        """End the block by COMMIT or ROLLBACK, and return the command tag, which is ROLLBACK for a
        failed block. Outside of a block, also return a warning."""
        if self._block is None:
            missing = Notice("WARNING", "there is no transaction in progress", sqlstate="25P01")
            return tag, missing
        if self._block.failed:
            tag = "ROLLBACK"
        if tag != "ROLLBACK":
            self._settings.commit()
        self.abandon()
        return tag, None

    def settle(self) -> None:
        """Note that a statement has run: outside of a block, commit its settings."""
        if self._block is None:
            self._settings.commit()

    def abandon(self) -> None:
        """End the block and drop its uncommitted changes."""
        self._settings.abort()
        block, self._block = self._block, None
        if block is not None and block.rows is not None:
            block.rows.end()
        if block is not None:
            self._ended()

    # Savepoints

    def define_savepoint(self, name: str) -> None:
        """Define a savepoint (DefineSavepoint). Raises PenstockError (25P01, 25P02)."""
        block = self._in_block("SAVEPOINT")
        self.check()
        staged = Staged() if block.rows is None else block.rows.staged
        block.savepoints.append(
            _Savepoint(name, block.modes, block.commands, staged, self._settings.own)
        )

    def release_savepoint(self, name: str) -> None:
        """Release a savepoint (ReleaseSavepoint). Raises PenstockError (25P01, 25P02, 3B001)."""
        block = self._in_block("RELEASE SAVEPOINT")
        self.check()
        del block.savepoints[self._place(block, name) :]

    def rollback_to_savepoint(self, name: str) -> None:
        """Roll back to a savepoint; a failed block can then continue (RollbackToSavepoint). Raises
        PenstockError (25P01, 3B001)."""
        block = self._in_block("ROLLBACK TO SAVEPOINT")
        place = self._place(block, name)
        del block.savepoints[place + 1 :]
        savepoint = block.savepoints[place]
        block.modes, block.commands = savepoint.modes, savepoint.commands
        self._settings.own = savepoint.settings
        if block.rows is not None:
            block.rows.staged = savepoint.staged
        block.failed = False

    def inside(self, what: str) -> None:
        """Raise PenstockError (25P01) outside of a block (RequireTransactionBlock)."""
        self._in_block(what)

    def _in_block(self, what: str) -> _Block:
        if self._block is None:
            raise PenstockError(f"{what} can only be used in transaction blocks", sqlstate="25P01")
        return self._block

    @staticmethod
    def _place(block: _Block, name: str) -> int:
        """Return the index of the last savepoint with this name."""
        places = [n for n, savepoint in enumerate(block.savepoints) if savepoint.name == name]
        if not places:
            raise PenstockError(f'savepoint "{name}" does not exist', sqlstate="3B001")
        return places[-1]

    def set_modes(self, modes: TransactionModes) -> None:
        """Run SET TRANSACTION, which has no effect outside of a block. Raises ActiveSqlTransaction
        (25001)."""
        block = self._block
        if block is not None:
            within = bool(block.savepoints)
            block.modes = changed_modes(block.modes, modes, queried=block.queried, within=within)

    def check(self) -> None:
        """Raise PenstockError (25P02) in a failed block."""
        if self._block is not None and self._block.failed:
            raise InFailedSqlTransaction(
                "current transaction is aborted, commands ignored until end of transaction block",
            )

    def fail(self) -> None:
        """Note that a statement has failed. Restore the settings from the last savepoint, or from
        the start of the transaction."""
        block = self._block
        if block is None or not block.savepoints:
            self._settings.abort()
        else:
            self._settings.own = block.savepoints[-1].settings
        if block is not None:
            block.failed = True

    def outside(self, command: str) -> None:
        """Raise PenstockError (25001) inside a block (PreventInTransactionBlock)."""
        if self._block is not None:
            raise ActiveSqlTransaction(f"{command} cannot run inside a transaction block")

    def forbid_export(self) -> None:
        """Raise PostgreSQL's error for CREATE_REPLICATION_SLOT (SNAPSHOT 'export') in a block."""
        if self._block is not None:
            raise PenstockError(
                "CREATE_REPLICATION_SLOT ... (SNAPSHOT 'export') must not be called inside a "
                "transaction"
            )

    def check_use(self, version: int) -> None:
        """Raise PostgreSQL's error if CREATE_REPLICATION_SLOT (SNAPSHOT 'use') may not run here."""
        command = "CREATE_REPLICATION_SLOT ... (SNAPSHOT 'use')"
        block = self._block
        if block is None:
            raise PenstockError(f"{command} must be called inside a transaction")
        if block.modes.isolation != "repeatable read":
            raise PenstockError(
                f"{command} must be called in REPEATABLE READ isolation mode transaction"
            )
        if not block.modes.read_only and version >= 16:
            raise PenstockError(f"{command} must be called in a read-only transaction")
        if block.queried:
            raise PenstockError(f"{command} must be called before any query")

    def query(self) -> None:
        """Note a query on the catalogs: after any query the modes are fixed."""
        if self._block is not None:
            self._block.queried = True

    def use(self, position: Position) -> None:
        """Make ``position`` the block's snapshot."""
        assert self._block is not None
        self._block.snapshot = position
        self._block.queried = True

    def to_export(self) -> Position:
        """Return the position for pg_export_snapshot, without the block's own changes. Raises
        PenstockError (25001)."""
        block = self._block
        if block is not None and block.savepoints:
            raise ActiveSqlTransaction("cannot export a snapshot from a subtransaction")
        if block is None or block.modes.isolation not in _ONE_SNAPSHOT:
            return self._now()
        if block.snapshot is None:
            block.snapshot = self._now()
        return block.snapshot

    def import_snapshot(self, take: Callable[[], Position]) -> None:
        """Run SET TRANSACTION SNAPSHOT. Raises PenstockError (25001, 25P01, 0A000, 42704)."""
        if self._block is None:
            raise NotInPrerequisiteState(
                "SET TRANSACTION SNAPSHOT can only be used in transaction blocks", sqlstate="25P01"
            )
        if self._block.queried:
            raise ActiveSqlTransaction("SET TRANSACTION SNAPSHOT must be called before any query")
        if self._block.modes.isolation not in _ONE_SNAPSHOT:
            raise FeatureNotSupported(
                "a snapshot-importing transaction must have isolation level SERIALIZABLE or "
                "REPEATABLE READ",
            )
        self.use(take())

    def now(self) -> Position:
        """Return the position at which a query would read. Unlike ``snapshot``, this does not count
        as a query: modes may still change, and the block's rows are not checked for conflicts."""
        block = self._block
        position = block.snapshot if block and block.snapshot else self._now()
        return position if block is None or block.rows is None else block.rows.with_made(position)

    def snapshot(self) -> Position:
        """Return the position at which a query reads, with the block's own changes: the block's
        snapshot, or in READ COMMITTED the latest consistent point. Raises PenstockError (40001)."""
        block = self._block
        if block is None:
            return self._now()
        block.queried = True
        if block.modes.isolation not in _ONE_SNAPSHOT:
            return block.read(self._now())
        if block.snapshot is None:
            block.snapshot = self._now()
        return block.read(block.snapshot)


# Transaction modes, and when they may be changed (variable.c, check_transaction_isolation,
# _read_only and _deferrable).


def with_defaults(said: TransactionModes, defaults: TransactionModes) -> TransactionModes:
    """Return the modes ``said``, with None replaced by the value in ``defaults``."""
    return TransactionModes(
        defaults.isolation if said.isolation is None else said.isolation,
        defaults.read_only if said.read_only is None else said.read_only,
        defaults.deferrable if said.deferrable is None else said.deferrable,
    )


def changed_modes(
    now: TransactionModes, said: TransactionModes, *, queried: bool, within: bool
) -> TransactionModes:
    """Return the modes after SET TRANSACTION. ``queried``: the block has run a query; ``within``:
    the statement is in a subtransaction. Raises ActiveSqlTransaction (25001)."""
    if said.isolation not in (None, now.isolation):
        what = "SET TRANSACTION ISOLATION LEVEL"
        if queried:
            raise ActiveSqlTransaction(f"{what} must be called before any query")
        if within:
            raise ActiveSqlTransaction(f"{what} must not be called in a subtransaction")
    if said.read_only is False and now.read_only:
        if within:
            raise ActiveSqlTransaction(
                "cannot set transaction read-write mode inside a read-only transaction"
            )
        if queried:
            raise ActiveSqlTransaction("transaction read-write mode must be set before any query")
    if said.deferrable is not None:
        what = "SET TRANSACTION [NOT] DEFERRABLE"
        if within:
            raise ActiveSqlTransaction(f"{what} cannot be called within a subtransaction")
        if queried:
            raise ActiveSqlTransaction(f"{what} must be called before any query")
    return with_defaults(said, now)
