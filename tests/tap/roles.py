"""Which servers of a test are Penstock nodes, by the role that is measured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Role:
    """``version``: the PostgreSQL at the other end, and whose tests they are."""

    name: str
    version: int
    nodes: re.Pattern[str]
    stock: frozenset[str] = frozenset()
    """Names that ``nodes`` would match although the server is of the other role."""
    by_file: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    """In place of ``nodes``, for files whose servers are named by letters."""

    def is_node(self, file: str, name: str) -> bool:
        nodes = self.by_file.get(file, self.nodes)
        return nodes.search(name) is not None and name not in self.stock


_CASCADED = "testpublisher_subscriber"
"""In the middle of a cascade: the node when it subscribes, a stock server when it publishes."""


def _subscriber(version: int) -> Role:
    # Of three in a row the node is the last one when it subscribes, the first when it publishes;
    # of two that subscribe to each other it is the one to which a third publishes, too.
    return Role(
        f"subscriber{version}",
        version,
        re.compile("subscriber|^node_C$"),
        stock=frozenset({"testsubscriber1"}),
        by_file={"030_origin": re.compile("^node_B$")},
    )


ROLES = {
    role.name: role
    for role in (
        *(_subscriber(version) for version in (15, 16, 17, 18)),
        Role("publisher18", 18, re.compile("publisher|^node_A$"), stock=frozenset({_CASCADED})),
        *(Role(f"stock{version}", version, re.compile("(?!)")) for version in (15, 16, 17, 18)),
    )
}


def roles_named(word: str) -> list[Role]:
    """``subscriber18``, or ``subscriber`` for those of all versions; empty: it is no role."""
    return [role for role in ROLES.values() if word in (role.name, role.name.rstrip("0123456789"))]
