"""The context in which a command runs, and its result (miscinit.c; walreceiver.h).

A session passes every command its role, the warehouse, and a function that connects to publishers
(``penstock.walreceiver.publisher.Publisher.connect`` in a real node). Commands of the node itself
run as a superuser that is not in the catalog.
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
    """The role that executes a command. ``oid``: None for the node itself, to which objects without
    an owner belong."""

    name: str
    oid: int | None = None
    superuser: bool = False

    @classmethod
    def of(cls, role: Role) -> CurrentRole:
        """Make a ``CurrentRole`` of a role of the catalog."""
        return cls(role.name, role.oid, role.superuser)


NODE_ROLE: Final = CurrentRole("penstock", superuser=True)


@dataclass(slots=True)
class BlockEnd:
    """Actions that a transaction block's commands defer to its end, in order: changes of files
    just before the catalog's commit, and actions that must wait until after it."""

    before_commit: list[Callable[[], None]] = field(default_factory=list)
    after_commit: list[Callable[[], None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CommandScope:
    """The context of a command. ``warehouse``: None if statements about tables are refused.

    ``search_path``: schemas for names without a schema; CREATE uses the first that exists.
    ``node_role``: the superuser that is not in the catalog. ``block_end``: None outside of a
    transaction block. ``version``: the major version of PostgreSQL that the node imitates.
    ``running``: the node and its workers run. ``unsent_changes``: the default of new subscriptions.
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
        """Run an action just before the catalog's commit. Outside of a block, call this as the last
        step of the command's transaction: the action runs now. In a block it runs at COMMIT."""
        if self.block_end is None:
            action()
        else:
            self.block_end.before_commit.append(action)

    def after_commit(self, action: Callable[[], None]) -> None:
        """Run an action after the catalog's commit. Outside of a block, call this after the
        command's transaction: the action runs now. In a block it runs after COMMIT."""
        if self.block_end is None:
            action()
        else:
            self.block_end.after_commit.append(action)


PublisherFactory = Callable[[str, str], Publisher]
"""(connection string, application name) -> a session on the publisher. Raises SqlSyntaxError,
ConnectionFailure, AuthenticationFailure."""


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
    """The result of a command. ``tag``: the command tag. ``columns`` and ``rows`` are empty unless
    the command returns rows."""

    tag: str
    notices: tuple[Notice, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[Any, ...], ...] = ()
