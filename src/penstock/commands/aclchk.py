"""Who may do what (aclchk.c, acl.c).

In: the executing role, an object's owner, a transaction of the catalog. Out: nothing, or 42501 with
PostgreSQL's words; roles that specifications mean. There is no membership in roles, and CREATE on
schemas and the database cannot be granted: both are the superusers' and the owners'.
"""

from __future__ import annotations

from penstock.catalog import CatalogTransaction, LakeTable
from penstock.commands.scope import CommandScope, CurrentRole
from penstock.errors import InsufficientPrivilege, PenstockError, UndefinedObject
from penstock.sql import RoleKind, RoleSpec


def is_owner(role: CurrentRole, owner: int | None) -> bool:
    """object_ownercheck"""
    return role.superuser or (role.oid is not None and role.oid == owner)


def check_owner(role: CurrentRole, owner: int | None, kind: str, name: str) -> None:
    """Raises InsufficientPrivilege: must be owner of ``kind`` ``name``."""
    if not is_owner(role, owner):
        raise InsufficientPrivilege(f"must be owner of {kind} {name}")


def check_create_in_database(scope: CommandScope) -> None:
    """ACL_CREATE on the database, which nobody but superusers has."""
    if not scope.role.superuser:
        raise InsufficientPrivilege(f"permission denied for database {scope.database}")


def check_create_in_schema(scope: CommandScope, owner: int | None, schema: str) -> None:
    """ACL_CREATE on a schema, which its owner and superusers have."""
    if not is_owner(scope.role, owner):
        raise InsufficientPrivilege(f"permission denied for schema {schema}")


def may_select(transaction: CatalogTransaction, role: CurrentRole, table: LakeTable) -> bool:
    """ACL_SELECT on a table."""
    if is_owner(role, table.owner):
        return True
    return role.oid is not None and transaction.roles.may_select(table.oid, role.oid)


def role_of(transaction: CatalogTransaction, spec: RoleSpec, scope: CommandScope) -> CurrentRole:
    """get_rolespec_tuple. Raises UndefinedObject (42704), PenstockError (XX000)."""
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
    """A session may outlive its role, and another one may have taken the name."""
    if role.oid is not None and transaction.roles.find_oid(role.oid) is None:
        raise PenstockError(f"cache lookup failed for role {role.oid}")
    return role


def check_can_set_role(scope: CommandScope, role: CurrentRole) -> None:
    """check_can_set_role: only superusers become others, since nobody is a member of anything."""
    if not scope.role.superuser and scope.role.oid != role.oid:
        raise InsufficientPrivilege(f'must be able to SET ROLE "{role.name}"')
