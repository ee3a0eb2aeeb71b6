"""Rows of roles, the database and settings.

In: a snapshot and who asks. Out: rows by column name. Passwords: pg_roles and pg_user show
``********``; pg_authid and pg_shadow are for superusers alone, as in PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.catalog.pg_authid import Role
from penstock.guc.guc_tables import settings
from penstock.pg_catalog.relation_rows import Row
from penstock.pg_catalog.session_facts import SessionFacts
from penstock.pg_catalog.snapshot import NODE_OWNER, CatalogSnapshot

HIDDEN: Final = "********"
_UTF8: Final = 6


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
    """Settings of the session; numbers in their unit, as SHOW does not tell them."""
    known = settings(facts.version)
    for name, value in sorted(facts.settings.items()):
        setting = known.get(name)
        if setting is None:
            yield {
                "name": name,
                "setting": value,
                "context": "internal",
                "vartype": "string",
                "source": "default",
                "reset_val": value,
                "boot_val": value,
            }
            continue
        number = value if setting.context == "internal" else setting.read(value)
        yield {
            "name": setting.name,
            "setting": number,
            "unit": setting.unit or None,
            "category": "Preset Options",
            "context": setting.context,
            "vartype": setting.kind,
            "source": "default" if number == setting.boot else "session",
            "min_val": setting.low or None,
            "max_val": setting.high or None,
            "enumvals": list(setting.choices) or None,
            "boot_val": setting.boot,
            "reset_val": number,
        }


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
