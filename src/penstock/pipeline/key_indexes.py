"""The indexes of a node: of small files in memory, of large ones in its folder.

In: files of which somebody looks for a few keys. Out: their indexes, or None, and then the file
itself is to be searched. A small file is read at once, in this process, and its index stays in
memory, least recently used ones leaving. A large one is read by a Spark job beside the batches once
it was asked for a few times; its index is a file, which the system maps into memory. All of it can
be lost and is made again: nothing is forced to disk, and what is damaged is not used.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import threading
import uuid
from collections import Counter, OrderedDict, deque
from hashlib import blake2b
from pathlib import Path
from typing import Final

import numpy as np
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from penstock.errors import PenstockError
from penstock.lakehouse.cluster import Spark
from penstock.pipeline.job import HERE_SECONDS, run_job
from penstock.pipeline.key_index import FileIndex, IndexItem, build, build_bytes

log = logging.getLogger(__name__)

_SMALL_ROWS: Final = 65_536
_LARGEST_ROWS: Final = 8_000_000
"""An index goes through the driver on its way to the folder: 20 bytes a row."""
_MEMORY_BYTES: Final = 64 << 20
_HELD_AT_MOST: Final = 100_000
"""Files known, with an index or known to have none."""
_ASKED: Final = 2
"""Searches of a file that come before its index: a batch now and then is not worth one."""
_SECONDS_PER_ROW: Final = 1e-6
_SUFFIX: Final = ".index"

_TROUBLE: Final = (PenstockError, OSError, Py4JError, PySparkException)
"""A full disk, a file that is gone, a Spark that ends."""

_Key = tuple[str, str, tuple[str, ...], tuple[str, ...]]


class KeyIndexes:
    """Of one node; threads share it. ``folder``: for large files' indexes, at most ``disk_bytes``
    together; 0: none has one."""

    def __init__(self, folder: Path, disk_bytes: int) -> None:
        self._folder = folder
        self.disk_bytes = disk_bytes
        self._changed = threading.Condition()
        self._held: OrderedDict[_Key, FileIndex | None] = OrderedDict()
        self._sizes: dict[_Key, int] = {}
        self._in_memory = 0
        self._asked: Counter[_Key] = Counter()
        self._due: deque[tuple[Spark, IndexItem]] = deque()
        self._builder: threading.Thread | None = None
        self._closed = False

    def index(self, item: IndexItem, spark: Spark) -> FileIndex | None:
        """The index of a file, if there is one by now. Raises StorageError."""
        key = _key(item)
        with self._changed:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        small = item.rows <= _SMALL_ROWS
        found = build(item) if small else self._mapped(item)
        with self._changed:
            if small or found is not None:
                self._hold(key, found, found.nbytes if small and found is not None else 0)
            elif self.disk_bytes and item.rows <= _LARGEST_ROWS:
                self._ask(key, spark, item)
        return found

    def prepare(self, item: IndexItem, spark: Spark) -> None:
        """A small file was written: its index is made beside the batches, before it is needed."""
        with self._changed:
            if item.rows <= _SMALL_ROWS:
                self._put(spark, item, soon=True)

    def close(self) -> None:
        """End what is built; indexes that are there stay."""
        with self._changed:
            self._closed = True
            self._due.clear()
            self._changed.notify_all()
            builder = self._builder
        if builder is not None:
            builder.join()

    def settle(self) -> None:
        """Wait until nothing is due."""
        with self._changed:
            self._changed.wait_for(lambda: self._builder is None or self._closed)

    def _hold(self, key: _Key, index: FileIndex | None, size: int) -> None:
        self._in_memory += size - self._sizes.get(key, 0)
        self._held[key], self._sizes[key] = index, size
        while self._in_memory > _MEMORY_BYTES or len(self._held) > _HELD_AT_MOST:
            oldest, _ = self._held.popitem(last=False)
            self._in_memory -= self._sizes.pop(oldest)

    def _ask(self, key: _Key, spark: Spark, item: IndexItem) -> None:
        self._asked[key] += 1
        if self._asked[key] == _ASKED:
            self._put(spark, item)

    def _put(self, spark: Spark, item: IndexItem, *, soon: bool = False) -> None:
        if self._closed:
            return
        (self._due.appendleft if soon else self._due.append)((spark, item))
        if self._builder is None:
            self._builder = threading.Thread(target=self._build, name="key index", daemon=True)
            self._builder.start()

    def _build(self) -> None:
        while True:
            with self._changed:
                if not self._due or self._closed:
                    self._builder = None
                    self._changed.notify_all()
                    return
                spark, item = self._due.popleft()
            if item.rows <= _SMALL_ROWS:
                with contextlib.suppress(PenstockError):  # its batch was given up
                    self.index(item, spark)
            else:
                self._build_large(spark, item)

    def _build_large(self, spark: Spark, item: IndexItem) -> None:
        made = None
        try:
            made = self._build_one(spark, item)
        except _TROUBLE as error:
            if not self._closed:
                log.warning("no index of %s/%s: %s", item.table_uri, item.path, error)
        with self._changed:
            # none: it is not tried again and again
            self._hold(_key(item), made, 0)
            self._asked.pop(_key(item), None)

    def _build_one(self, spark: Spark, item: IndexItem) -> FileIndex | None:
        cost = item.rows * _SECONDS_PER_ROW
        name = f"penstock: key index {item.path}"[:200]
        results = run_job(spark, [(cost, item)], build_bytes, name, here=HERE_SECONDS)
        if not results:
            return None
        self._write(item, results[0])
        return self._mapped(item)

    def _write(self, item: IndexItem, content: bytes) -> None:
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
        """The least recently opened ones go; whoever has one mapped keeps it."""
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

    def _files(self) -> list[Path]:
        return [file for file in self._folder.iterdir() if file.suffix in (_SUFFIX, ".tmp")]

    def _mapped(self, item: IndexItem) -> FileIndex | None:
        path = self._path(item)
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):  # none, or an empty one
            return None
        index = FileIndex.from_buffer(np.frombuffer(mapped, np.uint8), item)
        with contextlib.suppress(OSError):
            if index is None:
                log.warning("%s is damaged: it is made again", path)
                path.unlink()
            else:
                os.utime(path)
        return index

    def _path(self, item: IndexItem) -> Path:
        name = blake2b(repr(_key(item)).encode(), digest_size=16).hexdigest()
        return self._folder / f"{name}{_SUFFIX}"


def _key(item: IndexItem) -> _Key:
    return item.table_uri, item.path, item.key, item.kinds
