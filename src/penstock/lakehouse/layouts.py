"""Plain layouts: one Arrow layout for each type, whatever layout the writer of a file has chosen.

A Parquet file may carry its writer's Arrow schema. Then pyarrow returns views, dictionaries, large
offsets, fixed sizes or narrow decimals (delta-rs rewrites files with views), and half of Arrow's
functions do not support them. This module converts the values to the types of Delta's columns
(``schema.arrow_type``). Every reader of data files calls it.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.pgtypes.variant import VARIANT

_MAX_DIGITS: Final = 38
"""The most digits of a decimal in 128 bits, which is Delta's decimal."""


def plain_table(rows: pa.Table) -> pa.Table:
    """Return ``rows`` in plain layouts."""
    wanted = plain_schema(rows.schema)
    if wanted.equals(rows.schema):
        return rows
    columns = [_plain_column(column, wanted.field(i).type) for i, column in enumerate(rows.columns)]
    return pa.Table.from_arrays(columns, schema=wanted)


def plain_batch(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return ``rows`` in plain layouts."""
    wanted = plain_schema(rows.schema)
    if wanted.equals(rows.schema):
        return rows
    columns = [_plain(column, wanted.field(i).type) for i, column in enumerate(rows.columns)]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the rows in plain layouts; fields keep their names."""
    return pa.schema([pa.field(field.name, plain_type(field.type)) for field in schema])


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type that stands for all layouts of the same values."""
    tests = pa.types
    if tests.is_dictionary(kind) or tests.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if tests.is_large_string(kind) or tests.is_string_view(kind):
        return pa.string()
    if (
        tests.is_large_binary(kind)
        or tests.is_binary_view(kind)
        or tests.is_fixed_size_binary(kind)
    ):
        return pa.binary()
    if tests.is_decimal(kind) and kind.precision <= _MAX_DIGITS:
        return pa.decimal128(kind.precision, kind.scale)
    if (
        tests.is_list(kind)
        or tests.is_large_list(kind)
        or tests.is_fixed_size_list(kind)
        or tests.is_list_view(kind)
        or tests.is_large_list_view(kind)
    ):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)))
    return VARIANT if _is_variant(kind) else kind


def with_whole_variants(rows: pa.Table) -> pa.Table:
    """Return ``rows`` as they can be written: the parts of a variant must not be NULL even if the
    variant is. Arrow's own functions (nulls, take, if_else) make such parts NULL."""
    for at, field in enumerate(rows.schema):
        if field.type == VARIANT and rows.column(at).null_count:
            chunks = [_whole(chunk) for chunk in rows.column(at).chunks]
            rows = rows.set_column(at, field, pa.chunked_array(chunks, VARIANT))
    return rows


def _whole(variants: pa.Array) -> pa.Array:
    parts = [pc.fill_null(variants.field(part.name), b"") for part in VARIANT]
    return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=variants.is_null())


def _is_variant(kind: pa.DataType) -> bool:
    """Return whether a type is a variant. Writers differ in the order of its parts, and in which of
    them they declare nullable."""
    if not pa.types.is_struct(kind):
        return False
    parts = {part.name: plain_type(part.type) for part in kind}
    return parts == {part.name: part.type for part in VARIANT}


def _plain_column(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    return pa.chunked_array([_plain(chunk, wanted) for chunk in column.chunks], wanted)


def _plain(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        return _plain(array.storage, wanted)
    if isinstance(array, pa.DictionaryArray):
        # Arrow cannot take from views, so make the values plain first
        return _plain(array.dictionary, wanted).take(array.indices)
    if isinstance(array, pa.RunEndEncodedArray):
        return _plain(pc.run_end_decode(array), wanted)
    if pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type):
        return _list_of_view(array, wanted)
    if wanted == VARIANT and array.type != wanted:
        parts = [_plain(array.field(part.name), part.type) for part in VARIANT]
        return pa.StructArray.from_arrays(parts, fields=list(VARIANT), mask=array.is_null())
    return array if array.type == wanted else array.cast(wanted)


def _list_of_view(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a list view as plain lists. Arrow's own cast loses an offset if a list is NULL."""
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
    values = _plain(array.flatten(), wanted.value_type)
    return pa.ListArray.from_arrays(offsets, values, type=wanted, mask=array.is_null())
