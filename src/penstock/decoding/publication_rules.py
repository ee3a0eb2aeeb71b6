"""What publications publish, as the plugin pgoutput asks for it; the node answers.

In: nothing. Out: protocols and values. The rules themselves are ``penstock.publication``.
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
    """How a table is published. ``relation``: as clients are told of it, with its published columns
    and under the name of an ancestor, perhaps. ``columns``: indexes of these columns among the
    attributes of the table."""

    relation: Relation
    columns: tuple[int, ...]
    actions: frozenset[Action]
    truncate: bool = True


class PublicationRules(Protocol):
    """The publications that one client named."""

    def published(self, relation: RelationData) -> Published | None:
        """How a table is published, None: not at all. Raises UndefinedObject (a publication is
        missing, up to version 17), FeatureNotSupported (publications contradict one another)."""

    def rows(self, batch: RowBatch) -> Iterable[RowBatch]:
        """The rows that pass the row filters, in order; an UPDATE that comes into or goes out of
        what a filter lets pass is an INSERT or a DELETE."""

    def type_name(self, type_oid: int) -> tuple[str, str] | None:
        """Schema and name of a type that is not PostgreSQL's own."""
