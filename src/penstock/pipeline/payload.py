"""Arrow data that the driver passes to tasks.

Small Arrow tables are sent inside the task itself. Larger ones are Arrow IPC files in the
warehouse's staging area, which local tasks map into memory. Arrow's files have no checksum, so the
payload has one, which each process checks once; a file that many tasks read in parts has one for
each part (``Run``). The files are removed after the job, or after a crash when a node starts
(``remove_leftovers``).
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Final

import pyarrow as pa
from pyarrow import fs

from penstock.errors import StorageError
from penstock.lakehouse.storage import (
    Storage,
    is_local,
    local_path,
    make_folder,
    resolve,
    storage_call,
)

INLINE_BYTES: Final = 1 << 20
"""Smaller payloads are sent with the task, larger ones as a file in the staging area."""
_STAGING: Final = "_penstock/staging"


@dataclass(frozen=True)
class Payload:
    """One Arrow table for tasks: its IPC stream, or the URI of its IPC file, with the checksum."""

    stream: bytes | None = field(default=None, repr=False)
    uri: str | None = None
    sum: int = 0

    def table(self) -> pa.Table:
        """Return the table. Of a local file only the parts in use are read. Raises StorageError."""
        if self.stream is not None:
            return pa.ipc.open_stream(self.stream).read_all()
        uri = self.uri or ""
        with storage_call("read file", uri):
            if is_local(uri):
                _check_local(uri, self.sum)
                return pa.ipc.open_file(pa.memory_map(local_path(uri))).read_all()
            filesystem, path = resolve(uri)
            with filesystem.open_input_file(path) as source:
                content = source.read_buffer()
            _check(uri, content, self.sum)
            return pa.ipc.open_file(content).read_all()


@dataclass(frozen=True)
class Run:
    """A part of a file, with its checksum (CRC-32)."""

    start: int
    size: int
    sum: int

    def read(self, uri: str, source: pa.NativeFile) -> pa.Buffer:
        """Read the part. Raises StorageError (XX001)."""
        source.seek(self.start)
        content = source.read_buffer(self.size)
        _check(uri, content, self.sum)
        return content


class SummedFile:
    """A file for Arrow's writers that keeps the checksum of what is written."""

    closed = False

    def __init__(self, target: pa.NativeFile) -> None:
        self._target = target
        self._start, self._sum = 0, 0

    def write(self, data: bytes) -> None:
        """Write to the target."""
        self._sum = zlib.crc32(data, self._sum)
        self._target.write(data)

    def take(self) -> Run:
        """Return what was written since the last call."""
        run = Run(self._start, self.tell() - self._start, self._sum)
        self._start, self._sum = self.tell(), 0
        return run

    def tell(self) -> int:
        """Return the number of bytes written."""
        return int(self._target.tell())

    def flush(self) -> None:
        """Flush the target."""
        self._target.flush()

    def close(self) -> None:
        """Leave the target open: its opener closes it."""


@lru_cache(maxsize=4096)
def _check_local(uri: str, sum_: int) -> None:
    """Check a local file, once in each process. Raises StorageError (XX001)."""
    with pa.memory_map(local_path(uri)) as source:
        _check(uri, source.read_buffer(), sum_)


def _check(uri: str, content: pa.Buffer, sum_: int) -> None:
    if zlib.crc32(content) != sum_:
        raise damaged(uri)


def damaged(uri: str) -> StorageError:
    """Return the error for a file of the staging area."""
    return StorageError(
        f'could not read file "{uri}": its checksum is wrong',
        hint="The file was damaged after it was written; the work is tried again.",
        sqlstate="XX001",
    )


class Payloads:
    """The payloads of one job; made by ``payloads``."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._folder = _folder(storage)
        self._uris: list[str] = []

    def put(self, table: pa.Table) -> Payload:
        """Store a table for tasks; return its payload. Raises StorageError."""
        if table.nbytes < INLINE_BYTES:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            return Payload(stream=sink.getvalue().to_pybytes())
        if not self._uris:
            make_folder(self._folder)
        uri = f"{self._folder}/{uuid.uuid4()}.arrow"
        self._uris.append(uri)
        with storage_call("write file", uri):
            filesystem, path = resolve(uri)
            with filesystem.open_output_stream(path) as target:
                file = SummedFile(target)
                with pa.ipc.new_file(file, table.schema) as writer:
                    writer.write_table(table)
                return Payload(uri=uri, sum=file.take().sum)

    def clear(self) -> None:
        """Remove the files."""
        while self._uris:
            self._storage.remove(self._uris.pop())


@contextmanager
def payloads(storage: Storage) -> Iterator[Payloads]:
    """Yield a job's payloads; remove their files at the end."""
    made = Payloads(storage)
    try:
        yield made
    finally:
        made.clear()


def remove_leftovers(storage: Storage, older_than: datetime) -> int:
    """Remove the files and folders of jobs that a crash ended; return their number.

    ``older_than``: younger files are left alone, because another node of the same warehouse may use
    them now.
    """
    left = [info for info in storage.list(_folder(storage)) if _older(storage, info, older_than)]
    for info in left:
        uri = f"{_folder(storage)}/{info.base_name}"
        if info.is_file:
            storage.remove(uri)
        else:
            storage.discard_folder(uri)
    return len(left)


def _older(storage: Storage, info: fs.FileInfo, than: datetime) -> bool:
    """Return whether a file or folder is old. A folder in an object store has no time: all of its
    files must be old."""
    times = [info.mtime]
    if info.mtime is None and not info.is_file:
        times = [inside.mtime for inside in storage.list(f"{_folder(storage)}/{info.base_name}")]
    return bool(times) and all(at is not None and at < than for at in times)


def _folder(storage: Storage) -> str:
    return f"{storage.uri}/{_STAGING}"
