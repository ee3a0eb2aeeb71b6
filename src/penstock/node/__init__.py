"""A node: the one place that constructs everything (postmaster.c plays that part in PostgreSQL).

In: a folder with parameters and state. Out: ``Node``, the public object of the library.
"""

from penstock.node.node import Node

__all__ = ["Node"]
