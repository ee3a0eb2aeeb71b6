"""Columns of new rows that take their values from sequences (nodeModifyTable.c, ExecInsert).

In: batches with NULL in their place. Out: the same with values, in the order of the rows, each of
them the rows' own even if the statement fails; and with generated columns, which may be made of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import PenstockError, ValueNotRepresentable
from penstock.lakehouse.schema import TableSchema
from penstock.pipeline.generated import generated_columns

Take = Callable[[int], Sequence[int]]
"""The next values of a sequence."""


@dataclass(frozen=True)
class DrawnColumn:
    """``place``: of the column in the rows; ``marks``: of a boolean for each row, True where it
    takes a value, None where every row does. ``take`` None: of a column that no row draws."""

    place: int
    take: Take | None
    marks: int | None = None

    def filled(self, values: pa.Array, rows: pa.RecordBatch) -> pa.Array:
        """The column of a batch."""
        if self.take is None or not rows.num_rows:
            return values
        if self.marks is None:
            return pa.array(self.take(rows.num_rows), values.type)
        marks = rows.column(self.marks)
        count = pc.sum(marks).as_py()
        if not count:
            return values
        return pc.replace_with_mask(values, marks, pa.array(self.take(count), values.type))


@dataclass(frozen=True)
class DrawnRows:
    """Rows of an INSERT. ``table``: its name; ``schema``: its columns as complete rows have them;
    ``written``: which of those the rows have, by their names in Delta, in the rows' order."""

    table: str
    schema: TableSchema
    written: tuple[str, ...]
    columns: tuple[DrawnColumn, ...]

    @property
    def made(self) -> tuple[int, ...]:
        """Places in the schema of what is written: the others are left to whoever writes."""
        return tuple(
            number
            for number, column in enumerate(self.schema.columns)
            if column.name in self.written or column.generated is not None
        )

    def complete(self, rows: pa.RecordBatch, kept: Sequence[pa.Array]) -> pa.RecordBatch:
        """The columns ``made``, as c1 and so on. ``kept``: the rows' as the table keeps them.
        Raises PenstockError (2200H, and of generated columns)."""
        given = list(kept)
        for column in self.columns:
            given[column.place] = column.filled(given[column.place], rows)
        found = dict(zip(self.written, given, strict=True))
        schema = self.schema.arrow()
        whole = pa.Table.from_arrays(
            [found.get(f.name, pa.nulls(rows.num_rows, f.type)) for f in schema], schema=schema
        )
        try:
            made = generated_columns(self.schema, self.table).filled(whole)
        except ValueNotRepresentable as error:
            raise PenstockError(error.message, sqlstate=error.sqlstate) from None
        arrays = [column.combine_chunks() for column in made.columns]
        names = [f"c{number}" for number, _ in enumerate(self.made, 1)]
        return pa.RecordBatch.from_arrays([arrays[place] for place in self.made], names=names)
