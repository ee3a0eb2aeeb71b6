"""Names of tables and roles in statements (parsenodes.h: RangeVar, RoleSpec).

In: names as written. Out: frozen values. ``penstock.commands`` finds the tables and roles that they
mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class RangeVar:
    """A table's name. ``only``: it was written with ONLY, so without its partitions."""

    name: str
    schema: str | None = None
    catalog: str | None = None
    only: bool = False

    def __str__(self) -> str:
        """Return the name as written, without quotes."""
        return ".".join(part for part in (self.catalog, self.schema, self.name) if part)


class RoleKind(Enum):
    """RoleSpecType."""

    NAME = "name"
    CURRENT_ROLE = "CURRENT_ROLE"
    CURRENT_USER = "CURRENT_USER"
    SESSION_USER = "SESSION_USER"
    PUBLIC = "public"


@dataclass(frozen=True, slots=True)
class RoleSpec:
    """A role's name, or a word for one; ``name`` is empty unless ``kind`` is NAME."""

    name: str = ""
    kind: RoleKind = RoleKind.NAME
