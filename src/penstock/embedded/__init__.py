"""Servers that this process owns, for the demo, the tests and the benchmarks.

``EmbeddedPostgres`` is a real server of a major version, from packages alone, without a system
installation. PostgreSQL 18's clients come with it. ``NodeProcess`` is a node as users run it.
``wait_until`` waits for a state of either. No production code imports this room.
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
