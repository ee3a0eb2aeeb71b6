"""Statements about a session and its transactions (parsenodes.h, VariableSetStmt and others).

This file only parses: the session checks the names and values of parameters, and which statements
a transaction block allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from penstock.sql.grammar.names import Readers, constant, def_elems, not_supported, range_var
from penstock.sql.grammar.parsenodes import (
    Expression,
    PreparableStmt,
    RangeVar,
    Statement,
    TypeName,
)
from penstock.sql.grammar.raw_node import Json, RawNode
from penstock.sql.grammar.raw_statements import expression_of, read_query, type_name
from penstock.sql.grammar.source import Source
from penstock.sql.text.quoting import quote_identifier


@dataclass(frozen=True, slots=True)
class SetVariable(Statement):
    """SET [SESSION | LOCAL] name {TO | =} values; ``values`` None means DEFAULT.

    Special forms become the parameter's name: ``timezone`` (SET TIME ZONE), ``client_encoding``
    (NAMES), ``search_path`` (SCHEMA), ``role``, ``session_authorization``.
    """

    name: str
    values: tuple[str | int, ...] | None
    local: bool = False

    @property
    def text(self) -> str:
        """Return the values as one text (flatten_set_variable_args). Names in a list are quoted."""
        values = self.values or ()
        if self.name.lower() == _LIST:
            values = tuple(v if isinstance(v, int) else quote_identifier(v) for v in values)
        return ", ".join(map(str, values))


@dataclass(frozen=True, slots=True)
class ResetVariable(Statement):
    """RESET name; ``name`` None means ALL."""

    name: str | None


@dataclass(frozen=True, slots=True)
class ShowVariable(Statement):
    """SHOW name; ``name`` None means ALL."""

    name: str | None


@dataclass(frozen=True, slots=True)
class TransactionModes:
    """Modes as written; None for a mode not given. ``isolation``: ``repeatable read`` ..."""

    isolation: str | None = None
    read_only: bool | None = None
    deferrable: bool | None = None


class TransactionKind(Enum):
    """TransactionStmtKind; the value is the command tag."""

    BEGIN = "BEGIN"
    START = "START TRANSACTION"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    SAVEPOINT = "SAVEPOINT"
    RELEASE = "RELEASE"
    ROLLBACK_TO = "ROLLBACK TO SAVEPOINT"
    PREPARE = "PREPARE TRANSACTION"
    COMMIT_PREPARED = "COMMIT PREPARED"
    ROLLBACK_PREPARED = "ROLLBACK PREPARED"


@dataclass(frozen=True, slots=True)
class Transaction(Statement):
    """BEGIN, START TRANSACTION, COMMIT and END, ROLLBACK and ABORT; also the statements for
    savepoints and prepared transactions.

    ``chain``: AND CHAIN. ``name``: the savepoint's name, or the prepared transaction's gid.
    """

    kind: TransactionKind
    modes: TransactionModes = TransactionModes()
    chain: bool = False
    name: str = ""


@dataclass(frozen=True, slots=True)
class SetTransaction(Statement):
    """SET TRANSACTION modes; ``session``: SET SESSION CHARACTERISTICS AS TRANSACTION."""

    modes: TransactionModes
    session: bool = False


@dataclass(frozen=True, slots=True)
class SetTransactionSnapshot(Statement):
    """SET TRANSACTION SNAPSHOT 'snapshot'."""

    snapshot: str


@dataclass(frozen=True, slots=True)
class Discard(Statement):
    """DISCARD what: ``all``, ``plans``, ``sequences`` or ``temp``."""

    what: str


@dataclass(frozen=True, slots=True)
class PrepareQuery(Statement):
    """PREPARE name [(types)] AS query."""

    name: str
    types: tuple[TypeName, ...]
    query: PreparableStmt


@dataclass(frozen=True, slots=True)
class ExecuteQuery(Statement):
    """EXECUTE name [(arguments)]."""

    name: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class LockTable(Statement):
    """LOCK TABLE relations IN ACCESS SHARE MODE. Other modes are refused by name."""

    relations: tuple[RangeVar, ...]


@dataclass(frozen=True, slots=True)
class Deallocate(Statement):
    """DEALLOCATE [PREPARE] name; ``name`` None means ALL."""

    name: str | None


@dataclass(frozen=True, slots=True)
class CloseCursor(Statement):
    """CLOSE name; ``name`` None means ALL."""

    name: str | None


@dataclass(frozen=True, slots=True)
class Unlisten(Statement):
    """UNLISTEN channel; ``channel`` None means *."""

    channel: str | None


_LIST: Final = "search_path"
"""The parameter whose values are names in a list (GUC_LIST_QUOTE)."""
_TRANSACTION: Final = "TRANS_STMT_"
_ACCESS_SHARE: Final = 1
"""AccessShareLock (lockdefs.h)"""
_KINDS: Final = {
    "BEGIN": TransactionKind.BEGIN,
    "START": TransactionKind.START,
    "COMMIT": TransactionKind.COMMIT,
    "ROLLBACK": TransactionKind.ROLLBACK,
    "SAVEPOINT": TransactionKind.SAVEPOINT,
    "RELEASE": TransactionKind.RELEASE,
    "ROLLBACK_TO": TransactionKind.ROLLBACK_TO,
    "PREPARE": TransactionKind.PREPARE,
    "COMMIT_PREPARED": TransactionKind.COMMIT_PREPARED,
    "ROLLBACK_PREPARED": TransactionKind.ROLLBACK_PREPARED,
}


def _set(raw: RawNode, _source: Source) -> Statement:
    """Read SET and RESET in all forms; special forms become the parameter's name."""
    kind, name = raw.take("kind"), raw.take("name")
    local = bool(raw.take("is_local"))
    raw.ignore("jumble_args")
    match kind:
        case "VAR_SET_DEFAULT":
            return SetVariable(name, None, local)
        case "VAR_SET_VALUE":
            return SetVariable(name, tuple(_value(node) for node in raw.nodes("args")), local)
        case "VAR_SET_MULTI" if name == "TRANSACTION SNAPSHOT":
            (snapshot,) = raw.nodes("args")
            return SetTransactionSnapshot(str(constant(snapshot)))
        case "VAR_SET_MULTI":
            return SetTransaction(_modes(raw, "args"), session=name != "TRANSACTION")
        case "VAR_RESET" | "VAR_RESET_ALL":
            return ResetVariable(name)
    raise not_supported("SET ... FROM CURRENT")


def _value(node: Json) -> str | int:
    """Read a ``var_value``."""
    if "A_Const" not in node:
        raise not_supported("SET TIME ZONE INTERVAL")
    value = constant(node)
    return value if isinstance(value, int) else str(value)


def _show(raw: RawNode, _source: Source) -> ShowVariable:
    name = raw.take("name")
    return ShowVariable(None if name == "all" else name)


def _transaction(raw: RawNode, _source: Source) -> Transaction:
    kind = raw.take("kind").removeprefix(_TRANSACTION)
    name = raw.take("savepoint_name") or raw.take("gid") or ""
    return Transaction(_KINDS[kind], _modes(raw, "options"), bool(raw.take("chain")), name)


def _modes(raw: RawNode, field: str) -> TransactionModes:
    """Read a ``transaction_mode_list``; if a mode is repeated, the last value counts."""
    modes: dict[str, Any] = {}
    for name, node in def_elems(raw, field):
        assert node is not None
        value, mode = constant(node), name.removeprefix("transaction_")
        modes[mode] = value if mode == "isolation" else bool(value)
    return TransactionModes(**modes)


def _discard(raw: RawNode, _source: Source) -> Discard:
    return Discard(raw.take("target").removeprefix("DISCARD_").lower())


def _prepare(raw: RawNode, _source: Source) -> PrepareQuery:
    types = tuple(type_name(node["TypeName"]) for node in raw.nodes("argtypes"))
    query = raw.node("query")
    assert query is not None
    return PrepareQuery(raw.take("name"), types, read_query(RawNode.of(query)))


def _execute(raw: RawNode, _source: Source) -> ExecuteQuery:
    return ExecuteQuery(raw.take("name"), tuple(map(expression_of, raw.nodes("params"))))


def _lock(raw: RawNode, _source: Source) -> LockTable:
    raw.ignore("nowait")
    if raw.take("mode") != _ACCESS_SHARE:
        raise not_supported("LOCK TABLE in modes other than ACCESS SHARE")
    return LockTable(tuple(range_var(node["RangeVar"]) for node in raw.nodes("relations")))


def _deallocate(raw: RawNode, _source: Source) -> Deallocate:
    raw.ignore("isall")
    return Deallocate(raw.take("name"))


def _close(raw: RawNode, _source: Source) -> CloseCursor:
    return CloseCursor(raw.take("portalname"))


def _unlisten(raw: RawNode, _source: Source) -> Unlisten:
    return Unlisten(raw.take("conditionname"))


READERS: Final[Readers] = {
    "VariableSetStmt": _set,
    "VariableShowStmt": _show,
    "TransactionStmt": _transaction,
    "DiscardStmt": _discard,
    "PrepareStmt": _prepare,
    "ExecuteStmt": _execute,
    "DeallocateStmt": _deallocate,
    "LockStmt": _lock,
    "ClosePortalStmt": _close,
    "UnlistenStmt": _unlisten,
}
