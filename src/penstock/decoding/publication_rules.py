"""The publications of a client, as the plugin pgoutput looks them up in the node.

This module has only protocols and values. The rules themselves are in ``penstock.publication``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from penstock.decoding.relation_data import RelationData
from penstock.decoding.reorder_buffer import Action
from penstock.decoding.tuple_columns import Tuple
from penstock.relation import Relation


@dataclass(frozen=True, slots=True)
class PublishedRelation:
    """The form in which a table is published. ``relation`` is the table as clients see it: with its
    published columns, and perhaps under the name of an ancestor. ``columns`` are the indexes of
    these columns among the table's attributes."""

    relation: Relation
    columns: tuple[int, ...]
    actions: frozenset[Action]
    truncate: bool = True


class PublicationRules(Protocol):
    """The publications that one client named."""

    def published(self, relation: RelationData) -> PublishedRelation | None:
        """Return how a table is published, None if it is not. Raises UndefinedObject if a
        publication is missing (up to version 17), and FeatureNotSupported if publications
        contradict one another."""

    def matches(self, relation: RelationData, action: Action, row: Tuple) -> bool:
        """Tell whether a row passes the row filters for ``action``
        (pgoutput_row_filter_exec_expr)."""

    def type_name(self, type_oid: int) -> tuple[str, str] | None:
        """Return schema and name of a type that is not built in."""


class AsPublished:
    """``PublicationRules`` of a source that applies the publications itself: all its changes are
    sent unchanged."""

    def __init__(self, type_name: Callable[[int], tuple[str, str] | None]) -> None:
        """Take a function that finds schema and name of a type."""
        self.type_name: Final = type_name

    def published(self, relation: RelationData) -> PublishedRelation | None:
        """Return the table as it is."""
        columns = tuple(range(len(relation.attributes)))
        return PublishedRelation(relation.relation, columns, frozenset(Action))

    def matches(self, relation: RelationData, action: Action, row: Tuple) -> bool:
        """Return True, since the source has left out rows that do not match."""
        return True
