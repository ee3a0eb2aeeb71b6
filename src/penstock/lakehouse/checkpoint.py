"""Checkpoints of a table's log."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.lakehouse.log import LogStore
from penstock.lakehouse.storage import Storage


def write_checkpoint(
    storage: Storage, store: LogStore, table_uri: str, version: int, properties: Mapping[str, str]
) -> None:
    """Write a checkpoint."""
    raise NotImplementedError
