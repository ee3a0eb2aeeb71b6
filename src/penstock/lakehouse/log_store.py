"""Log stores: put entries of Delta logs if they are absent, and write checkpoints.

Exactly one writer puts the entry of a version, durable on return (law 1). All others get
CommitConflict.

Local entries are put by link(2), which fails if the name exists; entries in S3 and Azure by a
conditional put. For other places (HDFS, Google) we have no such call, so Delta's own LogStore puts
them, through the session's JVM.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PermissionDeniedError
from obstore.exceptions import UnauthenticatedError as Unauthenticated
from obstore.store import AzureStore, S3Store
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from penstock.errors import CommitConflict, ConfigurationError, StorageError
from penstock.lakehouse.checkpoint import remove_expired_entries, write_checkpoint
from penstock.lakehouse.cluster import Cluster
from penstock.lakehouse.log import entry_uri, list_log
from penstock.lakehouse.object_store import (
    AZURE_SCHEMES,
    S3_SCHEMES,
    azure_settings,
    place_of,
    region_of,
    s3_settings,
    scheme_of,
)
from penstock.lakehouse.storage import (
    Storage,
    fsync_folder,
    local_path,
    storage_call,
    write_temporary,
)

if TYPE_CHECKING:
    from obstore.store import AzureConfig, RetryConfig

_PAUSES: Final = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds between attempts to put an entry that the store reports as existing, but that cannot be
read."""
_PROBES: Final = "_penstock/staging"
"""The folder for probes, from which leftovers of killed processes are removed later."""


class LogStore(Protocol):
    """A writer of log entries."""

    def check(self) -> None:
        """Raise an error if nothing must be written now. Call it before ``put``, also to find out
        whether a put has begun at all."""

    def put(self, table_uri: str, version: int, lines: Sequence[str]) -> None:
        """Put one entry, durable on return. Raises CommitConflict if it exists already."""

    def checkpoint(self, table_uri: str, properties: Mapping[str, str]) -> None:
        """Write a checkpoint of the newest version and drop log files past their retention."""


class Unguarded:
    """A store that may always be written to."""

    def check(self) -> None:
        """Return."""


@dataclass(frozen=True)
class LocalLogStore(Unguarded):
    """The log store of a local warehouse."""

    storage: Storage

    def put(self, table_uri: str, version: int, lines: Sequence[str]) -> None:
        """Write a temporary file, sync it, link it to the name, sync the folder.

        Raises StorageError (XX001) if the version before is gone, because an older copy of the
        folder was put in its place: no reader would find an entry after a gap.
        """
        _check_behind(self.storage, table_uri, version)
        path = Path(local_path(entry_uri(table_uri, version)))
        with storage_call("write file", str(path)):
            temporary = write_temporary(path, _content(lines), fsync=self.storage.fsync)
            try:
                os.link(temporary, path)
            except FileExistsError:
                # a network file system may have made the link, and report "exists" to a retry
                if temporary.stat().st_nlink < 2:
                    raise _lost(table_uri, version) from None
            finally:
                temporary.unlink(missing_ok=True)
            if self.storage.fsync:
                # before anybody learns of the version: a power failure could still lose the name
                fsync_folder(str(path.parent))

    def checkpoint(self, table_uri: str, properties: Mapping[str, str]) -> None:
        """Let delta-rs write the checkpoint, then remove expired entries."""
        write_checkpoint(self.storage, table_uri)
        remove_expired_entries(self.storage, table_uri, properties)


@dataclass(frozen=True)
class ObjectLogStore(Unguarded):
    """The log store of an object store with conditional puts; it needs no Spark. ``before``: is
    called before each try of a put."""

    storage: Storage
    before: Callable[[], None] = lambda: None

    def put(self, table_uri: str, version: int, lines: Sequence[str]) -> None:
        """Put one object. Raises StorageError (XX001) as in a local warehouse."""
        _check_behind(self.storage, table_uri, version)
        uri, content = entry_uri(table_uri, version), _content(lines)
        for pause in (*_PAUSES, None):
            self.before()
            if _put(uri, content):
                return
            there = self.storage.read_if_there(uri)
            # each entry has an id of its own (commitInfo.txnId): if the answer to our put was lost,
            # this is our entry
            if there == content:
                return
            if there is not None:
                raise _lost(table_uri, version)
            # S3 answers 409 while another put is under way, which may still fail. It may be our
            # own put, which the client gave up and sent again.
            if pause is None:
                raise StorageError(f'could not write file "{uri}": another put of it is under way')
            time.sleep(pause)

    def checkpoint(self, table_uri: str, properties: Mapping[str, str]) -> None:
        """Let delta-rs write the checkpoint, then remove expired entries."""
        write_checkpoint(self.storage, table_uri)
        remove_expired_entries(self.storage, table_uri, properties)


@dataclass(frozen=True)
class SparkLogStore(Unguarded):
    """The log store of any place that Spark reaches, through Delta's LogStore for its scheme."""

    cluster: Cluster | SparkSession

    @property
    def spark(self) -> SparkSession:
        """The present session: Spark may have ended since the last call."""
        return self.cluster if isinstance(self.cluster, SparkSession) else self.cluster.session

    def put(self, table_uri: str, version: int, lines: Sequence[str]) -> None:
        """Call LogStore.write without overwriting."""
        jvm: Any = self.spark._jvm
        java = jvm.java.util.ArrayList()
        for line in lines:
            java.add(line)
        content = jvm.scala.jdk.javaapi.CollectionConverters.asScala(java.iterator())
        path = jvm.org.apache.hadoop.fs.Path(entry_uri(table_uri, version))
        try:
            hadoop = self.spark._jsparkSession.sessionState().newHadoopConf()
            self._delta_log(table_uri).store().write(path, content, False, hadoop)
        except Py4JJavaError as error:
            kind = error.java_exception.getClass().getName()
            if kind.endswith("FileAlreadyExistsException"):
                if self._is_ours(table_uri, version, lines):
                    return
                raise _lost(table_uri, version) from None
            raise StorageError(
                f'could not write file "{path.toString()}": {error.java_exception.getMessage()}'
            ) from error

    def _is_ours(self, table_uri: str, version: int, lines: Sequence[str]) -> bool:
        """Return whether the entry is the one to be put: each has an id of its own
        (commitInfo.txnId). A client that asks again after a lost answer finds its own entry.
        """
        jvm: Any = self.spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(entry_uri(table_uri, version))
        hadoop = self.spark._jsparkSession.sessionState().newHadoopConf()
        try:
            found = self._delta_log(table_uri).store().read(path, hadoop)
        except Py4JJavaError as error:
            raise StorageError(
                f'could not read file "{path.toString()}": {error.java_exception.getMessage()}'
            ) from error
        return list(jvm.scala.jdk.javaapi.CollectionConverters.asJava(found)) == list(lines)

    def checkpoint(self, table_uri: str, properties: Mapping[str, str]) -> None:
        """Let Delta write the checkpoint and remove entries; it reads the properties itself."""
        try:
            delta_log = self._delta_log(table_uri)
            none = self._none()
            delta_log.checkpoint(delta_log.update(False, none, none), none)
        except Py4JJavaError as error:
            raise StorageError(
                f'could not write checkpoint of "{table_uri}": {error.java_exception.getMessage()}'
            ) from error

    def _delta_log(self, table_uri: str) -> Any:
        jvm: Any = self.spark._jvm
        delta = jvm.org.apache.spark.sql.delta
        return delta.DeltaLog.forTable(self.spark._jsparkSession, table_uri)

    def _none(self) -> Any:
        jvm: Any = self.spark._jvm
        return jvm.scala.Option.empty()


@dataclass(frozen=True)
class GuardedLogStore:
    """A log store whose ``check`` raises the errors of ``guard``."""

    store: LogStore
    guard: Callable[[], None]

    def check(self) -> None:
        """Call the guard."""
        self.guard()

    def put(self, table_uri: str, version: int, lines: Sequence[str]) -> None:
        """Put one entry."""
        self.store.put(table_uri, version, lines)

    def checkpoint(self, table_uri: str, properties: Mapping[str, str]) -> None:
        """Write a checkpoint. Raises the errors of ``check``, too."""
        self.check()
        self.store.checkpoint(table_uri, properties)


def has_plain_puts(storage: Storage) -> bool:
    """Return whether entries are put without Spark."""
    return storage.is_local or scheme_of(storage.uri) in SCHEMES


def log_store(
    storage: Storage, spark: Cluster | None, before: Callable[[], None] = lambda: None
) -> LogStore:
    """Return a warehouse's log store. ``before``: as for ``ObjectLogStore``. Raises
    ConfigurationError if it needs Spark and gets none."""
    if storage.is_local:
        return LocalLogStore(storage)
    if scheme_of(storage.uri) in SCHEMES:
        return ObjectLogStore(storage, before)
    if spark is None:
        raise ConfigurationError(
            f'warehouse "{storage.uri}" is an object store and needs a Spark session to commit'
        )
    return SparkLogStore(spark)


def check_conditional_puts(storage: Storage) -> None:
    """If entries are put by conditional puts, check them by putting one object twice.

    Raises StorageError; ConfigurationError if the store accepts both puts: then two writers would
    both believe to be first, and the commits of one would be lost.
    """
    if storage.is_local or scheme_of(storage.uri) not in SCHEMES:
        return
    uri = f"{storage.uri}/{_PROBES}/{uuid.uuid4()}"
    try:
        _put(uri, b"first")
        if not _put(uri, b"second"):
            return
    finally:
        storage.remove(uri)
    raise ConfigurationError(
        f'the object store of warehouse "{storage.uri}" has no conditional writes',
        detail="An object that was there already was put again in spite of If-None-Match: *; "
        "commits of several writers would replace each other.",
        hint="Use a store, or a version of it, that answers such a put with 412 Precondition "
        "Failed, or a folder.",
    )


def _put(uri: str, content: bytes) -> bool:
    """Put an object; return False if it exists already, or another put of it is under way."""
    with storage_call("write file", uri):
        try:
            put_if_absent(uri, content)
        except FileExistsError:
            return False
    return True


def _content(lines: Sequence[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def _check_behind(storage: Storage, table_uri: str, version: int) -> None:
    """Raise StorageError (XX001) unless the version before exists, as an entry, or as a checkpoint
    if the entry was cleaned up."""
    before = version - 1
    if before < 0 or storage.exists(entry_uri(table_uri, before)):
        return
    if before not in list_log(storage, table_uri).checkpoints:
        raise _gone(table_uri, before)


def _gone(table_uri: str, version: int) -> StorageError:
    return StorageError(
        f'version {version} of table "{table_uri}" was there and is gone from its log',
        detail="The folder was replaced by an older copy, or entries were removed. Nothing was "
        "written.",
        hint="Put the newer copy of the folder back.",
        sqlstate="XX001",
    )


def _lost(table_uri: str, version: int) -> CommitConflict:
    return CommitConflict(
        f'another writer has committed version {version} of table "{table_uri}"',
        hint="Load the table again and retry.",
    )


# Conditional puts: S3 and Azure can put an object only if it is absent. Exactly one writer of a
# name puts its object, whole and durable when the call returns. pyarrow's filesystems cannot do it,
# so this goes through object_store (Rust), whose put is a PUT with ``If-None-Match: *``. It finds
# credentials in the environment by itself.

SCHEMES: Final = (*S3_SCHEMES, *AZURE_SCHEMES)
_REQUEST: Final = timedelta(seconds=14)
"""The longest request. An entry has a few megabytes at most."""
_RETRIES: Final[RetryConfig] = {"retry_timeout": timedelta(seconds=5)}
"""No try begins later than this after the first one. A put that lasted longer would arrive after
another node has taken the lease (``node.lease``)."""
LONGEST_PUT_S: Final = (_REQUEST + _RETRIES["retry_timeout"]).total_seconds()
"""The seconds after which no try of a put is under way."""


def put_if_absent(uri: str, content: bytes) -> None:
    """Put an object. Raises PermissionError, OSError, without secrets in the message;
    FileExistsError if the object exists.

    If an answer is lost, the client sends the put again and finds its own object. So after
    FileExistsError the caller must check whose object it is.
    """
    root, _, path = uri.partition("://")[2].partition("/")
    try:
        store = _store(f"{scheme_of(uri)}://{root}/")
        obstore.put(store, path, content, mode="create", use_multipart=False)
    except AlreadyExistsError:
        raise FileExistsError(uri) from None
    except (PermissionDeniedError, Unauthenticated) as error:
        raise PermissionError(_message(error)) from None
    except BaseError as error:
        raise OSError(_message(error)) from None


@lru_cache(maxsize=64)
def _store(root: str) -> S3Store | AzureStore:
    place = place_of(root)
    if place.scheme in S3_SCHEMES:
        s3 = s3_settings()
        return S3Store(
            place.container,
            region=region_of(place.container),
            client_options={"allow_http": s3.plain, "timeout": _REQUEST},
            config={"endpoint": s3.endpoint} if s3.endpoint else None,
            retry_config=_RETRIES,
        )
    azure = azure_settings(place.account)
    config: AzureConfig = {"account_name": azure.account}
    if azure.root:
        config["endpoint"] = azure.root
    if azure.key:
        config["account_key"] = azure.key
    elif azure.sas:
        config["sas_key"] = azure.sas
    return AzureStore(
        place.container,
        client_options={"allow_http": azure.plain, "timeout": _REQUEST},
        config=config,
        retry_config=_RETRIES,
    )


def _message(error: BaseError) -> str:
    """Return the first line of a message; the client's own structures follow it."""
    return str(error).partition("\n")[0]
