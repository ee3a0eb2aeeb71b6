"""Rights of roles on tables (acl.c): owners have all, other roles SELECT if it was granted.

This file computes pg_class.relacl and the answers of has_table_privilege from a snapshot, and lists
the catalogs that not everybody may read. ``penstock.commands`` refuses statements without a right.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from penstock.catalog.pg_authid import Role
from penstock.errors import InvalidParameterValue, PenstockError, UndefinedObject
from penstock.identifiers import quoted
from penstock.pg_catalog.relations import CATALOG_OIDS
from penstock.pg_catalog.snapshot import NODE_OWNER, CatalogSnapshot, CatalogTable

_MAINTAIN_SINCE: Final = 17
_PLAIN: Final = re.compile(r"[A-Za-z0-9_]+\Z")
_SELECT: Final = "SELECT"
_PUBLIC: Final = 0
"""The oid that stands for PUBLIC (ACL_ID_PUBLIC)."""
SUPERUSERS_VIEWS: Final = frozenset(
    [
        "pg_aios",
        "pg_backend_memory_contexts",
        "pg_config",
        "pg_file_settings",
        "pg_hba_file_rules",
        "pg_ident_file_mappings",
        "pg_replication_origin_status",
        "pg_shadow",
        "pg_shmem_allocations",
        "pg_shmem_allocations_numa",
    ]
)
SUPERUSERS: Final = SUPERUSERS_VIEWS | frozenset(
    [
        "pg_authid",
        "pg_largeobject",
        "pg_statistic",
        "pg_statistic_ext_data",
        "pg_subscription",
        "pg_user_mapping",
    ]
)
"""The catalogs that PUBLIC may not read (REVOKE in system_views.sql)."""
_CATALOGS: Final = {oid: name for name, oid in CATALOG_OIDS.items()}
_GRANT_OPTION: Final = " WITH GRANT OPTION"
_OF_TABLES: Final = frozenset(
    ["SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"]
)


def access_list(snapshot: CatalogSnapshot, table: CatalogTable, version: int) -> list[str] | None:
    """Return ``{owner=arwdDxt/owner,alice=r/owner}``; None if nothing was ever granted."""
    granted = {role for relation, role in snapshot.select_grants if relation == table.oid}
    grantees = sorted(granted, key=lambda role: (role == _PUBLIC, role))
    if not grantees:
        return None
    names = {role.oid: _quoted(role.name) for role in snapshot.all_roles} | {_PUBLIC: ""}
    owner = names.get(owner_of(table), str(owner_of(table)))
    others = [f"{names.get(role, role)}=r/{owner}" for role in grantees]
    return [*acl_default(snapshot, "r", owner_of(table), version), *others]


_DEFAULTS: Final[Mapping[str, tuple[str, str]]] = {
    "c": ("", ""),
    "r": ("", "arwdDxtm"),
    "s": ("", "rwU"),
    "d": ("Tc", "CTc"),
    "f": ("X", "X"),
    "l": ("U", "U"),
    "L": ("", "rw"),
    "n": ("", "UC"),
    "t": ("", "C"),
    "F": ("", "U"),
    "S": ("", "U"),
    "T": ("U", "U"),
    "p": ("", "sA"),
}
"""By kind of object: the rights of PUBLIC and of the owner, unless something was granted."""


def acl_default(snapshot: CatalogSnapshot, kind: str, owner: int, version: int) -> list[str]:
    """Return the rights of a new object (acl.c, acldefault). Raises PenstockError (XX000)."""
    if kind not in _DEFAULTS:
        raise PenstockError(f"unrecognized object type abbreviation: {kind}", sqlstate="XX000")
    names = {role.oid: _quoted(role.name) for role in snapshot.all_roles}
    name = names.get(owner, str(owner))
    items = []
    for grantee, rights in zip(("", name), _DEFAULTS[kind], strict=True):
        known = rights if version >= _MAINTAIN_SINCE else rights.replace("m", "")
        if known:
            items.append(f"{grantee}={known}/{name}")
    return items


def owner_of(table: CatalogTable) -> int:
    """Return pg_class.relowner."""
    return NODE_OWNER if table.lake.owner is None else table.lake.owner


def has_privilege(
    snapshot: CatalogSnapshot, role: str, oid: int, privilege: str, version: int
) -> bool | None:
    """Tell whether a role has a privilege; None if the relation does not exist. Raises
    PenstockError (22023, 42704)."""
    wanted = _wanted(privilege, version)
    found = role_named(snapshot, role)
    table = snapshot.table_by_oid.get(oid)
    catalog = _CATALOGS.get(oid)
    if table is None and catalog is None:
        return None
    owner = NODE_OWNER if table is None else owner_of(table)
    if found is not None and (found.superuser or found.oid == owner):
        return True
    if table is None:
        return _SELECT in wanted and catalog not in SUPERUSERS
    roles = {_PUBLIC} if found is None else {_PUBLIC, found.oid}
    return _SELECT in wanted and any((oid, each) in snapshot.select_grants for each in roles)


def _wanted(privilege: str, version: int) -> set[str]:
    """Return the named privileges (convert_any_priv_string)."""
    wanted = {word.strip().upper() for word in privilege.split(",")}
    known = _OF_TABLES | ({"MAINTAIN"} if version >= _MAINTAIN_SINCE else set())
    for word in (each.strip() for each in privilege.split(",")):
        if word.upper().removesuffix(_GRANT_OPTION) not in known:
            raise InvalidParameterValue(f'unrecognized privilege type: "{word}"')
    return wanted


def role_named(snapshot: CatalogSnapshot, name: str) -> Role | None:
    """Find a role by name or oid. Return None for a role with only PUBLIC's rights, such as that of
    a session whose role was dropped."""
    if not name:
        return None
    for role in snapshot.all_roles:
        if role.name == name:
            return role
    by_oid = [role for role in snapshot.all_roles if str(role.oid) == name]
    if not by_oid and name != "public" and not name.isdecimal():
        raise UndefinedObject(f'role "{name}" does not exist')
    return by_oid[0] if by_oid else None


def _quoted(name: str) -> str:
    """Quote a role's name as acl.c does (putid)."""
    return name if _PLAIN.match(name) else quoted(name)
