"""Penstock: PostgreSQL-compatible logical replication for Spark lakehouses.

``Node`` is the public interface, ``PenstockError`` the root of everything it raises. ``Node`` is
imported at its first use, since Spark's executors import rooms of this package too and do not need
those of the node.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.node import Node

__all__ = ["Node", "PenstockError"]


def __getattr__(name: str) -> Any:
    if name == "Node":
        return importlib.import_module("penstock.node").Node
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
