"""The index of a data file: the codes of its keys in order, and the position of each row.

It is built from the key columns of a file, which never changes. A search returns the positions of
rows with given keys, deleted or not. Its cost depends on the number of keys, hardly on the file.
The bytes of an index include a checksum and the description of its file: a damaged index, or one of
another file, is refused. What a search reads of an index file is compared with sums that were made
when it was mapped: a file may be damaged later. ``key_indexes`` decides which files have an index.
"""

from __future__ import annotations

import itertools
import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.kernel import NUMBERS, kernel
from penstock.lakehouse.files import file_uri, open_parquet
from penstock.lakehouse.layouts import plain_table
from penstock.lakehouse.storage import storage_errors
from penstock.pipeline.columns import Integers
from penstock.pipeline.hits import Hits
from penstock.pipeline.key_codes import KeyCodes, encode, fit, is_wide

_ROWS_AT_ONCE: Final = 65_536
_NUMBER_S: Final = 2e-7
_UUID_S: Final = 5e-7
_DIGEST_S: Final = 1.5e-6
"""Seconds of a core in which a row of an index is made, by the kinds of its key."""
_MAGIC: Final = b"penstock key index 1\n"
_LENGTH_BYTES: Final = 4
_ALIGNMENT: Final = 64
_CHECKSUM_BYTES: Final = 4
_WORD_BYTES: Final = 8
_BLOCK: Final = 64
"""The words of a block that a search reads whole, to compare its sum."""
_LOW: Final = 0xFFFFFFFF


@dataclass(frozen=True)
class IndexItem:
    """A file that gets an index. ``key``: names of its key columns there; ``kinds``: the kinds they
    are compared as; ``rows``: physical rows."""

    table_uri: str
    path: str
    rows: int
    key: tuple[str, ...]
    kinds: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """The time that the index takes, estimated."""
        if self.kinds == ("uuid",):
            return self.rows * _UUID_S
        return self.rows * (_DIGEST_S if is_wide(self.kinds) else _NUMBER_S)

    def header(self) -> bytes:
        """Return the description of the file, with which the bytes of its index begin."""
        of = {"path": self.path, "rows": self.rows, "key": self.key, "kinds": self.kinds}
        text = json.dumps(of, sort_keys=True).encode()
        head = _MAGIC + len(text).to_bytes(_LENGTH_BYTES, "little") + text
        return head + bytes(-len(head) % _ALIGNMENT)


class DamagedIndex(Exception):
    """The file of an index has been changed since it was mapped."""


@kernel(f"void({NUMBERS}, int64, int64[::1])")
def _sum_blocks(words: np.ndarray, size: int, sums: np.ndarray) -> None:
    """Write a sum of each block of ``size`` words that depends on each word and its place."""
    for block in range(len(sums)):
        begin = block * size
        total = 0
        for at in range(begin, min(begin + size, len(words))):
            low, high = words[at] & _LOW, (words[at] >> 32) & _LOW
            total += low + (low + 2 * high) * (at - begin + 1)
        sums[block] = total


@kernel(f"boolean({NUMBERS}, int64, {NUMBERS}, {NUMBERS})")
def _are_as_summed(words: np.ndarray, size: int, sums: np.ndarray, blocks: np.ndarray) -> bool:
    """Return whether the blocks have their sums. ``blocks``: numbers of existing blocks."""
    for block in blocks:
        begin = block * size
        total = 0
        for at in range(begin, min(begin + size, len(words))):
            low, high = words[at] & _LOW, (words[at] >> 32) & _LOW
            total += low + (low + 2 * high) * (at - begin + 1)
        if sums[block] != total:
            return False
    return True


@dataclass(frozen=True, eq=False)
class _Sums:
    """Sums of blocks of the numbers in an index file, from when it was mapped. ``begins``: where
    each array begins, in bytes. ``tail``: bytes behind the last whole word."""

    data: NDArray[np.uint8]
    begins: Sequence[int]
    words: Integers
    sums: Integers
    tail: bytes

    @classmethod
    def of(cls, data: NDArray[np.uint8], begins: Sequence[int]) -> _Sums:
        """Return the sums of the present numbers."""
        whole = len(data) - len(data) % _WORD_BYTES
        words = data[:whole].view(np.int64)
        sums = np.empty(-(-len(words) // _BLOCK), np.int64)
        _sum_blocks(words, _BLOCK, sums)
        return cls(data, begins, words, sums, data[whole:].tobytes())

    def check(self, read: Sequence[tuple[int, int, Integers]]) -> None:
        """Raise DamagedIndex if a number that was read has changed since. ``read``: numbers of
        arrays, bytes of their items, and items."""
        places = [self.begins[array] + size * items for array, size, items in read]
        blocks = np.unique(np.concatenate(places) // (_BLOCK * _WORD_BYTES))
        blocks = blocks[blocks < len(self.sums)]
        tail = self.data[len(self.data) - len(self.tail) :].tobytes()
        if tail != self.tail or not _are_as_summed(self.words, _BLOCK, self.sums, blocks):
            raise DamagedIndex


@dataclass(frozen=True, eq=False)
class FileIndex:
    """The index of a file's rows whose keys have no NULL. ``first``: ascending codes; ``second``,
    ``position``: of the same rows. ``sums``: None for an index in memory."""

    first: Integers
    second: Integers | None
    position: NDArray[np.uint32]
    sums: _Sums | None = None
    is_whole: Callable[[], bool] = lambda: True
    """Tells whether a mapped file has its size: reading beyond its end would end the process."""

    @classmethod
    def of(cls, codes: KeyCodes) -> FileIndex:
        """Return the index of a whole file's keys."""
        held = codes.in_order()
        return cls(held.first, held.second, held.row.astype(np.uint32))

    @property
    def nbytes(self) -> int:
        """The bytes that the arrays take."""
        second = 0 if self.second is None else self.second.nbytes
        return int(self.first.nbytes + second + self.position.nbytes)

    def find(self, keys: KeyCodes) -> Hits:
        """Return the hits of ``keys``, which are ``in_order``: all rows with these keys. Raises
        DamagedIndex."""
        if not self.is_whole():
            raise DamagedIndex
        key = self._near(keys)
        if not len(key) and self.sums is None:
            return Hits(np.empty(0, np.int64), np.empty(0, np.int64))
        begins = np.searchsorted(self.first, keys.first[key], "left")
        ends = begins.copy()
        hit = self.first[np.minimum(begins, len(self.first) - 1)] == keys.first[key]
        ends[hit] = np.searchsorted(self.first, keys.first[key[hit]], "right")
        if self.sums is not None:
            self._check_places(self.sums, keys.first[key], begins, ends)
        many = np.maximum(ends - begins, 0)
        nth = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        at = np.repeat(begins, many) + nth
        key = np.repeat(key, many)
        if self.sums is not None:
            # Also of what is not the key: it may have been before it was damaged.
            codes = range(1 if self.second is None else 2)
            places = len(self.sums.begins) - 1
            self.sums.check([*((code, 8, at) for code in codes), (places, 4, at)])
        if self.second is not None and keys.second is not None:
            same = self.second[at] == keys.second[key]
            at, key = at[same], key[same]
        position = self.position[at].astype(np.int64)
        by_position = np.argsort(position, kind="stable")
        return Hits(position[by_position], keys.row[key[by_position]])

    def _check_places(
        self, sums: _Sums, wanted: Integers, begins: Integers, ends: Integers
    ) -> None:
        """Check that the searches have ended at the right places: their neighbours are as they were
        mapped, and show it. A code elsewhere may have misled them. Raises DamagedIndex."""
        if not len(self.first):
            return
        last = len(self.first) - 1
        before, behind = np.maximum(begins - 1, 0), np.minimum(ends, last)
        sums.check([(0, 8, np.array([0, last])), (0, 8, before), (0, 8, behind)])
        follows = (begins == 0) | (self.first[before] < wanted)
        ends_there = (ends > last) | (self.first[behind] > wanted)
        inside = np.minimum(begins, last)
        sums.check([(0, 8, inside)])
        if not np.all(follows & ends_there & ((ends == begins) | (self.first[inside] == wanted))):
            raise DamagedIndex

    def _near(self, keys: KeyCodes) -> Integers:
        """Return the numbers of the keys from the index's first code to its last."""
        if not len(self.first):
            return np.empty(0, np.int64)
        begin = np.searchsorted(keys.first, self.first[0], "left")
        end = np.searchsorted(keys.first, self.first[-1], "right")
        return np.arange(begin, end)

    def to_bytes(self, item: IndexItem) -> bytes:
        """Return the index as bytes, with the description of its file and a checksum."""
        second = b"" if self.second is None else self.second.tobytes()
        whole = b"".join((item.header(), self.first.tobytes(), second, self.position.tobytes()))
        return whole + zlib.crc32(whole).to_bytes(_CHECKSUM_BYTES, "little")

    @classmethod
    def from_buffer(
        cls,
        buffer: NDArray[np.uint8],
        item: IndexItem,
        is_whole: Callable[[], bool] = lambda: True,
    ) -> FileIndex | None:
        """Return the index in these bytes, which are not copied; None if they are damaged or not
        the index of ``item``."""
        header = item.header()
        if bytes(buffer[: len(header)]) != header:
            return None
        body = buffer[:-_CHECKSUM_BYTES]
        if zlib.crc32(body.data) != int.from_bytes(buffer[-_CHECKSUM_BYTES:].tobytes(), "little"):
            return None
        wide = is_wide(item.kinds)
        codes = 2 if wide else 1
        row = codes * np.dtype(np.int64).itemsize + np.dtype(np.uint32).itemsize
        count = (len(body) - len(header)) // row
        numbers = body[len(header) :]
        ends = np.cumsum([0, *[count * np.dtype(np.int64).itemsize] * codes])
        held = [numbers[a:b].view(np.int64) for a, b in itertools.pairwise(ends)]
        sums = _Sums.of(numbers, ends.tolist())
        position = numbers[ends[-1] :].view(np.uint32)
        return cls(held[0], held[1] if wide else None, position, sums, is_whole)


def build(item: IndexItem) -> FileIndex | None:
    """Build the index of a file. Keys are read some rows at a time; only codes are held. Return
    None if the file can have no index: its rows, columns or uuids are not as expected.

    Raises StorageError.
    """
    uri = file_uri(item.table_uri, item.path)
    with open_parquet(item.table_uri, item.path) as parquet, storage_errors("read file", uri):
        if parquet.metadata.num_rows != item.rows:
            return None
        if not set(item.key) <= set(parquet.schema_arrow.names):
            return None
        parts: list[KeyCodes] = []
        start = 0
        for batch in parquet.iter_batches(_ROWS_AT_ONCE, columns=list(item.key)):
            # columns in the order of the key, not of the file
            keys = plain_table(pa.Table.from_batches([batch])).select(list(item.key))
            if not fit(item.kinds, keys.schema.types):
                return None
            codes = encode(keys.columns, item.kinds)
            if codes is None:
                return None
            parts.append(replace(codes, row=codes.row + start))
            start += batch.num_rows
    return FileIndex.of(_joined(parts, item))


def _joined(parts: Sequence[KeyCodes], item: IndexItem) -> KeyCodes:
    none = np.empty(0, np.int64)
    second = None
    if is_wide(item.kinds):
        halves = [part.second for part in parts if part.second is not None]
        second = np.concatenate([none, *halves])
    return KeyCodes(
        np.concatenate([none, *(part.row for part in parts)]),
        np.concatenate([none, *(part.first for part in parts)]),
        second,
    )


def build_bytes(item: IndexItem) -> Sequence[bytes]:
    """Build the index of a file as bytes, in a task; nothing if the file can have none."""
    made = build(item)
    return () if made is None else (made.to_bytes(item),)
