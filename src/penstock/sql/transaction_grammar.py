"""BEGIN, COMMIT, ROLLBACK and their modes (gram.y, TransactionStmt).

In: a cursor behind the statement's first word. Out: a statement. Savepoints and two-phase commit
are refused by name (0A000); what a transaction block may hold is left to the session.
"""

from __future__ import annotations

from penstock.sql.cursor import Cursor, not_supported
from penstock.sql.lexer import Kind
from penstock.sql.session_statements import Transaction, TransactionKind, TransactionModes


def begin(cursor: Cursor) -> Transaction:
    """BEGIN opt_transaction transaction_mode_list_or_empty"""
    cursor.accept_any("work", "transaction")
    return _started(cursor, TransactionKind.BEGIN)


def start(cursor: Cursor) -> Transaction:
    """START TRANSACTION transaction_mode_list_or_empty"""
    cursor.expect("transaction")
    return _started(cursor, TransactionKind.START)


def _started(cursor: Cursor, kind: TransactionKind) -> Transaction:
    modes = TransactionModes()
    if cursor.token.kind is not Kind.END:
        modes = transaction_mode_list(cursor)
    cursor.expect_end()
    return Transaction(kind, modes, notices=cursor.notices)


def commit(cursor: Cursor) -> Transaction:
    """COMMIT opt_transaction opt_transaction_chain"""
    if cursor.accept("prepared"):
        cursor.string()
        raise not_supported("COMMIT PREPARED")
    return end(cursor)


def end(cursor: Cursor) -> Transaction:
    """END opt_transaction opt_transaction_chain"""
    return _ended(cursor, TransactionKind.COMMIT)


def rollback(cursor: Cursor) -> Transaction:
    """ROLLBACK opt_transaction [opt_transaction_chain | TO SAVEPOINT]"""
    if cursor.accept("prepared"):
        cursor.string()
        raise not_supported("ROLLBACK PREPARED")
    return _ended(cursor, TransactionKind.ROLLBACK, savepoint=True)


def abort(cursor: Cursor) -> Transaction:
    """ABORT opt_transaction opt_transaction_chain"""
    return _ended(cursor, TransactionKind.ROLLBACK)


def _ended(cursor: Cursor, kind: TransactionKind, *, savepoint: bool = False) -> Transaction:
    cursor.accept_any("work", "transaction")
    if savepoint and cursor.accept("to"):
        cursor.accept("savepoint")
        cursor.name()
        cursor.expect_end()
        raise not_supported("ROLLBACK TO SAVEPOINT")
    chain = False
    if cursor.accept("and"):
        chain = not cursor.accept("no")
        cursor.expect("chain")
    cursor.expect_end()
    return Transaction(kind, chain=chain, notices=cursor.notices)


def transaction_mode_list(cursor: Cursor) -> TransactionModes:
    """``transaction_mode_list``: modes, with commas or without; the last counts."""
    modes: dict[str, str | bool] = {}
    modes.update([_transaction_mode(cursor)])
    while cursor.accept_symbol(",") or cursor.token.kind is not Kind.END:
        modes.update([_transaction_mode(cursor)])
    return TransactionModes(**modes)  # type: ignore[arg-type]


def _transaction_mode(cursor: Cursor) -> tuple[str, str | bool]:
    """``transaction_mode_item``"""
    if cursor.accept("isolation"):
        cursor.expect("level")
        return "isolation", _iso_level(cursor)
    if cursor.accept("read"):
        word = cursor.accept_any("only", "write")
        if word is None:
            raise cursor.syntax_error()
        return "read_only", word == "only"
    if cursor.accept("deferrable"):
        return "deferrable", True
    if cursor.accept("not"):
        cursor.expect("deferrable")
        return "deferrable", False
    raise cursor.syntax_error()


def _iso_level(cursor: Cursor) -> str:
    """``iso_level``"""
    if cursor.accept("serializable"):
        return "serializable"
    if cursor.accept("repeatable"):
        cursor.expect("read")
        return "repeatable read"
    cursor.expect("read")
    word = cursor.accept_any("committed", "uncommitted")
    if word is None:
        raise cursor.syntax_error()
    return f"read {word}"
