"""Rows of roles, the database and settings.

In: a snapshot and who asks. Out: rows by column name. Passwords: pg_roles and pg_user show
``********``; pg_authid and pg_shadow are for superusers alone, as in PostgreSQL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from penstock.catalog.pg_authid import Role
from penstock.walsender.pg_catalog.relation_rows import Row
from penstock.walsender.pg_catalog.snapshot import NODE_OWNER, CatalogSnapshot, SessionFacts

HIDDEN: Final = "********"
_UTF8: Final = 6
_MILLISECONDS: Final = frozenset(("wal_sender_timeout",))
_TIME: Final = re.compile(r"([0-9.]+)\s*(ms|s|min|h|d)?")
_UNITS: Final = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def _role(role: Role) -> Row:
    return {
        "oid": role.oid,
        "rolname": role.name,
        "rolsuper": role.superuser,
        "rolinherit": True,
        "rolcreaterole": role.superuser,
        "rolcreatedb": role.superuser,
        "rolcanlogin": role.login,
        "rolreplication": role.replication,
        "rolconnlimit": role.connection_limit,
        "rolvaliduntil": role.valid_until,
        "rolbypassrls": role.superuser,
    }


def pg_authid(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Roles with the verifiers of their passwords."""
    for role in snapshot.all_roles:
        yield _role(role) | {"rolpassword": role.verifier}


def pg_roles(snapshot: CatalogSnapshot) -> Iterator[Row]:
    """Roles without passwords."""
    for role in snapshot.all_roles:
        yield _role(role) | {"rolpassword": HIDDEN}


def pg_user(snapshot: CatalogSnapshot, *, shadow: bool = False) -> Iterator[Row]:
    """Roles that can log in; ``shadow``: with verifiers."""
    for role in snapshot.all_roles:
        if role.login:
            yield {
                "usename": role.name,
                "usesysid": role.oid,
                "usecreatedb": role.superuser,
                "usesuper": role.superuser,
                "userepl": role.replication,
                "usebypassrls": role.superuser,
                "passwd": role.verifier if shadow else HIDDEN,
                "valuntil": role.valid_until,
            }


def pg_database(snapshot: CatalogSnapshot, version: int) -> Iterator[Row]:
    """The one database."""
    yield {
        "oid": snapshot.database_oid,
        "datname": snapshot.database,
        "datdba": NODE_OWNER,
        "encoding": _UTF8,
        "datlocprovider": "c",
        "datallowconn": True,
        "datconnlimit": -1,
        "datcollate": "C",
        "datctype": "C",
        "datlastsysoid": 0 if version < 15 else None,
    }


def pg_settings(facts: SessionFacts) -> Iterator[Row]:
    """Settings of the session; times as numbers of their unit, as SHOW does not tell them."""
    for name, value in sorted(facts.settings.items()):
        unit = None
        if name in _MILLISECONDS:
            value, unit = _in_milliseconds(value), "ms"
        yield {
            "name": name,
            "setting": value,
            "unit": unit,
            "category": "Preset Options",
            "context": "user",
            "vartype": "string",
            "source": "default",
            "reset_val": value,
            "boot_val": value,
        }


def _in_milliseconds(value: str) -> str:
    found = _TIME.fullmatch(value)
    if found is None:
        return value
    return str(round(float(found[1]) * _UNITS[found[2] or "ms"]))


def pg_stat_activity(snapshot: CatalogSnapshot, facts: SessionFacts) -> Iterator[Row]:
    """The asking session, where the node has not told of all."""
    roles = {role.name: role.oid for role in snapshot.all_roles}
    yield {
        "datid": snapshot.database_oid,
        "datname": snapshot.database,
        "pid": facts.pid,
        "usesysid": roles.get(facts.user),
        "usename": facts.user,
        "application_name": facts.settings.get("application_name", ""),
        "state": "active",
        "backend_type": "client backend",
    }
