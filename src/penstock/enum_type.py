"""Enum types of the node (pg_type.h, pg_enum.h).

These are frozen values that every room knows. ``catalog`` keeps them; ``sql.builtin.enum_types``
makes them known to a statement.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EnumLabel:
    """A row of pg_enum: a value of the type. ``order``: enumsortorder."""

    oid: int
    order: float
    text: str


@dataclass(frozen=True, slots=True)
class EnumType:
    """A row of pg_type. ``array_oid``: the type of its arrays, whose name is ``array_name``.

    ``labels``: in the type's order. ``owner``: oid of a role; None if the node itself owns the
    type.
    """

    oid: int
    schema: str
    name: str
    array_oid: int
    array_name: str
    labels: tuple[EnumLabel, ...] = ()
    owner: int | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        """The labels themselves."""
        return tuple(label.text for label in self.labels)
