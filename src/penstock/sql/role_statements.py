"""Statements about roles and what they may read (parsenodes.h, CreateRoleStmt, GrantStmt).

In: what the grammar found. Out: frozen values, of which none shows a password in its repr (law 9).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.sql.object_names import RangeVar, RoleSpec
from penstock.sql.statements import Statement


@dataclass(frozen=True, slots=True)
class RoleOption:
    """One option: ``name`` as PostgreSQL's DefElem has it (superuser, canlogin, password ...).

    ``value``: bool, int, str, or None for PASSWORD NULL; "" for options that only have lists.
    """

    name: str
    value: bool | int | str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class CreateRole(Statement):
    """CREATE ROLE | USER | GROUP name [WITH] options; ``login``: what the word alone means."""

    name: str
    options: tuple[RoleOption, ...] = ()
    login: bool = False


@dataclass(frozen=True, slots=True)
class AlterRole(Statement):
    """ALTER ROLE | USER role [WITH] options."""

    role: RoleSpec
    options: tuple[RoleOption, ...] = ()


@dataclass(frozen=True, slots=True)
class RenameRole(Statement):
    """ALTER ROLE | USER name RENAME TO new_name."""

    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class DropRole(Statement):
    """DROP ROLE | USER | GROUP [IF EXISTS] roles."""

    roles: tuple[RoleSpec, ...]
    missing_ok: bool = False


@dataclass(frozen=True, slots=True)
class GrantSelect(Statement):
    """GRANT SELECT ON [TABLE] relations TO roles; REVOKE where ``is_grant`` is False."""

    relations: tuple[RangeVar, ...]
    roles: tuple[RoleSpec, ...]
    is_grant: bool
