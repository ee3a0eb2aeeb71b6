"""Rows of a data file as the log shows rows. Runs inside tasks.

In: a file and positions in it. Out: text; long values are cut here, so that little crosses to the
driver. Memory: a run of rows of the file at a time.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.errors import FeatureNotSupported, ValueNotRepresentable
from penstock.lakehouse.batches import read_rows
from penstock.lakehouse.files import open_parquet
from penstock.lakehouse.partition_values import constants
from penstock.pipeline.columns import Integers
from penstock.pipeline.conflict import shown_values
from penstock.pipeline.locate import LocateItem


def rows_as_text(file: LocateItem, columns: pa.Schema, position: Integers) -> list[str]:
    """The rows at ascending positions of a file. Raises StorageError."""
    found: list[str] = []
    if not len(position):
        return found
    given = constants(file.partition_values, columns)
    with open_parquet(file.table_uri, file.path) as parquet:
        there = parquet.schema_arrow.names
        held = [name for name in columns.names if name in there and name not in given]
        for _, rows in read_rows(parquet, held, position):
            values = [_values(rows, field, given.get(field.name)) for field in columns]
            found += [f"({', '.join(row)})" for row in zip(*values, strict=True)]
    return found


def _values(rows: pa.RecordBatch, field: pa.Field, given: pa.Scalar | None) -> list[str]:
    """Of one column, also where what somebody else has written cannot be shown: the conflict is
    what matters. ``given``: what all rows hold; one that the file lacks was added later."""
    if given is None and field.name not in rows.schema.names:
        return ["null"] * rows.num_rows
    try:
        column = rows.column(field.name) if given is None else pa.repeat(given, rows.num_rows)
        return shown_values(pa.chunked_array([column.cast(field.type)]))
    except (FeatureNotSupported, ValueNotRepresentable, pa.ArrowException):
        return ["?"] * rows.num_rows
