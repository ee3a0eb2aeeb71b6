"""The log of one table: names of its files, reading entries, putting the next one if it is absent.

In: a table's URI, lines of actions. Out: entries; a put that exactly one writer of a version wins
(compare-and-swap), durable on return. What actions mean is left to ``state`` and ``actions``.

A local warehouse is put by link(2), which fails when the name exists. Object stores have no such
call in common, so there Delta's own LogStore does it, through the session's JVM.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from penstock.errors import CommitConflict, ConfigurationError, StorageError
from penstock.lakehouse.storage import (
    Storage,
    fsync_folder,
    is_local,
    local_path,
    storage_errors,
    write_temporary,
)

_ENTRY: Final = re.compile(r"^(\d{20})\.json$")
_CHECKPOINT: Final = re.compile(r"^(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet$")


class LogStore(Protocol):
    """Puts log entries."""

    def put(self, table_uri: str, version: int, lines: Sequence[str]) -> None:
        """Put one entry, durable on return. Raises CommitConflict when it exists already."""


@dataclass(frozen=True)
class LogListing:
    """What a log folder holds: versions of entries, and checkpoints with their parts' URIs."""

    entries: tuple[int, ...]
    checkpoints: dict[int, tuple[str, ...]]


@dataclass(frozen=True)
class LocalLogStore:
    """Entries of a local warehouse."""

    fsync: bool = True

    def put(self, table_uri: str, version: int, lines: Sequence[str]) -> None:
        """Write beside, sync, link to the name, sync the folder."""
        path = Path(local_path(entry_uri(table_uri, version)))
        with storage_errors("write file", str(path)):
            temporary = write_temporary(path, _content(lines), fsync=self.fsync)
            try:
                os.link(temporary, path)
            except FileExistsError:
                raise _lost(table_uri, version) from None
            finally:
                temporary.unlink(missing_ok=True)
            if self.fsync:
                fsync_folder(str(path.parent))


@dataclass(frozen=True)
class SparkLogStore:
    """Entries of any store that Spark reaches, through Delta's LogStore for its scheme."""

    spark: SparkSession

    def put(self, table_uri: str, version: int, lines: Sequence[str]) -> None:
        """LogStore.write without overwriting."""
        jvm: Any = self.spark._jvm
        session: Any = self.spark._jsparkSession
        java = jvm.java.util.ArrayList()
        for line in lines:
            java.add(line)
        content = jvm.scala.jdk.javaapi.CollectionConverters.asScala(java.iterator())
        store = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, table_uri).store()
        path = jvm.org.apache.hadoop.fs.Path(entry_uri(table_uri, version))
        try:
            store.write(path, content, False, session.sessionState().newHadoopConf())
        except Py4JJavaError as error:
            kind = error.java_exception.getClass().getName()
            if kind.endswith("FileAlreadyExistsException"):
                raise _lost(table_uri, version) from None
            raise StorageError(
                f'could not write file "{path.toString()}": {error.java_exception.getMessage()}'
            ) from error


def log_store(storage: Storage, spark: SparkSession | None) -> LogStore:
    """The store that fits a warehouse. Raises ConfigurationError when it needs a SparkSession."""
    if storage.is_local:
        return LocalLogStore(storage.fsync)
    if spark is None:
        raise ConfigurationError(
            f'warehouse "{storage.uri}" is an object store and needs a Spark session to commit'
        )
    return SparkLogStore(spark)


def log_folder(table_uri: str) -> str:
    """The log's folder."""
    return f"{table_uri}/_delta_log"


def entry_uri(table_uri: str, version: int) -> str:
    """The log entry of a version."""
    return f"{log_folder(table_uri)}/{version:020d}.json"


def list_log(storage: Storage, table_uri: str) -> LogListing:
    """List a log; no entries and no checkpoints when there is no table."""
    entries: list[int] = []
    parts: dict[tuple[int, int], list[str]] = {}
    for name in _names(storage, log_folder(table_uri)):
        if found := _ENTRY.match(name):
            entries.append(int(found[1]))
        elif found := _CHECKPOINT.match(name):
            uri = f"{log_folder(table_uri)}/{name}"
            parts.setdefault((int(found[1]), int(found[3] or 1)), []).append(uri)
    whole = {
        version: tuple(sorted(uris))
        for (version, count), uris in sorted(parts.items())
        if len(uris) == count
    }
    return LogListing(tuple(sorted(entries)), whole)


def read_entry(storage: Storage, table_uri: str, version: int) -> list[dict[str, Any]] | None:
    """The actions of one version, or None when there is no such entry."""
    try:
        content = storage.read(entry_uri(table_uri, version))
    except StorageError as error:
        if error.sqlstate == "58P01":
            return None
        raise
    return [json.loads(line) for line in content.splitlines() if line.strip()]


def _names(storage: Storage, folder: str) -> Iterator[str]:
    if not is_local(folder):
        yield from (info.base_name for info in storage.list(folder))
        return
    # a log may have a hundred thousand entries: names only, no stat(2) for each
    with (
        storage_errors("read directory", folder),
        contextlib.suppress(FileNotFoundError),
        os.scandir(local_path(folder)) as found,
    ):
        yield from (entry.name for entry in found)


def _content(lines: Sequence[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def _lost(table_uri: str, version: int) -> CommitConflict:
    return CommitConflict(
        f'another writer has committed version {version} of table "{table_uri}"',
        hint="Load the table again and retry.",
    )
