"""The questions about publications that the plugin pgoutput asks and the node answers.

In: nothing. Out: protocols and values. The rules themselves are in ``penstock.publication``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from penstock.decoding.relation_data import RelationData
from penstock.decoding.reorder_buffer import Action, RowBatch
from penstock.relation import Relation


@dataclass(frozen=True, slots=True)
class Published:
    """The form in which a table is published. ``relation`` is the table as clients see it: with its
    published columns, and perhaps under the name of an ancestor. ``columns`` are the indexes of
    these columns among the table's attributes."""

    relation: Relation
    columns: tuple[int, ...]
    actions: frozenset[Action]
    truncate: bool = True


class PublicationRules(Protocol):
    """The publications that one client named."""

    def published(self, relation: RelationData) -> Published | None:
        """Return how a table is published, None if it is not. Raises UndefinedObject if a
        publication is missing (up to version 17), and FeatureNotSupported if publications
        contradict one another."""

    def rows(self, batch: RowBatch) -> Iterable[RowBatch]:
        """Yield the rows that pass the row filters, in order. An UPDATE of which only the new or
        only the old row passes becomes an INSERT or a DELETE."""

    def type_name(self, type_oid: int) -> tuple[str, str] | None:
        """Return schema and name of a type that is not PostgreSQL's own."""
