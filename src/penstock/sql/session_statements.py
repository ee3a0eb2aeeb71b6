"""Statements about a session, its transactions, its copies and queries (parsenodes.h).

In: what the grammar found. Out: frozen values. Queries are kept as text, for whoever runs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.sql.object_names import RangeVar
from penstock.sql.statements import DefElem, Statement


@dataclass(frozen=True, slots=True)
class SetVariable(Statement):
    """SET [SESSION | LOCAL] name {TO | =} values; ``values`` None means DEFAULT.

    Forms with words of their own have the parameter's name: ``timezone`` (SET TIME ZONE),
    ``client_encoding`` (NAMES), ``search_path`` (SCHEMA), ``role``, ``session_authorization``.
    """

    name: str
    values: tuple[str | int, ...] | None
    local: bool = False

    @property
    def text(self) -> str:
        """The values as one text, as flatten_set_variable_args makes it of simple ones."""
        return ", ".join(str(value) for value in self.values or ())


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
    """Modes as written, None where nothing is said. ``isolation``: ``repeatable read`` ..."""

    isolation: str | None = None
    read_only: bool | None = None
    deferrable: bool | None = None


class TransactionKind(Enum):
    """TransactionStmtKind; the value is the command tag."""

    BEGIN = "BEGIN"
    START = "START TRANSACTION"
    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"


@dataclass(frozen=True, slots=True)
class Transaction(Statement):
    """BEGIN, START TRANSACTION, COMMIT and END, ROLLBACK and ABORT; ``chain``: AND CHAIN."""

    kind: TransactionKind
    modes: TransactionModes = TransactionModes()
    chain: bool = False


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


@dataclass(frozen=True, slots=True)
class Copy(Statement):
    """COPY relation [(columns)] TO STDOUT, COPY (query) TO STDOUT, with options as DefElems.

    ``options``: old forms too, ``BINARY`` as ``format = binary``. A list (force_quote) is a text
    of names with commas between them.
    """

    relation: RangeVar | None
    columns: tuple[str, ...] | None = None
    query: str | None = None
    options: tuple[DefElem, ...] = ()


@dataclass(frozen=True, slots=True)
class Truncate(Statement):
    """TRUNCATE [TABLE] relations."""

    relations: tuple[RangeVar, ...]
    cascade: bool = False
    restart_identity: bool = False


@dataclass(frozen=True, slots=True)
class Query(Statement):
    """A statement kept as ``text``. ``kind``: its first word, such as ``select`` or ``insert``."""

    text: str
    kind: str
