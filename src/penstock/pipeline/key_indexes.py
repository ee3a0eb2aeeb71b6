"""The indexes of a node: those of small files in memory, those of large ones in its folder.

A search for a few keys asks for the indexes of files, and gets None for a file that it must search
itself. A small file is read at once, in this process, if the batch has time for it, and its index
stays in memory while it is used. If memory is full, and for large files, an index is a file that is
mapped into memory. After a few requests a large file is read beside the batches, a very large one
by a Spark job. Lost indexes are made again, so nothing is forced to disk, and damaged indexes are
not used.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.lakehouse.cluster import Spark
from penstock.pipeline.job import run_job
from penstock.pipeline.key_index import FileIndex, IndexItem, build, build_bytes

log = logging.getLogger(__name__)

_SMALL_ROWS: Final = 65_536
_LARGEST_ROWS: Final = 8_000_000
"""The most rows of a file with an index. On its way to the folder the index goes through the
driver, with 20 bytes a row."""
_MEMORY_BYTES: Final = 64 << 20
_UNUSED_S: Final = 60.0
"""Seconds until an unused index leaves memory. Its file may have left the table, which nobody
reports. The next request makes the index again."""
_HELD_AT_MOST: Final = 100_000
"""The most files remembered, whether they have an index or not."""
_ASKED: Final = 2
"""The number of searches of a file before it gets an index: for rare batches it does not pay."""
_TRIED_AGAIN_S: Final = 600.0
_HERE_SECONDS: Final = 1.0
"""The estimate up to which an index is made in this process, beside the batches: if only sessions
write, Spark may not have been started."""
_BUILDER_STAYS_S: Final = 10.0
"""Seconds for which the thread that makes indexes waits for more to do."""
_SUFFIX: Final = ".index"

_Key = tuple[str, str, tuple[str, ...], tuple[str, ...]]


@dataclass
class Time:
    """The time that a batch may spend on indexing small files, counted in their ``rows``."""

    rows: int = 2 * _SMALL_ROWS

    def take(self, rows: int) -> bool:
        """Spend time on ``rows``; return whether enough was left."""
        self.rows -= rows
        return self.rows >= 0


@dataclass
class _Held:
    """An index in memory. ``index``: None if the file has none. ``size``: its bytes of memory."""

    index: FileIndex | None
    size: int
    used: float


class KeyIndexes:
    """The indexes of one node; threads share it. ``folder``: for indexes of large files, which take
    at most ``disk_bytes`` together; 0: large files have none."""

    def __init__(self, folder: Path, disk_bytes: int) -> None:
        self._folder = folder
        self.disk_bytes = disk_bytes
        self._changed = threading.Condition()
        self._held: OrderedDict[_Key, _Held] = OrderedDict()
        """Mapped indexes, and files known to have no index. They are kept, since mapping an index
        file again would read all of it."""
        self._small: OrderedDict[_Key, _Held] = OrderedDict()
        """Indexes in memory, the least recently used first."""
        self._in_memory = 0
        self._mapped_from: dict[Path, _Key] = {}
        self._asked: Counter[_Key] = Counter()
        self._not_before: dict[_Key, float] = {}
        self._due: deque[tuple[Spark, IndexItem]] = deque()
        self._queued: set[_Key] = set()
        self._builder: threading.Thread | None = None
        self._closed = False

    def index(self, item: IndexItem, spark: Spark, left: Time) -> FileIndex | None:
        """Return the index of a file; None if there is none yet. Raises StorageError."""
        key = _key(item)
        with self._changed:
            for known in (self._small, self._held):
                if (held := known.get(key)) is not None:
                    held.used = time.monotonic()
                    known.move_to_end(key)
                    return held.index
        if found := self._mapped(item):
            return self._hold(key, found, 0)
        if item.rows <= _SMALL_ROWS and left.take(item.rows):
            return self._build_small(item)
        with self._changed:
            if item.rows <= _SMALL_ROWS:
                self._put(spark, item)
            elif self.disk_bytes and item.rows <= _LARGEST_ROWS:
                self._ask(key, spark, item)
        return None

    def drop_damaged(self, item: IndexItem) -> None:
        """Forget an index whose file was changed after it was mapped; it is made again."""
        path = self._path(item)
        log.warning("%s is damaged: it is made again", path)
        path.unlink(missing_ok=True)
        with self._changed:
            self._mapped_from.pop(path, None)
            self._drop(_key(item))

    def prepare(self, item: IndexItem, spark: Spark) -> None:
        """Have the index of a new file made beside the batches, before it is needed, if the file is
        small."""
        with self._changed:
            if item.rows <= _SMALL_ROWS:
                self._put(spark, item, soon=True)

    def close(self) -> None:
        """Stop building; finished indexes stay."""
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify_all()
            builder = self._builder
        if builder is not None:
            builder.join()

    def settle(self) -> None:
        """Wait until no index is due."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queued or self._closed)

    def _hold(self, key: _Key, index: FileIndex | None, size: int) -> FileIndex | None:
        with self._changed:
            self._drop(key)
            self._drop_unused()
            self._in_memory += size
            (self._small if size else self._held)[key] = _Held(index, size, time.monotonic())
            while self._in_memory > _MEMORY_BYTES:
                self._drop(next(iter(self._small)))
            if len(self._held) > _HELD_AT_MOST:
                self._held.popitem(last=False)
        return index

    def _drop(self, key: _Key) -> None:
        self._held.pop(key, None)
        if (held := self._small.pop(key, None)) is not None:
            self._in_memory -= held.size

    def _drop_unused(self) -> None:
        unused = time.monotonic() - _UNUSED_S
        while self._small and self._small[first := next(iter(self._small))].used < unused:
            self._drop(first)

    def _has_room(self, size: int) -> bool:
        """Return whether memory has room for ``size`` bytes besides the indexes in use."""
        with self._changed:
            self._drop_unused()
            return self._in_memory + size <= _MEMORY_BYTES

    def _ask(self, key: _Key, spark: Spark, item: IndexItem) -> None:
        if len(self._asked) >= _HELD_AT_MOST:
            self._asked.clear()
        self._asked[key] += 1
        if self._asked[key] >= _ASKED:
            self._put(spark, item)

    def _put(self, spark: Spark, item: IndexItem, *, soon: bool = False) -> None:
        key = _key(item)
        late = time.monotonic() < self._not_before.get(key, 0.0)
        if self._closed or late or key in self._queued:
            return
        self._queued.add(key)
        (self._due.appendleft if soon else self._due.append)((spark, item))
        self._changed.notify_all()
        if self._builder is None:
            self._builder = threading.Thread(target=self._build, name="key index", daemon=True)
            self._builder.start()

    def _build(self) -> None:
        while True:
            with self._changed:
                # A new thread for each batch would take a millisecond of it.
                self._changed.wait_for(lambda: self._due or self._closed, _BUILDER_STAYS_S)
                if not self._due or self._closed:
                    self._builder = None
                    return
                spark, item = self._due.popleft()
            self._build_in_background(spark, item)
            with self._changed:
                self._queued.discard(_key(item))
                self._asked.pop(_key(item), None)
                self._changed.notify_all()

    def _build_in_background(self, spark: Spark, item: IndexItem) -> None:
        small = item.rows <= _SMALL_ROWS
        with self._changed:
            if (
                _key(item) in self._held or _key(item) in self._small
            ):  # a batch has made it meanwhile
                return
        try:
            if small:
                self._build_small(item)
            else:
                self._build_large(spark, item)
        except Exception as error:  # a full disk, a file that is gone, a Spark that ends
            # A small file may be gone because its batch was given up, which needs no warning.
            if not self._closed and not (small and isinstance(error, PenstockError)):
                log.warning("no index of %s/%s: %s", item.table_uri, item.path, error)
            self._not_before[_key(item)] = time.monotonic() + _TRIED_AGAIN_S

    def _build_small(self, item: IndexItem) -> FileIndex | None:
        key, found = _key(item), build(item)
        if found is None or self._has_room(found.nbytes):
            return self._hold(key, found, 0 if found is None else found.nbytes)
        mapped = None
        if self.disk_bytes:
            self._write(item, found.to_bytes(item))
            mapped = self._mapped(item)
        self._hold(key, mapped, 0)
        return found

    def _build_large(self, spark: Spark, item: IndexItem) -> None:
        name = f"penstock: key index {item.path}"[:200]
        results = run_job(spark, [(item.seconds, item)], build_bytes, name, here=_HERE_SECONDS)
        if results:
            self._write(item, results[0])
        self._hold(_key(item), self._mapped(item) if results else None, 0)

    def _write(self, item: IndexItem, content: bytes) -> None:
        if len(content) > self.disk_bytes:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        self._make_room(len(content))
        path = self._path(item)
        whole = path.with_name(f"{uuid.uuid4().hex}.tmp")
        try:
            whole.write_bytes(content)
            whole.replace(path)
        finally:
            whole.unlink(missing_ok=True)

    def _make_room(self, size: int) -> None:
        """Remove the least recently opened index files. An index in use stays mapped until its
        search ends."""
        files = sorted(
            ((file.stat().st_mtime, file.stat().st_size, file) for file in self._files()),
            key=lambda each: each[0],
        )
        held = sum(length for _, length, _ in files)
        for _, length, file in files:
            if held + size <= self.disk_bytes:
                return
            file.unlink(missing_ok=True)
            held -= length
            with self._changed:
                if (key := self._mapped_from.pop(file, None)) is not None:
                    self._drop(key)

    def _files(self) -> list[Path]:
        return [file for file in self._folder.iterdir() if file.suffix in (_SUFFIX, ".tmp")]

    def _mapped(self, item: IndexItem) -> FileIndex | None:
        path = self._path(item)
        try:
            # The buffer outlives the open file: a process may not have many open files.
            with pa.memory_map(str(path)) as file:
                buffer = file.read_buffer()
        except OSError:
            return None
        data = np.frombuffer(memoryview(buffer), np.uint8)
        index = FileIndex.from_buffer(data, item, partial(_has_size, path, len(data)))
        with contextlib.suppress(OSError):
            if index is None:
                log.warning("%s is damaged: it is made again", path)
                path.unlink()
            else:
                os.utime(path)
        if index is not None:
            with self._changed:
                self._mapped_from[path] = _key(item)
        return index

    def _path(self, item: IndexItem) -> Path:
        name = blake2b(repr(_key(item)).encode(), digest_size=16).hexdigest()
        return self._folder / f"{name}{_SUFFIX}"


def _has_size(path: Path, size: int) -> bool:
    """Tell whether a mapped file has its size. One that was removed lives on in its mapping."""
    try:
        return path.stat().st_size == size
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _key(item: IndexItem) -> _Key:
    return item.table_uri, item.path, item.key, item.kinds
