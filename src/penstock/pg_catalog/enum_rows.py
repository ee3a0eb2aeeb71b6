"""The node's enum types in the catalogs (pg_type, pg_enum).

In: a snapshot. Out: rows of pg_enum by column name, and rows of pg_type for lookups by oid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from penstock.pg_catalog.snapshot import CatalogSnapshot
from penstock.pgtypes.pg_type import Type, types
from penstock.sql.builtin.enum_types import type_rows


def pg_enum(snapshot: CatalogSnapshot) -> Iterator[dict[str, object]]:
    """Yield a row for each label of every type."""
    for enum in snapshot.types:
        for label in enum.labels:
            yield {
                "oid": label.oid,
                "enumtypid": enum.oid,
                "enumsortorder": label.order,
                "enumlabel": label.text,
            }


def all_types(snapshot: CatalogSnapshot) -> Mapping[int, Type]:
    """Return PostgreSQL's own types and the node's, by oid."""
    own = {row.oid: row for enum in snapshot.types for row in type_rows(enum)}
    return {**types(), **own}
