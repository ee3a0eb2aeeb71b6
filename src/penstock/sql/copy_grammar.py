"""COPY and TRUNCATE (gram.y, CopyStmt, TruncateStmt).

In: a cursor behind the statement's first word. Out: a statement. Only COPY TO STDOUT is there;
COPY FROM, files and programs are read and refused by name (0A000). Which options there are is left
to whoever copies.
"""

from __future__ import annotations

from penstock.errors import SqlSyntaxError
from penstock.sql.cursor import Cursor, not_supported
from penstock.sql.lexer import Kind
from penstock.sql.object_names import (
    column_label,
    opt_column_list,
    qualified_name,
    relation_expr,
)
from penstock.sql.session_statements import Copy, Truncate
from penstock.sql.statements import DefElem

_STRING_OPTIONS = ("delimiter", "null", "quote", "escape", "encoding")


def copy(cursor: Cursor) -> Copy:
    """``CopyStmt``"""
    if cursor.at_symbol("("):
        return _copy_query(cursor)
    options = []
    if cursor.accept("binary"):
        options.append(DefElem("format", "binary"))
    relation = qualified_name(cursor)
    columns = opt_column_list(cursor)
    direction = cursor.accept_any("from", "to")
    if direction is None:
        raise cursor.syntax_error()
    refused = _target(cursor, direction)
    if cursor.accept("using", "delimiters") or cursor.accept("delimiters"):
        options.append(DefElem("delimiter", cursor.string()))
    options += _options(cursor)
    if cursor.accept("where"):
        cursor.rest_of_text()
        if direction == "to":
            raise SqlSyntaxError("WHERE clause not allowed with COPY TO")
    cursor.expect_end()
    if refused:
        raise not_supported(refused)
    return Copy(relation, columns, options=tuple(options), notices=cursor.notices)


def _copy_query(cursor: Cursor) -> Copy:
    query = cursor.parenthesized_text()
    cursor.expect("to")
    refused = _target(cursor, "to")
    options = _options(cursor)
    cursor.expect_end()
    if refused:
        raise not_supported(refused)
    return Copy(None, query=query, options=tuple(options), notices=cursor.notices)


def _target(cursor: Cursor, direction: str) -> str | None:
    """What stands behind FROM or TO; the name of the form where it is not STDOUT."""
    verb = f"COPY {direction.upper()}"
    if cursor.accept("program"):
        cursor.string()
        return f"{verb} PROGRAM"
    if cursor.token.kind is Kind.STRING:
        cursor.take()
        return f"{verb} a file"
    word = cursor.accept_any("stdin", "stdout")
    if word is None:
        raise cursor.syntax_error()
    return verb if direction == "from" else None


def _options(cursor: Cursor) -> list[DefElem]:
    """opt_with copy_options"""
    cursor.accept("with")
    if cursor.accept_symbol("("):
        options = [_generic_option(cursor)]
        while cursor.accept_symbol(","):
            options.append(_generic_option(cursor))
        cursor.expect_symbol(")")
        return options
    options = []
    while cursor.token.kind is Kind.WORD and cursor.word() != "where":
        options.append(_old_option(cursor))
    return options


def _generic_option(cursor: Cursor) -> DefElem:
    """``copy_generic_opt_elem``"""
    name = column_label(cursor)
    token = cursor.token
    if cursor.at_symbol(",") or cursor.at_symbol(")"):
        return DefElem(name)
    if cursor.accept_symbol("*"):
        return DefElem(name, "*")
    if cursor.accept_symbol("("):
        items = [_list_item(cursor)]
        while cursor.accept_symbol(","):
            items.append(_list_item(cursor))
        cursor.expect_symbol(")")
        return DefElem(name, ", ".join(items))
    if token.kind is Kind.WORD and cursor.accept("default"):
        return DefElem(name, "default")
    return DefElem(name, _value(cursor))


def _list_item(cursor: Cursor) -> str:
    """``copy_generic_opt_arg_list_item``"""
    if cursor.token.kind not in (Kind.WORD, Kind.QUOTED, Kind.STRING):
        raise cursor.syntax_error()
    return str(_value(cursor))


def _value(cursor: Cursor) -> str | int:
    """``opt_boolean_or_string`` or ``NumericOnly``"""
    return cursor.word_string_or_number()


def _old_option(cursor: Cursor) -> DefElem:
    """``copy_opt_item``"""
    word = cursor.accept_any("binary", "freeze", "csv", "header", "force", *_STRING_OPTIONS)
    match word:
        case None:
            raise cursor.syntax_error()
        case "binary" | "csv":
            return DefElem("format", word)
        case "freeze" | "header":
            return DefElem(word, "true")
        case "force":
            return _force(cursor)
    if word != "encoding":
        cursor.accept("as")
    return DefElem(word, cursor.string())


def _force(cursor: Cursor) -> DefElem:
    if cursor.accept("quote"):
        name = "force_quote"
    elif cursor.accept("not"):
        cursor.expect("null")
        name = "force_not_null"
    else:
        cursor.expect("null")
        name = "force_null"
    if cursor.accept_symbol("*"):
        return DefElem(name, "*")
    return DefElem(name, ", ".join(cursor.name_list()))


def truncate(cursor: Cursor) -> Truncate:
    """opt_table relation_expr_list opt_restart_seqs opt_drop_behavior"""
    cursor.accept("table")
    relations = [relation_expr(cursor)]
    while cursor.accept_symbol(","):
        relations.append(relation_expr(cursor))
    restart = cursor.accept_any("restart", "continue")
    if restart:
        cursor.expect("identity")
    cascade = cursor.opt_drop_behavior()
    cursor.expect_end()
    return Truncate(tuple(relations), cascade, restart == "restart", notices=cursor.notices)
