"""The transaction block of one session (xact.c), as far as a publisher needs one.

In: BEGIN, COMMIT, savepoints, what runs in between, and errors. Out: the state that ReadyForQuery
tells, and which consistent point a statement reads, with what the block has changed itself. The
session's settings follow it; outside of a block each statement is a transaction of its own.
Commands that a block may have are kept for its end (``node_commands``); rows that it changes are
staged (``executor.block``). A block has the one or the other.
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
    """What the block was then."""

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
        """With what it has changed."""
        return position if self.rows is None else self.rows.at(position)


class TransactionBlock:
    """``now`` gives the end of the log; ``settings``: the session's."""

    def __init__(self, now: Callable[[], Position], settings: SessionSettings) -> None:
        self._now = now
        self._settings = settings
        self._block: _Block | None = None

    def refuse(self, what: str) -> None:
        """Raises FeatureNotSupported inside of one: what is a commit of its own."""
        if self.open:
            raise self.refusal(what)

    def refusal(self, what: str) -> FeatureNotSupported:
        """The error for what a block may not have."""
        return FeatureNotSupported(
            f"{what} cannot run inside a transaction block",
            hint="One statement is one commit of the lake: run it outside of BEGIN ... COMMIT.",
        )

    @property
    def status(self) -> TransactionStatus:
        """As ReadyForQuery tells it."""
        if self._block is None:
            return TransactionStatus.IDLE
        return TransactionStatus.FAILED if self._block.failed else TransactionStatus.IN_TRANSACTION

    @property
    def open(self) -> bool:
        """Whether there is a block."""
        return self._block is not None

    @property
    def read_only(self) -> bool:
        """Whether what runs now may change nothing (XactReadOnly)."""
        return bool(self.modes.read_only)

    def check_read_only(self, tag: str | None) -> None:
        """Whether a statement may run (PreventCommandIfReadOnly). ``tag``: of one that changes
        something. Raises ReadOnlySqlTransaction (25006)."""
        if tag is not None and self.read_only:
            raise ReadOnlySqlTransaction(f"cannot execute {tag} in a read-only transaction")

    @property
    def commands(self) -> tuple[Statement, ...]:
        """What COMMIT is to do."""
        return () if self._block is None else self._block.commands

    @commands.setter
    def commands(self, commands: tuple[Statement, ...]) -> None:
        assert self._block is not None
        self._block.commands = commands

    @property
    def rows(self) -> LakeBlock | None:
        """Rows of the lake that it has changed."""
        return None if self._block is None else self._block.rows

    def changing(self, what: str, open_rows: Callable[[], LakeBlock]) -> LakeBlock:
        """Where a statement stages its rows. Raises FeatureNotSupported."""
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
        """A message that goes with the block. Raises FeatureNotSupported."""
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

    def check_command(self) -> None:
        """Raises FeatureNotSupported where the block has changed rows."""
        if self._block is not None and self._block.rows is not None:
            raise FeatureNotSupported(
                "commands after changes of rows in a transaction block are not supported"
            )

    @property
    def failed(self) -> bool:
        """Whether it can only be rolled back."""
        return self._block is not None and self._block.failed

    def check_prepare(self) -> None:
        """Raises FeatureNotSupported where PREPARE TRANSACTION could not keep what it has done."""
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
        """Whether this end of the block does what is in it."""
        return self.open and not self.failed and tag == "COMMIT"

    def check_catalogs(self) -> None:
        """Raises FeatureNotSupported where the catalogs would not show what the block has done."""
        if self.commands:
            raise FeatureNotSupported(
                "queries on the catalogs after commands in the same transaction block are not "
                "supported",
                hint="What the block has changed is to be seen after COMMIT.",
            )

    @property
    def modes(self) -> TransactionModes:
        """Of what runs now, each of them; outside of a block the session's defaults."""
        if self._block is not None:
            return self._block.modes
        show = self._settings.show
        return TransactionModes(
            show("default_transaction_isolation"),
            show("default_transaction_read_only") == "on",
            show("default_transaction_deferrable") == "on",
        )

    def begin(self, modes: TransactionModes) -> Iterator[Notice]:
        """BEGIN. In a block already: a warning, then as ``set_modes``."""
        if self._block is not None:
            message = "there is already a transaction in progress"
            yield Notice("WARNING", message, sqlstate="25001")
            self.set_modes(modes)
        else:
            self._settings.commit()
            self._block = _Block(with_defaults(modes, self.modes))

    def check_chain(self, tag: str) -> None:
        """COMMIT or ROLLBACK AND CHAIN. Raises PenstockError (25P01) outside of a block."""
        if self._block is None:
            raise PenstockError(
                f"{tag} AND CHAIN can only be used in transaction blocks", sqlstate="25P01"
            )

    def chained(self, tag: str) -> tuple[str, Notice | None]:
        """``end``, and a new block with the same modes."""
        assert self._block is not None
        modes = self._block.modes
        ended, _ = self.end(tag)
        self._block = _Block(modes)
        return ended, None

    def end(self, tag: str) -> tuple[str, Notice | None]:
        """COMMIT or ROLLBACK; the tag of what it was: a failed block is rolled back."""
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
        """A statement has run; outside of a block it was a transaction."""
        if self._block is None:
            self._settings.commit()

    def abandon(self) -> None:
        """What is not committed leaves nothing."""
        self._settings.abort()
        block, self._block = self._block, None
        if block is not None and block.rows is not None:
            block.rows.end()

    # Savepoints

    def define_savepoint(self, name: str) -> None:
        """DefineSavepoint. Raises PenstockError (25P01, 25P02)."""
        block = self._in_block("SAVEPOINT")
        self.check()
        staged = Staged() if block.rows is None else block.rows.staged
        block.savepoints.append(
            _Savepoint(name, block.modes, block.commands, staged, self._settings.own)
        )

    def release_savepoint(self, name: str) -> None:
        """ReleaseSavepoint. Raises PenstockError (25P01, 25P02, 3B001)."""
        block = self._in_block("RELEASE SAVEPOINT")
        self.check()
        del block.savepoints[self._place(block, name) :]

    def rollback_to_savepoint(self, name: str) -> None:
        """RollbackToSavepoint, in a failed block too. Raises PenstockError (25P01, 3B001)."""
        block = self._in_block("ROLLBACK TO SAVEPOINT")
        place = self._place(block, name)
        del block.savepoints[place + 1 :]
        savepoint = block.savepoints[place]
        block.modes, block.commands = savepoint.modes, savepoint.commands
        self._settings.own = savepoint.settings
        if block.rows is not None:
            block.rows.staged = savepoint.staged
        block.failed = False

    def _in_block(self, what: str) -> _Block:
        if self._block is None:
            raise PenstockError(f"{what} can only be used in transaction blocks", sqlstate="25P01")
        return self._block

    @staticmethod
    def _place(block: _Block, name: str) -> int:
        """Of the last savepoint of that name."""
        places = [n for n, savepoint in enumerate(block.savepoints) if savepoint.name == name]
        if not places:
            raise PenstockError(f'savepoint "{name}" does not exist', sqlstate="3B001")
        return places[-1]

    def set_modes(self, modes: TransactionModes) -> None:
        """SET TRANSACTION; outside of a block nothing. Raises ActiveSqlTransaction (25001)."""
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
        """A statement has failed; settings go back to before its subtransaction."""
        block = self._block
        if block is None or not block.savepoints:
            self._settings.abort()
        else:
            self._settings.own = block.savepoints[-1].settings
        if block is not None:
            block.failed = True

    def outside(self, command: str) -> None:
        """Raise PenstockError (25001) in a block (PreventInTransactionBlock)."""
        if self._block is not None:
            raise ActiveSqlTransaction(f"{command} cannot run inside a transaction block")

    def forbid_export(self) -> None:
        """Raise what CREATE_REPLICATION_SLOT (SNAPSHOT 'export') raises in a block."""
        if self._block is not None:
            raise PenstockError(
                "CREATE_REPLICATION_SLOT ... (SNAPSHOT 'export') must not be called inside a "
                "transaction"
            )

    def check_use(self, version: int) -> None:
        """Raise what CREATE_REPLICATION_SLOT (SNAPSHOT 'use') raises here."""
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
        """One of the catalogs: a query all the same, after which modes are what they are."""
        if self._block is not None:
            self._block.queried = True

    def use(self, position: Position) -> None:
        """Read ``position`` from now on."""
        assert self._block is not None
        self._block.snapshot = position
        self._block.queried = True

    def import_snapshot(self, take: Callable[[], Position]) -> None:
        """SET TRANSACTION SNAPSHOT. Raises PenstockError (25001, 0A000, 42704)."""
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
        """What a query would read; without reading."""
        block = self._block
        position = block.snapshot if block and block.snapshot else self._now()
        return position if block is None or block.rows is None else block.rows.with_made(position)

    def snapshot(self) -> Position:
        """What a query reads: the block's snapshot where it keeps one, else the end of the log;
        with what the block has changed. Raises PenstockError (40001)."""
        block = self._block
        if block is None:
            return self._now()
        block.queried = True
        if block.modes.isolation not in _ONE_SNAPSHOT:
            return block.read(self._now())
        if block.snapshot is None:
            block.snapshot = self._now()
        return block.read(block.snapshot)


# Modes of a transaction: what it has, and when they may be changed (variable.c).
#
# In: the modes that there are and those that a statement says. Out: the modes from then on, or
# PostgreSQL's error (check_transaction_isolation, _read_only and _deferrable).


def with_defaults(said: TransactionModes, defaults: TransactionModes) -> TransactionModes:
    """``said``, and ``defaults`` where nothing is."""
    return TransactionModes(
        defaults.isolation if said.isolation is None else said.isolation,
        defaults.read_only if said.read_only is None else said.read_only,
        defaults.deferrable if said.deferrable is None else said.deferrable,
    )


def changed_modes(
    now: TransactionModes, said: TransactionModes, *, queried: bool, within: bool
) -> TransactionModes:
    """``queried``: there was a query; ``within``: it is a subtransaction. Raises
    ActiveSqlTransaction (25001)."""
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
