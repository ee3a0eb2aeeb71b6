"""Columns that a subscription makes, where they are not what PostgreSQL's types are here.

In: the schema that a relation gets, and what its subscription says (out_of_range = text, jsonb_as =
variant). Out: that of a table that is made, or columns that are added; a refusal of a key that no
table can have. Columns that are there stay what they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from penstock.errors import FeatureNotSupported
from penstock.lakehouse.schema import Column, TableSchema
from penstock.pgtypes.as_text import may_not_fit
from penstock.pgtypes.pg_type import JSONB, TEXT
from penstock.pgtypes.variant import VARIANT

JSONB_AS_TEXT: Final = "text"
JSONB_AS_VARIANT: Final = "variant"
JSONB_AS: Final = (JSONB_AS_TEXT, JSONB_AS_VARIANT)
"""What columns of jsonb are made (jsonb_as)."""


@dataclass(frozen=True)
class NewColumns:
    """``as_text``: text, where the type here has not all values; ``variants``: of jsonb, such as
    are not of the key."""

    as_text: bool = False
    variants: bool = False

    def schema(self, wanted: TableSchema) -> TableSchema:
        """The schema of a relation as it is made."""
        return TableSchema(self.columns(wanted.columns), wanted.key)

    def columns(self, wanted: Sequence[Column]) -> tuple[Column, ...]:
        """Published columns as they are made."""
        return tuple(map(self._column, wanted))

    def _column(self, column: Column) -> Column:
        if self.variants and column.type_oid == JSONB:
            return replace(column, type=VARIANT)
        if self.as_text and may_not_fit(column.type_oid, column.typmod):
            return replace(column, type=pa.string(), type_oid=TEXT, typmod=-1, as_text=True)
        return column


AS_TYPES_ARE: Final = NewColumns()


def check_no_variant(schema: TableSchema, *, table: str) -> None:
    """Raise FeatureNotSupported for a key that rows cannot be found by in files."""
    for column in schema.columns:
        if column.name in schema.key and column.type == VARIANT:
            raise FeatureNotSupported(
                f'column "{column.source}" of table "{table}" cannot be a variant',
                detail="It is of the key by which rows are found, and Delta's variants have no "
                "order.",
                hint="Give the table another replica identity at the publisher. Or keep its jsonb "
                "as text: ALTER SUBSCRIPTION ... SET (jsonb_as = text).",
            )
