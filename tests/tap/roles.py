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


_CASCADED = "testpublisher_subscriber"
"""In the middle of a cascade: the node when it subscribes, a stock server when it publishes."""

# Of three in a row the node is the last one when it subscribes, the first when it publishes.
ROLES = {
    role.name: role
    for role in (
        Role("subscriber", 15, re.compile("subscriber|^node_C$"), frozenset({"testsubscriber1"})),
        Role(
            "publisher",
            18,
            re.compile("publisher|^node_A$"),
            frozenset({_CASCADED}),
        ),
        Role("stock15", 15, re.compile("(?!)"), frozenset()),
        Role("stock18", 18, re.compile("(?!)"), frozenset()),
    )
}
