"""Which servers of a test are Penstock nodes, by the role that is measured."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Role:
    """``version``: the PostgreSQL at the other end, and whose tests they are."""

    name: str
    version: int
    nodes: re.Pattern[str]
    stock: frozenset[str]
    """Names that ``nodes`` would match although the server is of the other role."""

    def is_node(self, name: str) -> bool:
        return self.nodes.search(name) is not None and name not in self.stock


# In a cascade of three the node is where a subscriber or a publisher without another role stands,
# or in the middle, where it subscribes.
ROLES = {
    role.name: role
    for role in (
        Role("subscriber", 15, re.compile("subscriber|^node_C$"), frozenset({"testsubscriber1"})),
        Role(
            "publisher",
            18,
            re.compile("publisher|^node_A$"),
            frozenset({"testpublisher_subscriber"}),
        ),
        Role("stock15", 15, re.compile("(?!)"), frozenset()),
        Role("stock18", 18, re.compile("(?!)"), frozenset()),
    )
}
