"""CREATE, ALTER and DROP ROLE, GRANT and REVOKE (user.c, aclchk.c).

Passwords leave this file only as SCRAM verifiers. A verifier given as password stays unchanged.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.catalog import Catalog, CatalogTransaction, LakeTable, Role
from penstock.catalog.pg_authid import PUBLIC
from penstock.civil import MICROSECONDS, parse_timestamp
from penstock.commands.aclchk import check_select, is_owner, role_of
from penstock.commands.define import conflicting_options
from penstock.commands.namespace import get_table
from penstock.commands.scope import CommandResult, CommandScope, CurrentRole, notice, warning
from penstock.errors import (
    DuplicateObject,
    FeatureNotSupported,
    InsufficientPrivilege,
    InvalidParameterValue,
    ObjectInUse,
)
from penstock.protocol.answers import Notice
from penstock.protocol.scram import SALT_SIZE, ScramVerifier, is_verifier
from penstock.sql import (
    AlterRole,
    CreateRole,
    DropRole,
    GrantSelect,
    RenameRole,
    RoleKind,
    RoleOption,
    RoleSpec,
)
from penstock.sql.builtin.enum_types import enum_name
from penstock.sql.text.datetime_literals import read_timestamp
from penstock.sqlstate import DependentObjectsStillExist, ReservedName

_RESERVED = "42939"


def create_role(statement: CreateRole, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run CREATE ROLE (CreateRole)."""
    changes = role_changes(statement.options)
    with catalog.write() as transaction:
        if not scope.role.superuser:
            raise InsufficientPrivilege(
                "permission denied to create role",
                detail="Only roles with the CREATEROLE attribute may create roles.",
            )
        _check_name(transaction, scope, statement.name)
        fields = {"login": statement.login} | changes.fields()
        transaction.roles.create(statement.name, **fields)
    return CommandResult("CREATE ROLE", changes.notices)


def alter_role(statement: AlterRole, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run ALTER ROLE (AlterRole). Superusers may change everything, others their own password."""
    changes = role_changes(statement.options)
    with catalog.write() as transaction:
        role = _role_to_alter(transaction, statement.role, scope)
        if not scope.role.superuser:
            _check_alter(changes, role, scope.role)
        transaction.roles.save(replace(role, **changes.fields()))
    return CommandResult("ALTER ROLE", changes.notices)


def _role_to_alter(transaction: CatalogTransaction, spec: RoleSpec, scope: CommandScope) -> Role:
    current = role_of(transaction, spec, scope)
    if current == scope.node_role:
        raise FeatureNotSupported(f'role "{current.name}" is the node itself and cannot be altered')
    return transaction.roles.get(current.name)


def _check_alter(changes: RoleChanges, role: Role, current: CurrentRole) -> None:
    detail = None
    if role.superuser:
        detail = "Only roles with the SUPERUSER attribute may alter roles with the SUPERUSER "
        detail += "attribute."
    elif "superuser" in changes.names:
        detail = "Only roles with the SUPERUSER attribute may change the SUPERUSER attribute."
    elif changes.names - {"password"}:
        detail = "Only roles with the CREATEROLE attribute and the ADMIN option on role "
        detail += f'"{role.name}" may alter this role.'
    elif role.oid != current.oid:
        detail = "To change another role's password, the current user must have the CREATEROLE "
        detail += "attribute and the ADMIN option on the role."
    if detail is not None:
        raise InsufficientPrivilege("permission denied to alter role", detail=detail)


def rename_role(statement: RenameRole, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run ALTER ROLE ... RENAME (RenameRole). The password stays: a SCRAM verifier does not depend
    on the role's name."""
    with catalog.write() as transaction:
        current = role_of(transaction, RoleSpec(statement.name), scope)
        if current.oid == scope.session_role.oid:
            raise FeatureNotSupported("session user cannot be renamed")
        if current.oid == scope.role.oid:
            raise FeatureNotSupported("current user cannot be renamed")
        role = transaction.roles.get(statement.name)
        if not scope.role.superuser:
            raise InsufficientPrivilege(
                "permission denied to rename role",
                detail="Only roles with the CREATEROLE attribute and the ADMIN option on role "
                f'"{role.name}" may rename this role.',
            )
        _check_name(transaction, scope, statement.new_name)
        transaction.roles.save(replace(role, name=statement.new_name))
    return CommandResult("ALTER ROLE")


def _check_name(transaction: CatalogTransaction, scope: CommandScope, name: str) -> None:
    if name.startswith("pg_"):
        raise ReservedName(
            f'role name "{name}" is reserved',
            detail='Role names starting with "pg_" are reserved.',
        )
    if name == scope.node_role.name or transaction.roles.find(name) is not None:
        raise DuplicateObject(f'role "{name}" already exists')


def drop_role(statement: DropRole, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run DROP ROLE: drop all of the roles or none (DropRole)."""
    notices: list[Notice] = []
    with catalog.write() as transaction:
        if not scope.role.superuser:
            raise InsufficientPrivilege(
                "permission denied to drop role",
                detail="Only roles with the CREATEROLE attribute and the ADMIN option on the "
                "target roles may drop roles.",
            )
        for spec in statement.roles:
            if spec.kind is not RoleKind.NAME:
                raise InvalidParameterValue("cannot use special role specifier in DROP ROLE")
            _check_not_in_use(scope, spec.name)
            role = transaction.roles.find(spec.name)
            if role is None and statement.missing_ok:
                notices.append(notice(f'role "{spec.name}" does not exist, skipping'))
                continue
            role = transaction.roles.get(spec.name)
            _check_drop(transaction, role)
            transaction.roles.delete(role.oid)
    return CommandResult("DROP ROLE", tuple(notices))


def _check_not_in_use(scope: CommandScope, name: str) -> None:
    if name == scope.role.name:
        raise ObjectInUse("current user cannot be dropped")
    if name in (scope.session_role.name, scope.node_role.name):
        raise ObjectInUse("session user cannot be dropped")


def _check_drop(transaction: CatalogTransaction, role: Role) -> None:
    owned = _dependents(transaction, role)
    if owned:
        raise DependentObjectsStillExist(
            f'role "{role.name}" cannot be dropped because some objects depend on it',
            detail="\n".join(owned),
        )


def _dependents(transaction: CatalogTransaction, role: Role) -> list[str]:
    """Describe the objects that a role owns or may read, by oid (checkSharedDependencies)."""
    granted = transaction.roles.granted_to(role.oid)
    found: list[tuple[int, str]] = []
    for table in transaction.tables.all():
        if table.owner == role.oid:
            found.append((table.oid, f"owner of table {_table_text(table)}"))
        if table.oid in granted:
            found.append((table.oid, f"privileges for table {_table_text(table)}"))
    objects: list[tuple[Any, str]] = [
        *((enum, f"type {enum_name(enum)}") for enum in transaction.types.all()),
        *((schema, f"schema {schema.name}") for schema in transaction.namespaces.all()),
        *((one, f"publication {one.name}") for one in transaction.publications.all()),
        *((one, f"subscription {one.name}") for one in transaction.subscriptions.all()),
    ]
    found += [(each.oid, f"owner of {what}") for each, what in objects if each.owner == role.oid]
    return [text for _, text in sorted(found, key=lambda each: each[0])]


def _table_text(table: LakeTable) -> str:
    return table.name if table.schema == "public" else table.qualified_name


def grant_select(statement: GrantSelect, catalog: Catalog, scope: CommandScope) -> CommandResult:
    """Run GRANT or REVOKE of SELECT on tables (ExecuteGrantStmt). Only the tables' owners and
    superusers may do so."""
    notices: list[Notice] = []
    with catalog.write() as transaction:
        tables = [get_table(transaction, scope, name) for name in statement.relations]
        grantees = [_grantee(transaction, spec, scope) for spec in statement.roles]
        for table in tables:
            if not is_owner(scope.role, table.owner):
                notices.append(_no_grant_option(transaction, scope, table, statement.is_grant))
                continue
            for grantee in grantees:
                if grantee is not None and statement.is_grant:
                    transaction.roles.grant_select(table.oid, grantee)
                elif grantee is not None:
                    transaction.roles.revoke_select(table.oid, grantee)
    return CommandResult("GRANT" if statement.is_grant else "REVOKE", tuple(notices))


def _no_grant_option(
    transaction: CatalogTransaction, scope: CommandScope, table: LakeTable, is_grant: bool
) -> Notice:
    """Return a warning if the role may read the table but not grant; raise an error if it may not
    even read the table (restrict_and_check_grant)."""
    check_select(transaction, scope.role, table)
    if is_grant:
        return warning(f'no privileges were granted for "{table.name}"', sqlstate="01007")
    return warning(f'no privileges could be revoked for "{table.name}"', sqlstate="01006")


def _grantee(transaction: CatalogTransaction, spec: RoleSpec, scope: CommandScope) -> int | None:
    """Return the oid of a role or PUBLIC; None for the node itself, which needs no privileges."""
    if spec.kind is RoleKind.PUBLIC:
        return PUBLIC
    return role_of(transaction, spec, scope).oid


# Options of roles (user.c, the loops over DefElems).
#
# An option that means nothing on a node is accepted if it changes nothing, and refused otherwise.

_FIELDS: Final = {
    "superuser": "superuser",
    "canlogin": "login",
    "isreplication": "replication",
}
_NOT_HERE: Final = {
    "createdb": "CREATEDB",
    "createrole": "CREATEROLE",
    "bypassrls": "BYPASSRLS",
}
"""The role attributes that are not supported on a node."""
_MD5_LENGTH: Final = 35


@dataclass(frozen=True, slots=True)
class RoleChanges:
    """The changes of a role. ``names``: the options of the statement; ``values``: fields of
    ``Role``, including the verifier."""

    names: frozenset[str] = frozenset()
    values: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    notices: tuple[Notice, ...] = ()

    def fields(self) -> dict[str, Any]:
        """Return the changes as keyword arguments of ``Role``."""
        return dict(self.values)


def role_changes(options: Sequence[RoleOption]) -> RoleChanges:
    """Read the options of a role. Raises InvalidParameterValue, FeatureNotSupported; SqlSyntaxError
    for a repeated option."""
    names: set[str] = set()
    values: list[tuple[str, Any]] = []
    notices: list[Notice] = []
    for option in options:
        if option.name in names:
            raise conflicting_options()
        names.add(option.name)
    for option in options:
        if option.name in _FIELDS:
            values.append((_FIELDS[option.name], option.value))
        elif option.name == "password":
            values.append(("verifier", _verifier(option.value, notices)))
        elif option.name == "connectionlimit":
            values.append(("connection_limit", _limit(option.value)))
        elif option.name == "validUntil":
            values.append(("valid_until", _time(str(option.value))))
        elif option.name == "sysid":
            notices.append(notice("SYSID can no longer be specified"))
        else:
            _check_unused(option)
    return RoleChanges(frozenset(names), tuple(values), tuple(notices))


def _check_unused(option: RoleOption) -> None:
    if option.name in _NOT_HERE and option.value:
        raise FeatureNotSupported(f"role attribute {_NOT_HERE[option.name]} is not supported")
    if option.value == "":
        raise FeatureNotSupported("membership in roles is not supported")


def _verifier(password: Any, notices: list[Notice]) -> str | None:
    """Return the verifier of a password (encrypt_password); None clears it."""
    if password is None:
        return None
    if password == "":
        notices.append(notice("empty string is not a valid password, clearing password"))
        return None
    if is_verifier(password):
        return str(ScramVerifier.parse(password))
    if password.startswith("md5") and len(password) == _MD5_LENGTH:
        raise FeatureNotSupported(
            "MD5-encrypted passwords are not supported",
            hint="Give the password itself, or a SCRAM-SHA-256 verifier.",
        )
    return str(ScramVerifier.of_password(password, secrets.token_bytes(SALT_SIZE)))


def _limit(limit: Any) -> int:
    if limit < -1:
        raise InvalidParameterValue(f"invalid connection limit: {limit}")
    return int(limit)


def _time(text: str) -> float | None:
    """Read VALID UNTIL (timestamptz_in), in UTC if it has no zone. None means for ever."""
    printed = read_timestamp(text, zone=True)
    if printed == "infinity":
        return None
    moment = parse_timestamp(printed.encode(), zone=True)
    if moment is None:
        raise FeatureNotSupported(f'VALID UNTIL "{printed}" is not supported')
    return moment / MICROSECONDS
