"""SET, RESET, SHOW, DISCARD, DEALLOCATE (gram.y, VariableSetStmt and its neighbours).

In: a cursor behind the statement's first word. Out: a statement. Which parameters there are and
what they may hold is left to the session.
"""

from __future__ import annotations

from penstock.errors import FeatureNotSupported
from penstock.sql.cursor import Cursor, not_supported
from penstock.sql.keywords import KEY_WORDS
from penstock.sql.lexer import Kind
from penstock.sql.object_names import non_reserved_word
from penstock.sql.session_statements import (
    CloseCursor,
    Deallocate,
    Discard,
    ResetVariable,
    SetTransaction,
    SetTransactionSnapshot,
    SetVariable,
    ShowVariable,
    Unlisten,
)
from penstock.sql.statements import Statement
from penstock.sql.transaction_grammar import transaction_mode_list

_BEHIND_SESSION = (None, "authorization", "characteristics", "to")
"""Words (or none) behind a SESSION that is a name itself, or the beginning of another form."""


def set_statement(cursor: Cursor) -> Statement:
    """[SESSION | LOCAL] set_rest"""
    local = False
    if cursor.word() == "constraints":
        raise not_supported("SET CONSTRAINTS")
    if cursor.word() == "local" and cursor.word_after() is not None:
        cursor.take()
        local = True
    elif cursor.word() == "session" and cursor.word_after() not in _BEHIND_SESSION:
        cursor.take()
    found = _set_rest(cursor, local)
    cursor.expect_end()
    return found


def _set_rest(cursor: Cursor, local: bool) -> Statement:
    if cursor.word() == "transaction" and cursor.word_after() not in (None, "to"):
        return _set_transaction(cursor)
    if cursor.accept("session", "characteristics"):
        cursor.expect("as", "transaction")
        modes = transaction_mode_list(cursor)
        return SetTransaction(modes, session=True, notices=cursor.notices)
    special = _set_special(cursor)
    if special is not None:
        name, values = special
        return SetVariable(name, values, local, notices=cursor.notices)
    name = _var_name(cursor)
    if cursor.accept("from"):
        cursor.expect("current")
        raise not_supported("SET ... FROM CURRENT")
    if not cursor.accept("to") and not cursor.accept_symbol("="):
        raise cursor.syntax_error()
    if cursor.accept("default"):
        return SetVariable(name, None, local, notices=cursor.notices)
    return SetVariable(name, _var_list(cursor), local, notices=cursor.notices)


def _set_transaction(cursor: Cursor) -> Statement:
    cursor.take()
    if cursor.accept("snapshot"):
        return SetTransactionSnapshot(cursor.string(), notices=cursor.notices)
    modes = transaction_mode_list(cursor)
    return SetTransaction(modes, notices=cursor.notices)


def _set_special(cursor: Cursor) -> tuple[str, tuple[str | int, ...] | None] | None:
    """The forms with words of their own (set_rest_more); None for the others."""
    if cursor.accept("time", "zone"):
        return "timezone", _zone_value(cursor)
    if cursor.word() == "session" and cursor.accept("session", "authorization"):
        if cursor.accept("default"):
            return "session_authorization", None
        return "session_authorization", (_word_or_string(cursor),)
    token = cursor.token_after()
    assigned = token.value in ("=", ".") or (token.kind is Kind.WORD and token.value == "to")
    word = cursor.word()
    if word not in ("schema", "names", "role", "catalog", "xml") or assigned:
        return None
    cursor.take()
    match word:
        case "schema":
            return "search_path", (cursor.string(),)
        case "role":
            return "role", (_word_or_string(cursor),)
        case "names":
            if cursor.token.kind is Kind.STRING:
                return "client_encoding", (cursor.string(),)
            cursor.accept("default")
            return "client_encoding", None
        case "catalog":
            cursor.string()
            raise FeatureNotSupported("current database cannot be changed")
    raise not_supported(f"SET {word.upper()}")


def _zone_value(cursor: Cursor) -> tuple[str | int, ...] | None:
    """``zone_value``: None for DEFAULT and LOCAL."""
    if cursor.accept_any("default", "local"):
        return None
    if cursor.word() == "interval":
        raise not_supported("SET TIME ZONE INTERVAL")
    if cursor.token.kind in (Kind.STRING, Kind.QUOTED):
        return (cursor.take().value,)
    if cursor.token.kind is Kind.WORD:
        if cursor.token.value in KEY_WORDS:
            raise cursor.syntax_error()
        return (cursor.take().value,)
    return (cursor.numeric_only(),)


def _var_list(cursor: Cursor) -> tuple[str | int, ...]:
    values = [_var_value(cursor)]
    while cursor.accept_symbol(","):
        values.append(_var_value(cursor))
    return tuple(values)


def _var_value(cursor: Cursor) -> str | int:
    """``var_value``"""
    boolean = cursor.accept_any("true", "false", "on")
    if boolean is not None:
        return boolean
    if cursor.token.kind in (Kind.WORD, Kind.QUOTED, Kind.STRING):
        return _word_or_string(cursor)
    return cursor.numeric_only()


def _word_or_string(cursor: Cursor) -> str:
    """``NonReservedWord_or_Sconst``"""
    if cursor.token.kind is Kind.STRING:
        return cursor.string()
    return non_reserved_word(cursor)


def _var_name(cursor: Cursor) -> str:
    """``var_name``: names with dots between them."""
    name = cursor.name()
    while cursor.accept_symbol("."):
        name += f".{cursor.name()}"
    return name


def show(cursor: Cursor) -> ShowVariable:
    """var_name | TIME ZONE | TRANSACTION ISOLATION LEVEL | SESSION AUTHORIZATION | ALL"""
    name = _variable_or_all(cursor)
    cursor.expect_end()
    return ShowVariable(name, notices=cursor.notices)


def reset(cursor: Cursor) -> ResetVariable:
    """As SHOW."""
    name = _variable_or_all(cursor)
    cursor.expect_end()
    return ResetVariable(name, notices=cursor.notices)


def _variable_or_all(cursor: Cursor) -> str | None:
    if cursor.accept("all"):
        return None
    if cursor.accept("time", "zone"):
        return "timezone"
    if cursor.accept("transaction", "isolation"):
        cursor.expect("level")
        return "transaction_isolation"
    if cursor.accept("session", "authorization"):
        return "session_authorization"
    return _var_name(cursor)


def discard(cursor: Cursor) -> Discard:
    """ALL | TEMP | TEMPORARY | PLANS | SEQUENCES"""
    what = cursor.accept_any("all", "temp", "temporary", "plans", "sequences")
    if what is None:
        raise cursor.syntax_error()
    cursor.expect_end()
    return Discard("temp" if what == "temporary" else what, notices=cursor.notices)


def deallocate(cursor: Cursor) -> Deallocate:
    """[PREPARE] name | [PREPARE] ALL"""
    if cursor.word() == "prepare" and cursor.token_after().kind is not Kind.END:
        cursor.take()
    name = None if cursor.accept("all") else cursor.name()
    cursor.expect_end()
    return Deallocate(name, notices=cursor.notices)


def close(cursor: Cursor) -> CloseCursor:
    """name | ALL"""
    name = None if cursor.accept("all") else cursor.name()
    cursor.expect_end()
    return CloseCursor(name, notices=cursor.notices)


def unlisten(cursor: Cursor) -> Unlisten:
    """channel | *"""
    channel = None if cursor.accept_symbol("*") else cursor.name()
    cursor.expect_end()
    return Unlisten(channel, notices=cursor.notices)
