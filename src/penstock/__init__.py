"""Penstock: PostgreSQL-compatible logical replication for Spark lakehouses.

``Node`` is the whole public interface. It is imported when it is first asked for: Spark's executors
import rooms of this package too, and must not pay for the node's.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.node import Node

__all__ = ["Node"]


def __getattr__(name: str) -> Any:
    if name == "Node":
        return importlib.import_module("penstock.node").Node
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
