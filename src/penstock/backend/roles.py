"""Roles as they are now (miscinit.c, superuser.c): sessions keep who they are, never what they may.

In: the catalog, the role that has logged in. Out: the same role with the attributes that it has at
this moment. One that was dropped is still itself and has no attribute left, as in PostgreSQL.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.catalog import Catalog, Role


def role_now(catalog: Catalog, role: Role) -> Role:
    """The role that a session has logged in as, looked up again."""
    with catalog.read() as t:
        found = t.roles.find_oid(role.oid)
    if found is not None:
        return found
    return replace(
        role, login=False, replication=False, superuser=False, verifier=None, dropped=True
    )
