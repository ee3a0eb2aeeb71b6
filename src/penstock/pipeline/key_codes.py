"""Key codes: keys as numbers that an index sorts. Equal keys, and no others, have equal codes.

Codes of 64 or 128 bits are computed from the key columns of a batch or a data file, and from the
kinds by which these are compared. A key of one integer, date, timestamp or uuid is its own code.
The code of any other key is the first 128 bits of BLAKE2b over its columns: two keys have one code
only if somebody breaks that function. If equal values of a type may have several forms (floating
point, decimals of other scales), keys with that type have no code, and are searched in the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from penstock.pgtypes.pg_type import UUID
from penstock.pipeline.columns import Integers

_DIGEST_BYTES: Final = 16
_LENGTH_BYTES: Final = 8
_UUID_FORM: Final = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
_UUID_DIGITS: Final = np.array([letter == "x" for letter in _UUID_FORM])
_LARGEST_DIGIT: Final = 15
_DIGIT: Final = np.full(256, 255, np.uint8)
_DIGIT[list(b"0123456789abcdef")] = np.arange(16)


@dataclass(frozen=True)
class KeyCodes:
    """The codes of rows whose keys have no NULL. ``row``: their numbers; ``first`` and ``second``:
    their codes, ``second`` only if 64 bits do not tell keys apart."""

    row: Integers
    first: Integers
    second: Integers | None

    def __len__(self) -> int:
        return len(self.row)

    def in_order(self) -> KeyCodes:
        """Return the codes sorted by ``first``."""
        order = np.argsort(self.first, kind="stable")
        second = None if self.second is None else self.second[order]
        return KeyCodes(self.row[order], self.first[order], second)


def kind(type: pa.DataType) -> str | None:
    """Return the kind by which values of the type are compared; None if they have no code. Integers
    of all widths are one kind, because a column may become wider."""
    if pa.types.is_signed_integer(type):
        return "integer"
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        return "text"
    if pa.types.is_date32(type):
        return "date"
    if pa.types.is_timestamp(type) and type.unit == "us":
        return "timestamp" if type.tz is None else "timestamptz"
    return None


def kinds(columns: Sequence[tuple[pa.DataType, int]]) -> tuple[str, ...] | None:
    """Return the kind of each key column (Arrow type, type OID); None if a column has no code."""
    found = [
        "uuid" if oid == UUID and each == "text" else each
        for type, oid in columns
        if (each := kind(type)) is not None
    ]
    return tuple(found) if columns and len(found) == len(columns) else None


def fit(kinds: Sequence[str], types: Sequence[pa.DataType]) -> bool:
    """Return whether columns of these types are compared as these kinds."""
    plain = ["text" if each == "uuid" else each for each in kinds]
    return plain == [kind(type) for type in types]


def is_wide(kinds: Sequence[str]) -> bool:
    """Return whether the codes of keys of these kinds need more than 64 bits."""
    return len(kinds) > 1 or kinds[0] in ("text", "uuid")


def encode(columns: Sequence[pa.ChunkedArray], kinds: Sequence[str]) -> KeyCodes | None:
    """Return the codes of rows with these key columns, whose types ``fit``; None if a uuid is not
    written as PostgreSQL writes it."""
    valid = np.ones(len(columns[0]), bool)
    for column in columns:
        if column.null_count:
            valid &= column.is_valid().to_numpy()
    row = np.flatnonzero(valid)
    if len(row) < len(valid):
        columns = [column.filter(pa.array(valid)) for column in columns]
    if not is_wide(kinds):
        return KeyCodes(row, _integers(columns[0]), None)
    codes = _uuids(columns[0]) if list(kinds) == ["uuid"] else _digests(columns)
    if codes is None:
        return None
    halves = codes.view(np.int64).reshape(-1, 2)
    return KeyCodes(row, np.ascontiguousarray(halves[:, 0]), np.ascontiguousarray(halves[:, 1]))


def _uuids(column: pa.ChunkedArray) -> NDArray[np.uint8] | None:
    """Return the sixteen bytes of each uuid, from texts in the form of uuid_out (uuid.c); None if a
    text has another form."""
    text = column.cast(pa.large_binary()).combine_chunks()
    lengths = pc.binary_length(text)
    if not pc.all(pc.equal(lengths, len(_UUID_FORM)), min_count=0).as_py():
        return None
    count, (_, _, data) = len(text), text.buffers()
    if not count:
        return np.empty(0, np.uint8)
    first = np.frombuffer(text.buffers()[1], np.int64)[text.offset]
    size = count * len(_UUID_FORM)
    letters = np.frombuffer(data, np.uint8)[first : first + size].reshape(count, -1)
    digits = _DIGIT[letters[:, _UUID_DIGITS]]
    if (letters[:, ~_UUID_DIGITS] != ord("-")).any() or (digits > _LARGEST_DIGIT).any():
        return None
    high, low = digits[:, ::2], digits[:, 1::2]
    return np.ascontiguousarray((high << np.uint8(4)) | low, np.uint8).reshape(-1)


def _integers(column: pa.ChunkedArray) -> Integers:
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    return np.asarray(column.cast(pa.int64()).to_numpy(), np.int64)


def _digests(columns: Sequence[pa.ChunkedArray]) -> NDArray[np.uint8]:
    parts = [_texts(c) if kind(c.type) == "text" else _numbers(c) for c in columns]
    whole: Iterator[bytes] = parts[0] if len(parts) == 1 else map(_joined, zip(*parts, strict=True))
    digests = [blake2b(key, digest_size=_DIGEST_BYTES).digest() for key in whole]
    return np.frombuffer(b"".join(digests), np.uint8)


def _joined(values: tuple[bytes, ...]) -> bytes:
    """Join values with their lengths, so that no two keys have the same bytes."""
    return b"".join(
        part for value in values for part in (len(value).to_bytes(_LENGTH_BYTES, "little"), value)
    )


def _texts(column: pa.ChunkedArray) -> Iterator[bytes]:
    for chunk in column.cast(pa.large_binary()).chunks:
        yield from chunk.to_pylist()


def _numbers(column: pa.ChunkedArray) -> Iterator[bytes]:
    size = np.dtype(np.int64).itemsize
    held = _integers(column).tobytes()
    return (held[at : at + size] for at in range(0, len(held), size))
