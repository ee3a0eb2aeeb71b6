"""Names of tables and roles as statements write them (gram.y: qualified_name, relation_expr,
RoleSpec).

In: a cursor. Out: ``RangeVar`` and ``RoleSpec``. Which table or role a name means is left to
``penstock.commands``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.errors import SqlSyntaxError
from penstock.sql.cursor import Cursor
from penstock.sql.keywords import RESERVED
from penstock.sql.lexer import Kind, lex

_RESERVED_NAME = "42939"


@dataclass(frozen=True, slots=True)
class RangeVar:
    """A table's name; ``only``: written with ONLY, so without its partitions."""

    name: str
    schema: str | None = None
    catalog: str | None = None
    only: bool = False

    def __str__(self) -> str:
        """As written, without quotes."""
        return ".".join(part for part in (self.catalog, self.schema, self.name) if part)


class RoleKind(Enum):
    """RoleSpecType."""

    NAME = "name"
    CURRENT_ROLE = "CURRENT_ROLE"
    CURRENT_USER = "CURRENT_USER"
    SESSION_USER = "SESSION_USER"
    PUBLIC = "public"


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """A role's name, or a word for one; ``name`` is empty unless ``kind`` is NAME."""

    name: str = ""
    kind: RoleKind = RoleKind.NAME


_ROLE_WORDS = {
    "current_role": RoleKind.CURRENT_ROLE,
    "current_user": RoleKind.CURRENT_USER,
    "session_user": RoleKind.SESSION_USER,
}


def qualified_name(cursor: Cursor) -> RangeVar:
    """``qualified_name``: one to three names with dots between them."""
    return range_var([cursor.name(), *indirection(cursor)])


def parse_table_name(text: str) -> RangeVar:
    """A table's name and nothing else. Raises SqlSyntaxError."""
    cursor = Cursor(lex(text), text)
    name = qualified_name(cursor)
    cursor.expect_end()
    return name


def indirection(cursor: Cursor) -> list[str]:
    """Names behind dots; there may be none.

    Stars and subscripts are read to their end, and found wrong there (check_qualified_name).
    """
    names, wrong = [], False
    while True:
        if cursor.accept_symbol("["):
            cursor.skip_balanced("]")
            cursor.expect_symbol("]")
            wrong = True
        elif not cursor.accept_symbol("."):
            break
        elif cursor.accept_symbol("*"):
            wrong = True
        else:
            names.append(column_label(cursor))
    if wrong:
        raise cursor.syntax_error()
    return names


def range_var(names: list[str]) -> RangeVar:
    """makeRangeVarFromQualifiedName. Raises SqlSyntaxError for more than three names."""
    match names:
        case [name]:
            return RangeVar(name)
        case [schema, name]:
            return RangeVar(name, schema)
        case [catalog, schema, name]:
            return RangeVar(name, schema, catalog)
    raise SqlSyntaxError(f"improper qualified name (too many dotted names): {'.'.join(names)}")


def relation_expr(cursor: Cursor) -> RangeVar:
    """``relation_expr``: t, t *, ONLY t, ONLY (t)."""
    if not cursor.accept("only"):
        found = qualified_name(cursor)
        cursor.accept_symbol("*")
        return found
    parenthesized = cursor.accept_symbol("(")
    found = qualified_name(cursor)
    if parenthesized:
        cursor.expect_symbol(")")
    return RangeVar(found.name, found.schema, found.catalog, only=True)


def column_label(cursor: Cursor) -> str:
    """``ColLabel``: any word, or a quoted identifier."""
    if cursor.token.kind not in (Kind.WORD, Kind.QUOTED):
        raise cursor.syntax_error()
    return cursor.take().value


def column_list(cursor: Cursor) -> tuple[str, ...]:
    """``'(' columnList ')'``"""
    cursor.expect_symbol("(")
    columns = cursor.name_list()
    cursor.expect_symbol(")")
    return columns


def opt_column_list(cursor: Cursor) -> tuple[str, ...] | None:
    """``opt_column_list``: None when there is no list."""
    return column_list(cursor) if cursor.at_symbol("(") else None


def non_reserved_word(cursor: Cursor) -> str:
    """``NonReservedWord``"""
    token = cursor.token
    if token.kind is Kind.QUOTED or (token.kind is Kind.WORD and token.value not in RESERVED):
        return cursor.take().value
    raise cursor.syntax_error()


def role_spec(cursor: Cursor) -> RoleSpec:
    """``RoleSpec``. Raises SqlSyntaxError (42939) for the name "none"."""
    kind = _ROLE_WORDS.get(cursor.word() or "")
    if kind is not None:
        cursor.take()
        return RoleSpec(kind=kind)
    quoted_none = cursor.token.kind is Kind.QUOTED and cursor.token.value == "none"
    if quoted_none or cursor.word() == "none":
        raise SqlSyntaxError('role name "none" is reserved', sqlstate=_RESERVED_NAME)
    name = non_reserved_word(cursor)
    return RoleSpec(kind=RoleKind.PUBLIC) if name == "public" else RoleSpec(name)


def grantee_list(cursor: Cursor) -> tuple[RoleSpec, ...]:
    """``grantee_list``: roles, with or without the word GROUP before each."""
    roles = []
    while True:
        cursor.accept("group")
        roles.append(role_spec(cursor))
        if not cursor.accept_symbol(","):
            return tuple(roles)


def role_list(cursor: Cursor) -> tuple[RoleSpec, ...]:
    """``role_list``"""
    roles = [role_spec(cursor)]
    while cursor.accept_symbol(","):
        roles.append(role_spec(cursor))
    return tuple(roles)


def role_id(cursor: Cursor) -> str:
    """``RoleId``: a name that a role may get. Raises SqlSyntaxError (42939)."""
    role = role_spec(cursor)
    if role.kind is RoleKind.NAME:
        return role.name
    if role.kind is RoleKind.PUBLIC:
        raise SqlSyntaxError('role name "public" is reserved', sqlstate=_RESERVED_NAME)
    raise SqlSyntaxError(
        f"{role.kind.value} cannot be used as a role name here", sqlstate=_RESERVED_NAME
    )
