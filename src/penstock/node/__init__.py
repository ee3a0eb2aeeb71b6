"""A node: the one place that constructs everything, as postmaster.c does in PostgreSQL.

``Node``, the public object of the library, runs from a folder with parameters and state.
"""

from penstock.node.node import Node

__all__ = ["Node"]
