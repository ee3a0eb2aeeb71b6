"""What roles may do with tables (acl.c): owners everything, others SELECT where it was granted.

In: a snapshot. Out: pg_class.relacl and the answers of has_table_privilege. Nothing is refused
here; that is ``penstock.commands``.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.identifiers import quoted
from penstock.pg_catalog.snapshot import NODE_OWNER, CatalogSnapshot, CatalogTable

_MAINTAIN_SINCE: Final = 17
_PLAIN: Final = re.compile(r"[A-Za-z0-9_]+\Z")
_SELECT: Final = "SELECT"
_PUBLIC: Final = 0
"""ACL_ID_PUBLIC"""


def access_list(snapshot: CatalogSnapshot, table: CatalogTable, version: int) -> list[str] | None:
    """``{owner=arwdDxt/owner,alice=r/owner}``; None where nothing was ever granted."""
    granted = {role for relation, role in snapshot.select_grants if relation == table.oid}
    grantees = sorted(granted, key=lambda role: (role == _PUBLIC, role))
    if not grantees:
        return None
    names = {role.oid: _quoted(role.name) for role in snapshot.all_roles} | {_PUBLIC: ""}
    owner = names.get(owner_of(table), str(owner_of(table)))
    every = "arwdDxtm" if version >= _MAINTAIN_SINCE else "arwdDxt"
    others = [f"{names.get(role, role)}=r/{owner}" for role in grantees]
    return [f"{owner}={every}/{owner}", *others]


def owner_of(table: CatalogTable) -> int:
    """pg_class.relowner."""
    return NODE_OWNER if table.lake.owner is None else table.lake.owner


def has_privilege(snapshot: CatalogSnapshot, role: str, oid: int, privilege: str) -> bool | None:
    """Whether a role may; None for a table that there is not."""
    table = snapshot.table_by_oid.get(oid)
    if table is None:
        return None
    found = next((known for known in snapshot.all_roles if known.name == role), None)
    if found is None:
        return False
    if found.superuser or found.oid == owner_of(table):
        return True
    wanted = {word.strip().upper() for word in privilege.split(",")}
    return _SELECT in wanted and any(
        (oid, role_oid) in snapshot.select_grants for role_oid in (found.oid, _PUBLIC)
    )


def _quoted(name: str) -> str:
    """putid of acl.c."""
    return name if _PLAIN.match(name) else quoted(name)
