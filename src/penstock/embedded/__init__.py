"""Servers that this process owns, for the demo, the tests and the benchmarks.

In: a major version, or a node's folder. Out: ``EmbeddedPostgres``, a real server that needs no
system installation, only packages; PostgreSQL 18's clients; ``NodeProcess``, a node as users run
it; and waiting for a state of either. No production code of Penstock imports this room.
"""

from __future__ import annotations

from penstock.embedded.installation import VERSIONS, Installation, clients, find_installation
from penstock.embedded.node_process import CommandFailed, NodeProcess, ends_with_parent, wait_until
from penstock.embedded.server import EmbeddedPostgres, free_port

__all__ = [
    "VERSIONS",
    "CommandFailed",
    "EmbeddedPostgres",
    "Installation",
    "NodeProcess",
    "clients",
    "ends_with_parent",
    "find_installation",
    "free_port",
    "wait_until",
]
