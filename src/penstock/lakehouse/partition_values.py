"""Partition values of data files (protocol: "Partition Value Serialization").

Data files of a partitioned table lack the partition columns; the Delta log has their values as
text. This module splits rows into runs of one partition each, with its texts, and turns texts into
values. The Delta log cannot distinguish NULL from the empty text. When Spark rewrites files, it
turns the text ``__HIVE_DEFAULT_PARTITION__`` into NULL. So both texts are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ValueNotRepresentable
from penstock.lakehouse.schema import TIMESTAMP, TIMESTAMP_NTZ

PartitionValues = Mapping[str, str | None]
"""The values of one file, by column; NULL is None, or "" in entries of some writers."""

_ZONE: Final = re.compile(r":\d\d(\.\d+)?(Z|[+-]\d\d(:?\d\d)?)$")
_DECIMAL_EXPONENTS: Final = (-3, 7)
"""The powers of ten between which Java writes numbers without an exponent."""
_NO_TEXTS: Final = ("", "__HIVE_DEFAULT_PARTITION__")
_KNOWN: Final = 4096
"""The number of parsed values that are kept."""


def partitions(
    rows: pa.RecordBatch, columns: Sequence[str]
) -> Iterator[tuple[tuple[str | None, ...], npt.NDArray[np.int64]]]:
    """Yield runs of rows: (texts of the partition columns, rows' positions). A partition may have
    several runs.

    Raises ValueNotRepresentable.
    """
    code = np.zeros(rows.num_rows, np.int64)
    numbered: list[tuple[list[str | None], npt.NDArray[np.int64]]] = []
    for name in columns:
        encoded = rows.column(name).dictionary_encode()
        texts: list[str | None] = [_text_of(value, name) for value in encoded.dictionary]
        index = pc.fill_null(encoded.indices.cast(pa.int64()), len(texts)).to_numpy()
        texts.append(None)
        numbered.append((texts, index))
        code = np.unique(code * len(texts) + index, return_inverse=True)[1]
    order = np.argsort(code, kind="stable")
    starts = np.flatnonzero(np.diff(code[order], prepend=-1))
    for start, end in zip(starts, [*starts[1:], len(order)], strict=True):
        first = order[start]
        yield tuple(texts[index[first]] for texts, index in numbered), order[start:end]


def _text_of(value: pa.Scalar, column: str) -> str:
    text = partition_text(value.as_py(), value.type)
    if text in _NO_TEXTS:
        raise ValueNotRepresentable(
            f'text "{text}" has no place in partition column "{column}"',
            detail="Delta, or a writer of it, takes it for NULL.",
            hint="Give the rows another value there, or partition the table by other columns.",
        )
    return text


def partition_text(value: Any, kind: pa.DataType) -> str:
    """Return the text of a value that is not NULL, as Spark writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, float):
        return _java_text(value, single=pa.types.is_float32(kind))
    if isinstance(value, datetime):
        if value.tzinfo is None:
            return _without_zeros(value.isoformat(" ", "microseconds"))
        plain = value.astimezone(UTC).replace(tzinfo=None)
        return plain.isoformat("T", "microseconds") + "Z"
    if isinstance(value, date):
        return value.isoformat()
    return str(value)


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".")


def _java_text(value: float, *, single: bool) -> str:
    """Return the text of Double.toString or Float.toString, with the fewest digits that identify
    the number."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    number: np.floating[Any] = np.float32(value) if single else np.float64(value)
    least, above = _DECIMAL_EXPONENTS
    if number == 0 or 10.0**least <= abs(number) < 10.0**above:
        return np.format_float_positional(number, trim="0")
    mantissa, exponent = np.format_float_scientific(number, trim="0").split("e")
    return f"{mantissa}E{int(exponent)}"


@lru_cache(maxsize=_KNOWN)
def partition_scalar(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return the value of a text in the Delta log; "" is NULL. Binary is UTF-8, as in Spark."""
    if not text:
        return pa.scalar(None, kind)
    value = pa.scalar(text, pa.string())
    if kind == TIMESTAMP and not _ZONE.search(text):
        value = value.cast(TIMESTAMP_NTZ)  # Spark writes UTC without a zone
    return value.cast(kind)


def constants(values: PartitionValues | None, schema: pa.Schema) -> dict[str, pa.Scalar]:
    """Return the values that all rows of a file have in those columns of a schema that the table is
    partitioned by."""
    return {
        field.name: partition_scalar(values[field.name], field.type)
        for field in schema
        if values is not None and field.name in values
    }
