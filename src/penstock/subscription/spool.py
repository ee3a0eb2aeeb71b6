"""Spool files: the changes of a transaction larger than memory, on local disk until it commits
(reorderbuffer.c, spill).

A file holds a run of frames or of messages, and a checksum, so that damage is an error and not
other rows. The files are not synced: a restarted node begins with an empty folder, since the
publisher sends an unacknowledged transaction again.
"""

from __future__ import annotations

import errno
import shutil
import struct
import uuid
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from penstock.errors import StorageError
from penstock.pgoutput.columnar import MessageChunk

_MARK: Final = b"CRC1"
"""The four bytes before the checksum (CRC-32) at a file's end. Files of prepared transactions of
Penstock 0.1 end without them."""
_SEAL: Final = b"CRC2"
"""The mark of a checksum that covers the file's place, too (``sealed``)."""
_CHECKSUM: Final = struct.Struct("<4sI")


@dataclass(frozen=True, slots=True)
class SpooledFrames:
    """A spilled run: first the lengths of the frames (uint32, little-endian), then the frames."""

    path: Path
    count: int

    @classmethod
    def write(cls, folder: Path, frames: Sequence[bytes]) -> SpooledFrames:
        """Write ``frames`` to a new file in ``folder``. Raises StorageError (53100: disk full)."""
        lengths = struct.pack(f"<{len(frames)}I", *map(len, frames))
        return cls(_new_file(folder, [lengths, *frames]), len(frames))

    @classmethod
    def of_sealed(cls, folder: Path, data: bytes, place: str, count: int) -> SpooledFrames | None:
        """Write what was ``sealed`` for a place to a new file in ``folder``. Return None if it is
        damaged, or of another place. Raises StorageError."""
        whole = len(data) - _CHECKSUM.size
        if whole < 0 or data[whole : whole + len(_SEAL)] != _SEAL:  # of an earlier version
            return cls(_new_file(folder, [data], checksum=False), count)
        if _CHECKSUM.unpack_from(data, whole)[1] != _seal(memoryview(data)[:whole], place):
            return None
        return cls(_new_file(folder, [memoryview(data)[:whole]]), count)

    def sealed(self, place: str) -> bytes:
        """Return the run for a file elsewhere, with a checksum that covers the place, too. Raises
        StorageError (XX001: the file is damaged)."""
        data = self.path.read_bytes()
        content = memoryview(data)[: _checked(self.path, data)]
        return bytes(content) + _CHECKSUM.pack(_SEAL, _seal(content, place))

    def load(self) -> list[bytes]:
        """Read the run back. Raises StorageError (XX001: the file is damaged)."""
        data = self.path.read_bytes()
        whole = _checked(self.path, data)
        if whole < 4 * self.count:
            raise _damaged(self.path)
        lengths = struct.unpack_from(f"<{self.count}I", data)
        frames, at = [], 4 * self.count
        if at + sum(lengths) != whole:
            raise _damaged(self.path)
        for length in lengths:
            frames.append(data[at : at + length])
            at += length
        return frames

    def chunk(self) -> MessageChunk:
        """Return the messages of the frames."""
        return MessageChunk.from_copy_data(self.load())

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class SpooledMessages:
    """A spilled chunk: first the starts and ends of messages in the buffer, then the buffer."""

    path: Path
    count: int

    @classmethod
    def write(cls, folder: Path, chunk: MessageChunk) -> SpooledMessages:
        """Write a chunk to a new file in ``folder``. Raises StorageError (53100: disk full)."""
        content = [chunk.starts.tobytes(), chunk.ends.tobytes(), chunk.buffer]
        return cls(_new_file(folder, content), len(chunk))

    def chunk(self) -> MessageChunk:
        """Read the chunk back. Raises StorageError (XX001: the file is damaged)."""
        data = self.path.read_bytes()
        whole, begin = _checked(self.path, data), 16 * self.count
        if whole == len(data) or whole < begin:
            raise _damaged(self.path)
        starts, ends = np.frombuffer(data, np.int64, 2 * self.count).reshape(2, -1)
        return MessageChunk(data[begin:whole], starts, ends)

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)


def empty_folder(folder: Path) -> None:
    """Remove the files that an earlier node process has left."""
    shutil.rmtree(folder, ignore_errors=True)


def _seal(content: bytes | memoryview, place: str) -> int:
    return zlib.crc32(content, zlib.crc32(place.encode()))


def _checked(path: Path, data: bytes) -> int:
    """Return the length of a file's data without its checksum. Raises StorageError."""
    whole = len(data) - _CHECKSUM.size
    if whole < 0 or data[whole : whole + len(_MARK)] != _MARK:
        return len(data)  # of an earlier version, or damaged: its lengths tell
    if _CHECKSUM.unpack_from(data, whole)[1] != zlib.crc32(memoryview(data)[:whole]):
        raise _damaged(path)
    return whole


def _damaged(path: Path) -> StorageError:
    return StorageError(
        f'file "{path}" of a large transaction is damaged',
        hint="The publisher sends the transaction again.",
        sqlstate="XX001",
    )


def _new_file(
    folder: Path, content: Iterable[bytes | memoryview], *, checksum: bool = True
) -> Path:
    path = folder / f"spill-{uuid.uuid4()}.frames"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sum_ = 0
        with path.open("wb") as file:
            for part in content:
                file.write(part)
                sum_ = zlib.crc32(part, sum_)
            if checksum:
                file.write(_CHECKSUM.pack(_MARK, sum_))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _storage_error(error, folder) from error
    return path


def _storage_error(error: OSError, folder: Path) -> StorageError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return StorageError(
        f'could not spill a large transaction to "{folder}": {error.strerror}',
        hint="Free disk space there; the subscription goes on by itself.",
        sqlstate="53100" if full else None,
    )
