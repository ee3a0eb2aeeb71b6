"""Roles as they are now (miscinit.c, superuser.c): sessions keep who they are, never what they may.

In: the catalog, the role that has logged in. Out: the same role with the attributes that it has at
this moment. One that was dropped is still itself and has no attribute left, as in PostgreSQL.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.catalog import Catalog, Role
from penstock.errors import InsufficientPrivilege
from penstock.walsender.authentication import LoginRole

_ONLY_WITH_DETAIL_SINCE = 16


def login_role(role: Role) -> LoginRole:
    """A row of pg_authid as sessions need it."""
    return LoginRole(
        oid=role.oid,
        name=role.name,
        login=role.login,
        replication=role.replication,
        superuser=role.superuser,
        verifier=role.verifier,
        valid_until=role.valid_until,
        connection_limit=role.connection_limit,
    )


def role_now(catalog: Catalog, role: LoginRole) -> LoginRole:
    """The role that a session has logged in as, looked up again."""
    with catalog.read() as t:
        found = t.roles.find_oid(role.oid)
    if found is not None:
        return login_role(found)
    return replace(
        role, login=False, replication=False, superuser=False, verifier=None, dropped=True
    )


def check_replication(*, superuser: bool, replication: bool, version: int) -> None:
    """CheckSlotPermissions. Raises InsufficientPrivilege."""
    if superuser or replication:
        return
    if version < _ONLY_WITH_DETAIL_SINCE:
        raise InsufficientPrivilege(
            "must be superuser or replication role to use replication slots"
        )
    raise InsufficientPrivilege(
        "permission denied to use replication slots",
        detail="Only roles with the REPLICATION attribute may use replication slots.",
    )
