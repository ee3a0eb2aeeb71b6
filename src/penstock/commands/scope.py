"""Who executes a statement, and where (miscinit.c, GetUserId; namespace.c, search_path).

In: what a session knows. Out: frozen values that every command gets. A node's own calls run as a
superuser that is no row of the catalog.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.catalog import Role
from penstock.lakehouse.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class CurrentRole:
    """The executing role. ``oid`` None: the node itself, which owns what nobody else owns."""

    name: str
    oid: int | None = None
    superuser: bool = False

    @classmethod
    def of(cls, role: Role) -> CurrentRole:
        """A role of the catalog."""
        return cls(role.name, role.oid, role.superuser)


NODE_ROLE: Final = CurrentRole("penstock", superuser=True)


@dataclass(frozen=True, slots=True)
class CommandScope:
    """Where a statement runs. ``warehouse`` None: statements about tables are refused.

    ``search_path``: schemas for names without one; the first is where CREATE puts things.
    ``node_role``: the superuser that is no row of the catalog, under the name that it has.
    """

    warehouse: Warehouse | None = field(default=None, compare=False)
    role: CurrentRole = NODE_ROLE
    session_role: CurrentRole = NODE_ROLE
    node_role: CurrentRole = NODE_ROLE
    database: str = "lake"
    search_path: tuple[str, ...] = ("public",)
