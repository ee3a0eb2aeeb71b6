"""When two rows without a key are the same: to the last bit, not by their types' equality.

In: columns of rows. Out: SQL for DuckDB that tells apart what its equality does not: 0 and -0 are
equal there (in PostgreSQL, too), and yet two values, of which a publisher's old tuple names one.
NaN is NaN whatever its bits are: PostgreSQL sends all of them as one text.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa


def signs(columns: Iterable[tuple[str, pa.DataType]]) -> list[str]:
    """Expressions over the columns, given as SQL and type, to be compared besides them."""
    found = []
    for column, kind in columns:
        if pa.types.is_floating(kind):
            found.append(f"({column} = 0 and signbit({column}))")
        elif pa.types.is_list(kind) and pa.types.is_floating(kind.value_type):
            found.append(f"list_transform({column}, lambda e: e = 0 and signbit(e))")
    return found
