"""CREATE, ALTER and DROP ROLE, GRANT and REVOKE (gram.y, CreateRoleStmt, GrantStmt).

In: a cursor behind the word ROLE, USER or GROUP, or behind GRANT or REVOKE. Out: a statement. Of
privileges there is SELECT on tables; all others are refused by name (0A000).
"""

from __future__ import annotations

from typing import Final

from penstock.errors import FeatureNotSupported, SqlSyntaxError
from penstock.sql.cursor import Cursor, not_supported
from penstock.sql.keywords import KEY_WORDS, words
from penstock.sql.lexer import Kind
from penstock.sql.object_names import (
    RangeVar,
    RoleKind,
    column_label,
    grantee_list,
    opt_column_list,
    qualified_name,
    role_id,
    role_list,
    role_spec,
)
from penstock.sql.role_statements import (
    AlterRole,
    CreateRole,
    DropRole,
    GrantSelect,
    RenameRole,
    RoleOption,
)
from penstock.sql.statements import Statement

_FLAGS: Final = {
    "superuser": "superuser",
    "createrole": "createrole",
    "replication": "isreplication",
    "createdb": "createdb",
    "login": "canlogin",
    "bypassrls": "bypassrls",
    "inherit": "inherit",
}
"""Options that have a form with NO, and PostgreSQL's name of each."""

_PRIVILEGES: Final = words(
    """
    all select insert update delete truncate references trigger maintain usage create connect
    temporary temp execute set alter
    """
)


def create_role(cursor: Cursor) -> CreateRole:
    """RoleId opt_with OptRoleList, behind ROLE or GROUP"""
    return _create(cursor, login=False)


def create_user(cursor: Cursor) -> Statement:
    """CREATE USER is CREATE ROLE with LOGIN; CREATE USER MAPPING is something else."""
    if cursor.word() == "mapping" and cursor.word_after() in ("for", "if"):
        raise not_supported("CREATE USER MAPPING")
    return _create(cursor, login=True)


def _create(cursor: Cursor, *, login: bool) -> CreateRole:
    name = role_id(cursor)
    cursor.accept("with")
    options = _options(cursor, create=True)
    cursor.expect_end()
    return CreateRole(name, options, login, notices=cursor.notices)


def alter_role(cursor: Cursor) -> Statement:
    """RoleSpec opt_with AlterOptRoleList | RoleId RENAME TO RoleId"""
    if cursor.accept("all"):
        raise not_supported("ALTER ROLE ALL")
    if cursor.word() == "mapping" and cursor.word_after() == "for":
        raise not_supported("ALTER USER MAPPING")
    role = role_spec(cursor)
    if cursor.accept("rename"):
        cursor.expect("to")
        new_name = role_id(cursor)
        cursor.expect_end()
        return RenameRole(_name_to_rename(role.name, role.kind), new_name, notices=cursor.notices)
    if cursor.accept("in"):
        cursor.expect("database")
        raise not_supported("ALTER ROLE ... IN DATABASE")
    if cursor.word() in ("set", "reset"):
        raise not_supported("ALTER ROLE ... SET")
    cursor.accept("with")
    options = _options(cursor, create=False)
    cursor.expect_end()
    return AlterRole(role, options, notices=cursor.notices)


def _name_to_rename(name: str, kind: RoleKind) -> str:
    if kind is RoleKind.NAME:
        return name
    reserved = 'role name "public" is reserved'
    used = f"{kind.value} cannot be used as a role name here"
    raise SqlSyntaxError(reserved if kind is RoleKind.PUBLIC else used, sqlstate="42939")


def drop_role(cursor: Cursor) -> Statement:
    """[IF EXISTS] role_list"""
    missing_ok = cursor.accept("if", "exists")
    roles = role_list(cursor)
    cursor.expect_end()
    return DropRole(roles, missing_ok, notices=cursor.notices)


def _options(cursor: Cursor, *, create: bool) -> tuple[RoleOption, ...]:
    options = []
    while cursor.token.kind is not Kind.END:
        options.append(_option(cursor, create=create))
    return tuple(options)


def _option(cursor: Cursor, *, create: bool) -> RoleOption:
    """``AlterOptRoleElem``, and with ``create`` what CREATE has beside it."""
    word = cursor.word()
    match word:
        case "password" | "encrypted" | "unencrypted":
            return _password(cursor)
        case "connection":
            cursor.expect("connection", "limit")
            return RoleOption("connectionlimit", _signed_integer(cursor))
        case "valid":
            cursor.expect("valid", "until")
            return RoleOption("validUntil", cursor.string())
        case "sysid" if create:
            cursor.take()
            return RoleOption("sysid", _integer(cursor))
        case "user" | "admin" | "role" | "in" if create or word == "user":
            return _members(cursor)
    if word == "inherit":
        return _flag(cursor.take().value)
    is_identifier = cursor.token.kind is Kind.QUOTED or (word and word not in KEY_WORDS)
    if not is_identifier:
        raise cursor.syntax_error()
    return _flag(cursor.take().value)


def _flag(word: str) -> RoleOption:
    if word in _FLAGS:
        return RoleOption(_FLAGS[word], True)
    positive = word.removeprefix("no")
    if positive != word and positive in _FLAGS:
        return RoleOption(_FLAGS[positive], False)
    raise SqlSyntaxError(f'unrecognized role option "{word}"')


def _password(cursor: Cursor) -> RoleOption:
    kind = cursor.accept_any("encrypted", "unencrypted")
    cursor.expect("password")
    if kind is None and cursor.accept("null"):
        return RoleOption("password", None)
    password = cursor.string()
    if kind == "unencrypted":
        raise FeatureNotSupported(
            "UNENCRYPTED PASSWORD is no longer supported",
            hint="Remove UNENCRYPTED to store the password in encrypted form instead.",
        )
    return RoleOption("password", password)


def _members(cursor: Cursor) -> RoleOption:
    word = cursor.take().value
    if word == "in" and not cursor.accept_any("role", "group"):
        raise cursor.syntax_error()
    role_list(cursor)
    return RoleOption({"in": "addroleto", "admin": "adminmembers"}.get(word, "rolemembers"), "")


def _integer(cursor: Cursor) -> int:
    if cursor.token.kind is not Kind.INTEGER:
        raise cursor.syntax_error()
    return int(cursor.take().value)


def _signed_integer(cursor: Cursor) -> int:
    """``SignedIconst``"""
    if cursor.accept_symbol("-"):
        return -_integer(cursor)
    cursor.accept_symbol("+")
    return _integer(cursor)


def grant(cursor: Cursor) -> Statement:
    """SELECT ON [TABLE] relations TO roles; the forms of other privileges are refused."""
    _privileges(cursor, "GRANT")
    relations = _relations(cursor, "GRANT")
    cursor.expect("to")
    roles = grantee_list(cursor)
    if cursor.accept("with"):
        cursor.expect("grant", "option")
        raise not_supported("WITH GRANT OPTION")
    if cursor.accept("granted"):
        raise not_supported("GRANTED BY")
    cursor.expect_end()
    return GrantSelect(relations, roles, is_grant=True, notices=cursor.notices)


def revoke(cursor: Cursor) -> Statement:
    """[GRANT OPTION FOR] SELECT ON [TABLE] relations FROM roles [CASCADE | RESTRICT]"""
    if cursor.accept("grant", "option", "for"):
        raise not_supported("GRANT OPTION FOR")
    _privileges(cursor, "REVOKE")
    relations = _relations(cursor, "REVOKE")
    cursor.expect("from")
    roles = grantee_list(cursor)
    if cursor.accept("granted"):
        raise not_supported("GRANTED BY")
    cursor.opt_drop_behavior()
    cursor.expect_end()
    return GrantSelect(relations, roles, is_grant=False, notices=cursor.notices)


def _privileges(cursor: Cursor, verb: str) -> None:
    """``privileges``: passes over SELECT and ON; a list without ON grants roles."""
    names, columns = [], False
    while True:
        names.append(column_label(cursor))
        columns = opt_column_list(cursor) is not None or columns
        if not cursor.accept_symbol(","):
            break
    if names == ["all"]:
        cursor.accept("privileges")
    if names != ["all"] and cursor.word() == ("to" if verb == "GRANT" else "from"):
        raise not_supported(f"{verb} of a role")
    cursor.expect("on")
    unknown = [name for name in names if name not in _PRIVILEGES]
    if unknown:
        raise SqlSyntaxError(f'unrecognized privilege type "{unknown[0]}"')
    if names != ["select"] or columns:
        shown = ", ".join(names).upper() + (" of columns" if columns else "")
        raise not_supported(f"{verb} {shown}")


def _relations(cursor: Cursor, verb: str) -> tuple[RangeVar, ...]:
    word = cursor.word()
    if cursor.accept("all") or (word in _OTHER_TARGETS and cursor.word_after() is not None):
        raise not_supported(f"{verb} SELECT ON {str(word).upper()}")
    cursor.accept("table")
    relations = [qualified_name(cursor)]
    while cursor.accept_symbol(","):
        relations.append(qualified_name(cursor))
    return tuple(relations)


_OTHER_TARGETS: Final = words(
    """
    sequence foreign function procedure routine database domain language large parameter schema
    tablespace type
    """
)
