"""Real PostgreSQL servers from packages, for the demo and the tests: no system installation.

In: a major version. Out: ``EmbeddedPostgres``, a server that this process owns, and PostgreSQL 18's
clients. Nothing in a production path of Penstock imports this room.
"""

from __future__ import annotations

from penstock.embedded.installation import VERSIONS, Installation, clients, find_installation
from penstock.embedded.server import EmbeddedPostgres, free_port

__all__ = [
    "VERSIONS",
    "EmbeddedPostgres",
    "Installation",
    "clients",
    "find_installation",
    "free_port",
]
