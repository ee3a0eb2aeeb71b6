"""What targets read and write of the catalog.

In, out: nothing; ``catalog_access`` has it all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from penstock.catalog import LakeTable
from penstock.catalog.pg_subscription_rel import SubscriptionRel
from penstock.enum_type import EnumType
from penstock.relation import TableName


class Bindings(Protocol):
    """The part of the catalog that targets read and write."""

    @property
    def partition_tree(self) -> Callable[[TableName], tuple[LakeTable, ...]]:
        """A partitioned table of the node with all its partitions, root first; () for others."""

    @property
    def enum_types(self) -> Callable[[], tuple[EnumType, ...]]:
        """The node's own types."""

    @property
    def next_values(self) -> Callable[[TableName, str, int], Sequence[int]]:
        """So many next values of the sequence of a table's column."""

    @property
    def restart_sequences(self) -> Callable[[TableName], object]:
        """Those of a table's columns begin again."""

    @property
    def generation(self) -> Callable[[], int]:
        """Grows with every change; cheap."""

    @property
    def subscription_name(self) -> Callable[[str], str | None]:
        """The name of the node's subscription that has an app id."""

    def bind(self, rel: SubscriptionRel, relid: int | None, table_id: str | None) -> object:
        """Record what a row stands for; None leaves it."""

    def record_conflict(self, rel: SubscriptionRel, conflict: str) -> object:
        """Record that the relation may be another one now."""
