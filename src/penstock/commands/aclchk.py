"""Checks of privileges (aclchk.c, acl.c).

A check raises 42501 with PostgreSQL's message unless the role has the privilege. Roles have no
members, and CREATE cannot be granted: superusers may create objects everywhere, the owner of a
schema may create objects in it.
"""

from __future__ import annotations

from penstock.catalog import CatalogTransaction, LakeTable
from penstock.commands.scope import CommandScope, CurrentRole
from penstock.errors import InsufficientPrivilege, PenstockError, UndefinedObject
from penstock.sql import RoleKind, RoleSpec


def is_owner(role: CurrentRole, owner: int | None) -> bool:
    """Tell whether the role owns an object, or is a superuser (object_ownercheck)."""
    return role.superuser or (role.oid is not None and role.oid == owner)


def check_owner(role: CurrentRole, owner: int | None, kind: str, name: str) -> None:
    """Raise InsufficientPrivilege (must be owner of ``kind`` ``name``) unless the role owns it."""
    if not is_owner(role, owner):
        raise InsufficientPrivilege(f"must be owner of {kind} {name}")


def check_create_in_database(scope: CommandScope) -> None:
    """Check ACL_CREATE on the database: only superusers have it."""
    if not scope.role.superuser:
        raise InsufficientPrivilege(f"permission denied for database {scope.database}")


def check_create_in_schema(scope: CommandScope, owner: int | None, schema: str) -> None:
    """Check ACL_CREATE on a schema: its owner and superusers have it."""
    if not is_owner(scope.role, owner):
        raise InsufficientPrivilege(f"permission denied for schema {schema}")


def may_select(transaction: CatalogTransaction, role: CurrentRole, table: LakeTable) -> bool:
    """Tell whether the role has ACL_SELECT on a table."""
    if is_owner(role, table.owner):
        return True
    return role.oid is not None and transaction.roles.may_select(table.oid, role.oid)


def check_select(transaction: CatalogTransaction, role: CurrentRole, table: LakeTable) -> None:
    """Raise InsufficientPrivilege unless the role has ACL_SELECT on a table."""
    if not may_select(transaction, role, table):
        raise InsufficientPrivilege(f"permission denied for table {table.name}")


def role_of(transaction: CatalogTransaction, spec: RoleSpec, scope: CommandScope) -> CurrentRole:
    """Return the role of a role specification (get_rolespec_tuple). Raises UndefinedObject (42704),
    PenstockError (XX000)."""
    match spec.kind:
        case RoleKind.CURRENT_ROLE | RoleKind.CURRENT_USER:
            return _existing(transaction, scope.role)
        case RoleKind.SESSION_USER:
            return _existing(transaction, scope.session_role)
        case RoleKind.PUBLIC:
            raise UndefinedObject('role "public" does not exist')
    found = transaction.roles.find(spec.name)
    if found is None and spec.name == scope.node_role.name:
        return scope.node_role
    return CurrentRole.of(found or transaction.roles.get(spec.name))


def _existing(transaction: CatalogTransaction, role: CurrentRole) -> CurrentRole:
    """Return the session's role. Raises PenstockError (XX000) if it was dropped: another role may
    have its name now."""
    if role.oid is not None and transaction.roles.find_oid(role.oid) is None:
        raise PenstockError(f"cache lookup failed for role {role.oid}")
    return role


def check_can_set_role(scope: CommandScope, role: CurrentRole) -> None:
    """Check SET ROLE (check_can_set_role). Roles have no members, so only superusers may become
    another role."""
    if not scope.role.superuser and scope.role.oid != role.oid:
        raise InsufficientPrivilege(f'must be able to SET ROLE "{role.name}"')
