"""The scope of a statement: its context beside its text, and its result (miscinit.c;
walreceiver.h).

A session gives every command these frozen values: the executing role, the warehouse, and a way to
connect to publishers (``penstock.walreceiver.publisher.Publisher.connect`` in a real node). A
node's own calls run as a superuser that has no row in the catalog.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.catalog import Role
from penstock.lakehouse.warehouse import Warehouse
from penstock.protocol.answers import Notice
from penstock.sqlstate import ActiveSqlTransaction
from penstock.walreceiver.publisher import Publisher


@dataclass(frozen=True, slots=True)
class CurrentRole:
    """The executing role. ``oid``: None for the node itself, which owns objects without an
    owner."""

    name: str
    oid: int | None = None
    superuser: bool = False

    @classmethod
    def of(cls, role: Role) -> CurrentRole:
        """Return a role of the catalog as the executing role."""
        return cls(role.name, role.oid, role.superuser)


NODE_ROLE: Final = CurrentRole("penstock", superuser=True)


@dataclass(slots=True)
class BlockEnd:
    """Actions that the commands of a transaction block leave for its end, in order: changes of
    files just before the catalog's transaction is committed, and actions that are only allowed
    after it."""

    before_commit: list[Callable[[], None]] = field(default_factory=list)
    after_commit: list[Callable[[], None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CommandScope:
    """The scope of a statement. ``warehouse``: None if statements about tables are refused.

    ``search_path``: schemas for names without one; CREATE uses the first that exists.
    ``node_role``: the name of the superuser that has no row in the catalog. ``block_end``: that of
    the statement's transaction block; None outside of one. ``version``: the major version of
    PostgreSQL that the node imitates. ``running``: the node and its workers run.
    ``unsent_changes``: the default for new subscriptions.
    """

    warehouse: Warehouse | None = field(default=None, compare=False)
    role: CurrentRole = NODE_ROLE
    session_role: CurrentRole = NODE_ROLE
    node_role: CurrentRole = NODE_ROLE
    database: str = "lake"
    search_path: tuple[str, ...] = ("public",)
    version: int = 18
    running: bool = field(default=False, compare=False)
    block_end: BlockEnd | None = field(default=None, compare=False)
    unsent_changes: str = field(default="error", compare=False)

    def prevent_in_block(self, command: str) -> None:
        """Refuse a command in a block (PreventInTransactionBlock). Raises ActiveSqlTransaction
        (25001)."""
        if self.block_end is not None:
            raise ActiveSqlTransaction(f"{command} cannot run inside a transaction block")

    def before_commit(self, action: Callable[[], None]) -> None:
        """Run an action just before the commit: now, as the last step of a command's transaction,
        or at the end of the block."""
        if self.block_end is None:
            action()
        else:
            self.block_end.before_commit.append(action)

    def after_commit(self, action: Callable[[], None]) -> None:
        """Run an action after the commit: now, as the command's transaction is committed, or after
        the block's commit."""
        if self.block_end is None:
            action()
        else:
            self.block_end.after_commit.append(action)


PublisherFactory = Callable[[str, str], Publisher]
"""A function of a connection string and an application's name that opens a session. Raises
SqlSyntaxError, ConnectionFailure, AuthenticationFailure."""


def warning(
    message: str,
    *,
    detail: str | None = None,
    hint: str | None = None,
    sqlstate: str = "01000",
) -> Notice:
    """Return a WARNING."""
    return Notice("WARNING", message, detail=detail, hint=hint, sqlstate=sqlstate)


def notice(message: str, *, detail: str | None = None, sqlstate: str = "00000") -> Notice:
    """Return a NOTICE."""
    return Notice("NOTICE", message, detail=detail, sqlstate=sqlstate)


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command. ``tag``: the command tag. ``columns`` and ``rows`` are those of a
    SELECT, else empty."""

    tag: str
    notices: tuple[Notice, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
