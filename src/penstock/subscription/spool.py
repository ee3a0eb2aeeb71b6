"""Spool files: the changes of a transaction larger than memory, on local disk until it commits
(reorderbuffer.c, spill).

A file holds a run of frames or of messages. The files are not synced: a restarted node begins with
an empty folder, since the publisher sends an unacknowledged transaction again.
"""

from __future__ import annotations

import errno
import shutil
import struct
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from penstock.errors import StorageError
from penstock.pgoutput.columnar import MessageChunk


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
    def of_content(cls, folder: Path, content: bytes, count: int) -> SpooledFrames:
        """Write the content of another spool file to a new file in ``folder``. Raises
        StorageError."""
        return cls(_new_file(folder, [content]), count)

    def load(self) -> list[bytes]:
        """Read the run back."""
        data = self.path.read_bytes()
        lengths = struct.unpack_from(f"<{self.count}I", data)
        frames, at = [], 4 * self.count
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
        """Read the chunk back."""
        with self.path.open("rb") as file:
            starts, ends = np.frombuffer(file.read(16 * self.count), np.int64).reshape(2, -1)
            return MessageChunk(file.read(), starts, ends)

    def remove(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)


def empty_folder(folder: Path) -> None:
    """Remove the files that an earlier node process has left."""
    shutil.rmtree(folder, ignore_errors=True)


def _new_file(folder: Path, content: Iterable[bytes]) -> Path:
    path = folder / f"spill-{uuid.uuid4()}.frames"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.writelines(content)
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
