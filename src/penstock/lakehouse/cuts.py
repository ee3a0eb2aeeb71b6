"""Cuts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from penstock.lakehouse.log import LogStore
from penstock.lakehouse.storage import Storage
from penstock.lsn import Lsn


@dataclass(frozen=True)
class CutTable:
    """A table of a cut: where it lies, and the version to read."""

    uri: str
    version: int


@dataclass(frozen=True)
class Cut:
    """All tables of a subscription at one LSN. Table names are ``schema.table``."""

    subscription: str
    lsn: Lsn
    commit_time: datetime | None
    tables: Mapping[str, CutTable]
    cut_time: datetime


class Cuts:
    """The cuts table."""

    def __init__(self, storage: Storage, store: LogStore, uri: str) -> None:
        self.uri = uri
        self._storage = storage
        self._store = store

    def append(
        self,
        subscription: str,
        lsn: Lsn,
        commit_time_us: int | None,
        tables: Mapping[str, CutTable],
    ) -> int:
        """Record a cut; durable on return. Returns the cuts table's version."""
        raise NotImplementedError

    def last(self, subscription: str) -> Cut | None:
        """The newest cut."""
        raise NotImplementedError

    def prune(self, keep: int) -> None:
        """Keep the last ``keep`` cuts of each subscription."""
        raise NotImplementedError
