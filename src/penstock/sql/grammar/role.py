"""Statements about roles and their privileges (parsenodes.h, CreateRoleStmt, GrantStmt).

No statement shows a password in its repr. SELECT on tables is the only privilege; GRANT
and REVOKE refuse any other privilege by name (0A000).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.errors import SqlSyntaxError
from penstock.sql.grammar.names import (
    Readers,
    cascades,
    def_elems,
    not_supported,
    relations,
    role_spec,
    role_specs,
)
from penstock.sql.grammar.parsenodes import RangeVar, RoleSpec, Statement
from penstock.sql.grammar.raw_node import Json, RawNode
from penstock.sql.grammar.source import Source


@dataclass(frozen=True, slots=True)
class RoleOption:
    """One option. ``name``: that of PostgreSQL's DefElem (superuser, canlogin, password ...).

    ``value``: bool, int or str; None for PASSWORD NULL; "" for an option with a list of roles.
    """

    name: str
    value: bool | int | str | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class CreateRole(Statement):
    """CREATE ROLE | USER | GROUP name [WITH] options; ``login``: the default for this word."""

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
    """GRANT SELECT ON [TABLE] relations TO roles, or REVOKE if ``is_grant`` is False."""

    relations: tuple[RangeVar, ...]
    roles: tuple[RoleSpec, ...]
    is_grant: bool


_PRIVILEGE_WORDS: Final = """
all select insert update delete truncate references trigger maintain usage create connect
temporary temp execute set alter
"""
_PRIVILEGES: Final = frozenset(_PRIVILEGE_WORDS.split())


def _create(raw: RawNode, _source: Source) -> CreateRole:
    login = raw.take("stmt_type") == "ROLESTMT_USER"
    return CreateRole(raw.take("role"), _options(raw), login)


def _alter(raw: RawNode, _source: Source) -> AlterRole:
    if raw.take("action") != 1:
        raise not_supported("ALTER GROUP ... DROP USER")
    return AlterRole(role_spec(raw.take("role")), _options(raw))


def _options(raw: RawNode) -> tuple[RoleOption, ...]:
    return tuple(RoleOption(name, _value(argument)) for name, argument in def_elems(raw))


def _value(argument: Json | None) -> bool | int | str | None:
    """Return an option's value: None for PASSWORD NULL, "" for a list of roles."""
    match argument:
        case None:
            return None
        case {"Boolean": fields}:
            return bool(fields.get("boolval"))
        case {"Integer": fields}:
            return int(fields.get("ival", 0))
        case {"String": fields}:
            return str(fields.get("sval", ""))
        case {"List": _}:
            return ""
    raise not_supported("this value of a role's option")


def _rename(raw: RawNode, _source: Source) -> RenameRole:
    raw.ignore("relationType", "behavior")
    return RenameRole(raw.take("subname"), raw.take("newname"))


def _drop(raw: RawNode, _source: Source) -> DropRole:
    return DropRole(role_specs(raw, "roles"), bool(raw.take("missing_ok")))


def _grant(raw: RawNode, _source: Source) -> GrantSelect:
    is_grant = bool(raw.take("is_grant"))
    verb = "GRANT" if is_grant else "REVOKE"
    if raw.take("grant_option"):
        raise not_supported("WITH GRANT OPTION" if is_grant else "GRANT OPTION FOR")
    if raw.take("grantor"):
        raise not_supported("GRANTED BY")
    _check_privileges(raw, verb)
    target, kind = raw.take("targtype"), raw.take("objtype")
    if target != "ACL_TARGET_OBJECT" or kind != "OBJECT_TABLE":
        many = "ALL " if target != "ACL_TARGET_OBJECT" else ""
        raise not_supported(f"{verb} SELECT ON {many}{kind.removeprefix('OBJECT_')}")
    cascades(raw)
    return GrantSelect(relations(raw, "objects"), role_specs(raw, "grantees"), is_grant)


def _check_privileges(raw: RawNode, verb: str) -> None:
    names, columns = [], False
    for node in raw.nodes("privileges"):
        privilege = RawNode.of(node)
        names.append(privilege.take("priv_name") or "all")
        columns = bool(privilege.nodes("cols")) or columns
        privilege.done()
    unknown = [name for name in names if name not in _PRIVILEGES]
    if unknown:
        raise SqlSyntaxError(f'unrecognized privilege type "{unknown[0]}"')
    if names != ["select"] or columns:
        shown = ", ".join(names or ["all"]).upper() + (" of columns" if columns else "")
        raise not_supported(f"{verb} {shown}")


def _grant_role(raw: RawNode, _source: Source) -> GrantSelect:
    raise not_supported(f"{'GRANT' if raw.take('is_grant') else 'REVOKE'} of a role")


def _set(_raw: RawNode, _source: Source) -> AlterRole:
    raise not_supported("ALTER ROLE ... SET")


READERS: Final[Readers] = {
    "CreateRoleStmt": _create,
    "AlterRoleStmt": _alter,
    "AlterRoleSetStmt": _set,
    "RenameStmt OBJECT_ROLE": _rename,
    "DropRoleStmt": _drop,
    "GrantStmt": _grant,
    "GrantRoleStmt": _grant_role,
}
