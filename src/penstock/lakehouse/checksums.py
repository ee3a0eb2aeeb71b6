"""Checksums (CRC-32) of what the node writes into a Delta log: a damaged file is not read as if it
were whole.

An entry has its checksum in its own first line, as the first key of commitInfo. It covers all
other bytes of the entry. A checkpoint has it in the name of an empty hidden file beside it, so it
costs no request of its own in an object store. Other readers ignore both. What other writers, and
versions before, have written has none and is taken as it is.

    {"commitInfo":{"penstock.crc32":"5d1c0e9a","timestamp":...
    .00000000000000000010.checkpoint.parquet.13839.5d1c0e9a.sum
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

_FIRST: Final = '{"commitInfo":{'
_KEY: Final = "penstock.crc32"
_SEAL: Final = re.compile(rb'"penstock\.crc32":"([0-9a-f]{8})",')
_REACH: Final = 64
"""The bytes of an entry among which its checksum begins. It is not looked for at one place only:
the bytes before it may be damaged, too."""
_SUM: Final = re.compile(r"^\.(\d{20}\.checkpoint\.[\w.-]*parquet)\.(\d+)\.([0-9a-f]{8})\.sum$")


def sealed(lines: Sequence[str]) -> list[str]:
    """Return an entry's lines with their checksum, if the first of them is a commitInfo."""
    if not lines or not lines[0].startswith(_FIRST):
        return list(lines)
    sum_ = zlib.crc32("".join(f"{line}\n" for line in lines).encode())
    return [f'{_FIRST}"{_KEY}":"{sum_:08x}",{lines[0][len(_FIRST) :]}', *lines[1:]]


def is_damaged(entry: bytes) -> bool:
    """Return whether an entry has a checksum that is not that of its other bytes."""
    found = _SEAL.search(entry, 0, _REACH)
    if found is None:
        return False
    view = memoryview(entry)
    return zlib.crc32(view[found.end() :], zlib.crc32(view[: found.start()])) != int(found[1], 16)


@dataclass(frozen=True, slots=True)
class CheckpointSum:
    """The size and checksum of a checkpoint's file."""

    size: int
    crc32: int

    @classmethod
    def of(cls, content: bytes) -> CheckpointSum:
        """Return those of a file's content."""
        return cls(len(content), zlib.crc32(content))

    def beside(self, uri: str) -> str:
        """Return the URI of the file that tells this of the checkpoint ``uri``."""
        folder, _, name = uri.rpartition("/")
        return f"{folder}/.{name}.{self.size}.{self.crc32:08x}.sum"


def sum_in_name(name: str) -> tuple[str, CheckpointSum] | None:
    """Return a checkpoint's name and its sum, told by the name of a file beside it; None for names
    of other files."""
    found = _SUM.match(name)
    return found and (found[1], CheckpointSum(int(found[2]), int(found[3], 16)))


def contradicts(content: bytes, sums: Collection[CheckpointSum]) -> bool:
    """Return whether a checkpoint's content is not what its sums tell.

    A sum of another size is of a file that another writer has replaced since. A file that was cut
    is no Parquet file.
    """
    same = [each for each in sums if each.size == len(content)]
    return bool(same) and CheckpointSum.of(content) not in same
