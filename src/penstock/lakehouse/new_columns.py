"""New columns whose types a subscription's options change.

In: the schema that a relation gets, and its subscription's options (out_of_range = text, jsonb_as =
variant). Out: the schema of a new table, or columns to add; a refusal of a key that no table can
have. Existing columns stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from penstock.errors import FeatureNotSupported
from penstock.lakehouse.schema import Column, TableSchema
from penstock.pgtypes.pg_type import JSONB, TEXT
from penstock.pgtypes.text_output import may_not_fit
from penstock.pgtypes.variant import VARIANT

JSONB_AS_TEXT: Final = "text"
JSONB_AS_VARIANT: Final = "variant"
JSONB_AS: Final = (JSONB_AS_TEXT, JSONB_AS_VARIANT)
"""The values of jsonb_as: the types that columns of jsonb can get."""


@dataclass(frozen=True)
class NewColumns:
    """The types of new columns. ``as_text``: a column becomes text if its type here cannot hold all
    of PostgreSQL's values; ``variants``: jsonb becomes a variant (``check_no_variant`` refuses it
    in a key)."""

    as_text: bool = False
    variants: bool = False

    def schema(self, wanted: TableSchema) -> TableSchema:
        """Return the schema with which a relation's table is made."""
        return TableSchema(self.columns(wanted.columns), wanted.key)

    def columns(self, wanted: Sequence[Column]) -> tuple[Column, ...]:
        """Return published columns with the types with which they are made."""
        return tuple(map(self._column, wanted))

    def _column(self, column: Column) -> Column:
        if self.variants and column.attribute.type_oid == JSONB:
            return replace(column, type=VARIANT)
        if self.as_text and may_not_fit(column.attribute.type_oid, column.attribute.typmod):
            text = replace(column.attribute, type_oid=TEXT, typmod=-1)
            return replace(column, attribute=text, type=pa.string(), as_text=True)
        return column


AS_TYPES_ARE: Final = NewColumns()


def check_no_variant(schema: TableSchema, *, table: str) -> None:
    """Raise FeatureNotSupported for a key with a variant: rows could not be found by it."""
    for column in schema.columns:
        if column.name in schema.key and column.type == VARIANT:
            raise FeatureNotSupported(
                f'column "{column.source}" of table "{table}" cannot be a variant',
                detail="It is of the key by which rows are found, and Delta's variants have no "
                "order.",
                hint="Give the table another replica identity at the publisher. Or keep its jsonb "
                "as text: ALTER SUBSCRIPTION ... SET (jsonb_as = text).",
            )
