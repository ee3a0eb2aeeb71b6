"""Roles and their grants of SELECT (pg_authid.h; relacl of pg_class.h).

A password is kept as a SCRAM verifier only, and shown to nobody. ``penstock.commands`` and
``penstock.walsender`` check rights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    Integer,
    String,
    Text,
    and_,
)

from penstock.catalog import pg_control
from penstock.catalog.metadata import StoredTable, TableAccess
from penstock.errors import DuplicateObject, UndefinedObject

NO_LIMIT: Final = -1
PUBLIC: Final = 0
"""The grantee that stands for every role (ACL_ID_PUBLIC)."""


@dataclass(frozen=True, slots=True)
class Role:
    """A role. ``verifier``: PostgreSQL's ``SCRAM-SHA-256$...``; None if the role has no password,
    and then nobody can log in as it with a password.

    ``valid_until``: seconds since 1970 until which the password is valid, None for ever.
    ``connection_limit``: -1 for none. ``dropped``: the role was dropped after a session had logged
    in as it.
    """

    oid: Annotated[int, Column("oid", BigInteger, primary_key=True, autoincrement=False)]
    name: Annotated[str, Column("rolname", String(64), nullable=False, unique=True)]
    superuser: Annotated[bool, Column("rolsuper", Boolean, nullable=False)] = False
    login: Annotated[bool, Column("rolcanlogin", Boolean, nullable=False)] = False
    replication: Annotated[bool, Column("rolreplication", Boolean, nullable=False)] = False
    connection_limit: Annotated[int, Column("rolconnlimit", Integer, nullable=False)] = NO_LIMIT
    verifier: Annotated[str | None, Column("rolpassword", Text)] = field(default=None, repr=False)
    valid_until: Annotated[float | None, Column("rolvaliduntil", Float(53))] = None
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class _Grant:
    """A GRANT of SELECT on a table to a role."""

    relid: Annotated[int, Column("relid", BigInteger, primary_key=True, autoincrement=False)]
    grantee: Annotated[int, Column("grantee", BigInteger, primary_key=True, autoincrement=False)]


_ROLES: Final = StoredTable("penstock_authid", Role)
_SELECT: Final = StoredTable("penstock_select_grant", _Grant)


class PgAuthid(TableAccess):
    """The table, within one transaction."""

    def all(self) -> tuple[Role, ...]:
        """Return every role in the order of creation."""
        return _ROLES.all(self.connection)

    def find(self, name: str) -> Role | None:
        """Return the role of that name, or None."""
        return _ROLES.find(self.connection, _ROLES.c.rolname == name)

    def find_oid(self, oid: int) -> Role | None:
        """Return the role of that OID, or None."""
        return _ROLES.find(self.connection, _ROLES.c.oid == oid)

    def get(self, name: str) -> Role:
        """Return the role of that name. Raises UndefinedObject (42704)."""
        found = self.find(name)
        if found is None:
            raise UndefinedObject(f'role "{name}" does not exist')
        return found

    def create(self, name: str, **attributes: Any) -> Role:
        """Insert a role with these fields of ``Role``. Raises DuplicateObject (42710)."""
        if self.find(name) is not None:
            raise DuplicateObject(f'role "{name}" already exists')
        role = Role(pg_control.new_oid(self.connection), name, **attributes)
        _ROLES.insert(self.connection, role)
        return role

    def save(self, role: Role) -> None:
        """Write a changed row back (same oid); no effect when it is gone."""
        _ROLES.update(self.connection, role)

    def delete(self, oid: int) -> None:
        """Remove the role and the grants to it."""
        _SELECT.delete(self.connection, _SELECT.c.grantee == oid)
        _ROLES.delete(self.connection, _ROLES.c.oid == oid)

    def grant_select(self, relid: int, grantee: int) -> None:
        """Grant SELECT on a table; no effect if it is already granted."""
        if _SELECT.find(self.connection, _granted(relid, grantee)) is None:
            _SELECT.insert(self.connection, _Grant(relid, grantee))

    def revoke_select(self, relid: int, grantee: int) -> None:
        """Revoke SELECT on a table; no effect if it was not granted."""
        _SELECT.delete(self.connection, _granted(relid, grantee))

    def grants(self) -> frozenset[tuple[int, int]]:
        """Return (table, role) of every GRANT SELECT; role 0 is PUBLIC."""
        return frozenset((one.relid, one.grantee) for one in _SELECT.all(self.connection))

    def revoke_all(self, relid: int) -> None:
        """Forget every grant on a table that is gone."""
        _SELECT.delete(self.connection, _SELECT.c.relid == relid)

    def granted_to(self, grantee: int) -> tuple[int, ...]:
        """Return the oids of the tables on which a role was granted SELECT."""
        return tuple(g.relid for g in _SELECT.all(self.connection, _SELECT.c.grantee == grantee))

    def may_select(self, relid: int, grantee: int) -> bool:
        """Return whether the role, or PUBLIC, was granted SELECT.

        Ownership and superusers are left to the caller.
        """
        found = (_SELECT.c.relid == relid, _SELECT.c.grantee.in_((grantee, PUBLIC)))
        return bool(_SELECT.all(self.connection, *found))


def _granted(relid: int, grantee: int) -> Any:
    return and_(_SELECT.c.relid == relid, _SELECT.c.grantee == grantee)
