"""The hash functions of hash partitioning (hashfn.c, hashfunc.c; partbounds.c,
compute_partition_hash_value).

Each row's 64-bit hash is computed from the columns of a partition key as Arrow arrays, with their
types' OIDs. It equals PostgreSQL's hash, which never changes, as stored partitions depend on it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.civil import EPOCH_DAYS, EPOCH_MICROSECONDS
from penstock.pgtypes import pg_type

Hashes = npt.NDArray[np.uint64]
Words = npt.NDArray[np.uint32]

_SEED: Final = 0x7A5B22367996DCFD
"""HASH_PARTITION_SEED"""
_SEED_HIGH: Final = np.array([_SEED >> 32], np.uint32)
_SEED_LOW: Final = np.array([_SEED & 0xFFFFFFFF], np.uint32)
_INITIAL: Final = (0x9E3779B9 + 3923095) & 0xFFFFFFFF
_COMBINE: Final = np.uint64(0x49A0F4DD15E5A8E3)
_BLOCK: Final = 12


def row_hashes(columns: Sequence[tuple[pa.Array, int]]) -> Hashes:
    """Hash rows (compute_partition_hash_value); NULLs do not count. Takes ``hashable`` types."""
    found = np.zeros(len(columns[0][0]), np.uint64)
    for array, oid in columns:
        hashes = _FUNCTIONS[oid](array)
        combined = found ^ (hashes + _COMBINE + (found << np.uint64(54)) + (found >> np.uint64(7)))
        found = np.where(pc.is_valid(array).to_numpy(zero_copy_only=False), combined, found)
    return found


def hashable(oid: int) -> bool:
    """Return whether values of a type can be hashed here as PostgreSQL does."""
    return oid in _FUNCTIONS


def _integers(array: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), np.int64)


def _of_int4(array: pa.Array) -> Hashes:
    """Hash by hashint4extended, which also serves int2, oid and bool."""
    if pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    return _hash_word((_integers(array) & 0xFFFFFFFF).astype(np.uint32))


def _of_int8(array: pa.Array) -> Hashes:
    return _hash_long(_integers(array))


def _of_date(array: pa.Array) -> Hashes:
    days = _integers(array.cast(pa.int32())) - EPOCH_DAYS
    return _hash_word((days & 0xFFFFFFFF).astype(np.uint32))


def _of_timestamp(array: pa.Array) -> Hashes:
    return _hash_long(_integers(array) - EPOCH_MICROSECONDS)


def _of_text(array: pa.Array) -> Hashes:
    return _hash_bytes([(value or "").encode() for value in array.to_pylist()])


def _of_bpchar(array: pa.Array) -> Hashes:
    return _hash_bytes([(value or "").rstrip(" ").encode() for value in array.to_pylist()])


def _of_uuid(array: pa.Array) -> Hashes:
    return _hash_bytes([uuid.UUID(v).bytes if v else b"" for v in array.to_pylist()])


def _of_bytea(array: pa.Array) -> Hashes:
    return _hash_bytes([value or b"" for value in array.to_pylist()])


_FUNCTIONS: Final[Mapping[int, Callable[[pa.Array], Hashes]]] = {
    pg_type.BOOL: _of_int4,
    pg_type.BYTEA: _of_bytea,
    pg_type.NAME: _of_text,
    pg_type.INT8: _of_int8,
    pg_type.INT2: _of_int4,
    pg_type.INT4: _of_int4,
    pg_type.TEXT: _of_text,
    pg_type.OID: _of_int4,
    pg_type.BPCHAR: _of_bpchar,
    pg_type.VARCHAR: _of_text,
    pg_type.DATE: _of_date,
    pg_type.TIMESTAMP: _of_timestamp,
    pg_type.TIMESTAMPTZ: _of_timestamp,
    pg_type.UUID: _of_uuid,
}
"""Functions by types' OIDs, without types of numbers that write one value in several forms."""


def _hash_long(values: npt.NDArray[np.int64]) -> Hashes:
    """Hash by hashint8extended: equals hashint4extended for values that an int4 holds."""
    low = (values & 0xFFFFFFFF).astype(np.uint32)
    high = ((values >> 32) & 0xFFFFFFFF).astype(np.uint32)
    return _hash_word(low ^ np.where(values >= 0, high, ~high))


def _hash_word(k: Words) -> Hashes:
    """Hash by hash_bytes_uint32_extended."""
    a, b, c = _begun(4, len(k))
    return _final(a + k, b, c)


def _hash_bytes(values: Sequence[bytes]) -> Hashes:
    """Hash by hash_bytes_extended, values of one length together."""
    lengths = np.array([len(value) for value in values], np.int64)
    found = np.zeros(len(values), np.uint64)
    for length in np.unique(lengths).tolist():
        at = np.flatnonzero(lengths == length)
        joined = b"".join(values[i] for i in at.tolist())
        found[at] = _hash_matrix(np.frombuffer(joined, np.uint8).reshape(len(at), length))
    return found


def _hash_matrix(rows: npt.NDArray[np.uint8]) -> Hashes:
    count, length = rows.shape
    a, b, c = _begun(length, count)
    whole = length // _BLOCK * _BLOCK
    for start in range(0, whole, _BLOCK):
        words = _words(rows[:, start : start + _BLOCK])
        a, b, c = _mix(a + words[:, 0], b + words[:, 1], c + words[:, 2])
    rest = np.zeros((count, _BLOCK), np.uint8)
    tail = rows[:, whole:]
    rest[:, : min(tail.shape[1], 8)] = tail[:, :8]
    # The lowest byte of c is reserved for the length.
    rest[:, 9 : 9 + max(tail.shape[1] - 8, 0)] = tail[:, 8:]
    words = _words(rest)
    return _final(a + words[:, 0], b + words[:, 1], c + words[:, 2])


def _words(block: npt.NDArray[np.uint8]) -> Words:
    return np.ascontiguousarray(block).view("<u4").astype(np.uint32)


def _begun(length: int, count: int) -> tuple[Words, Words, Words]:
    """Return the state of ``count`` hashes of so many bytes, with the seed in it."""
    start = np.full(count, (_INITIAL + length) & 0xFFFFFFFF, np.uint32)
    return _mix(start + _SEED_HIGH, start + _SEED_LOW, start)


def _rotated(word: Words, bits: int) -> Words:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))


def _mix(a: Words, b: Words, c: Words) -> tuple[Words, Words, Words]:
    a = (a - c) ^ _rotated(c, 4)
    c = c + b
    b = (b - a) ^ _rotated(a, 6)
    a = a + c
    c = (c - b) ^ _rotated(b, 8)
    b = b + a
    a = (a - c) ^ _rotated(c, 16)
    c = c + b
    b = (b - a) ^ _rotated(a, 19)
    a = a + c
    c = (c - b) ^ _rotated(b, 4)
    b = b + a
    return a, b, c


def _final(a: Words, b: Words, c: Words) -> Hashes:
    for bits in ((14, 11, 25), (16, 4, 14)):
        c = (c ^ b) - _rotated(b, bits[0])
        a = (a ^ c) - _rotated(c, bits[1])
        b = (b ^ a) - _rotated(a, bits[2])
    c = (c ^ b) - _rotated(b, 24)
    return (b.astype(np.uint64) << np.uint64(32)) | c.astype(np.uint64)
