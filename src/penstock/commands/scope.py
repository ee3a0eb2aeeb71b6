"""Who executes a statement, and where (miscinit.c, GetUserId; namespace.c, search_path).

In: what a session knows. Out: frozen values that every command gets. A node's own calls run as a
superuser that is no row of the catalog.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from penstock.catalog import Role
from penstock.lakehouse.warehouse import Warehouse
from penstock.relation import AttGenerated


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
class TableColumn:
    """A column as row filters and column lists see it; ``name``: PostgreSQL's. ``generation``: the
    expression where the node generates it."""

    name: str
    type_oid: int
    typmod: int = -1
    generated: AttGenerated = AttGenerated.NOT
    collation: str = "default"
    default: str | None = None
    generation: str | None = None


class CompiledFilter(Protocol):
    """What compiling gives; ``text`` is what the catalog keeps, ``columns`` are those named."""

    @property
    def text(self) -> str:
        """As PostgreSQL deparses it."""

    @property
    def columns(self) -> frozenset[str]:
        """PostgreSQL's names."""


class RowFilterCompiler(Protocol):
    """``penstock.publication.row_filter.compile_row_filter``"""

    def __call__(self, text: str, columns: Sequence[TableColumn], *, table: str) -> CompiledFilter:
        """Raises PostgreSQL's errors for what a row filter may not hold."""


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
    compile_row_filter: RowFilterCompiler | None = field(default=None, compare=False)
