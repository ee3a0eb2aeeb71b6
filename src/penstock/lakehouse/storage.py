"""The storage of the warehouse: paths, filesystems, durability and errors, for every file we touch.

``Storage`` writes, reads, lists and removes files by their URIs, in a local folder or in an object
store through pyarrow. A written file is durable when the call returns (law 1). The other files of
this room define the contents.

Only ``fsync_file`` and ``fsync_folder`` sync, so a test can count the calls.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import fs

from penstock.errors import StorageError
from penstock.lakehouse import object_store
from penstock.wait_event import WaitEventType, waiting

log = logging.getLogger(__name__)

_SCHEME: Final = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*):")

# errcode_for_file_access (elog.c)
_SQLSTATE: Final = {
    errno.EPERM: "42501",
    errno.EACCES: "42501",
    errno.EROFS: "42501",
    errno.ENOENT: "58P01",
    errno.EEXIST: "58P02",
    errno.EMFILE: "53000",
    errno.ENFILE: "53000",
    errno.ENOSPC: "53100",
    errno.EDQUOT: "53100",
    errno.EFBIG: "53100",
}
_HINT: Final = {
    "53100": "Free disk space under the warehouse; nothing of this batch was committed, and the "
    "subscription goes on where it was.",
    "42501": "Give the node's user read and write permission on the warehouse.",
    "53000": "Raise the limit of open files (ulimit -n).",
}
_DENIED: Final = re.compile(
    "ACCESS_DENIED|SIGNATURE_DOES_NOT_MATCH|INVALID_ACCESS_KEY_ID|INVALID_SIGNATURE|EXPIRED|"
    "AuthenticationFailed|AuthorizationFailure|AuthorizationPermissionMismatch"
)
"""The words in pyarrow's messages by which AWS and Azure refuse access."""
_DENIED_HINT: Final = (
    "Set credentials in the environment of this command (AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or AZURE_STORAGE_KEY) that may read, write, list and delete there."
)
_DAMAGED: Final = re.compile(
    r"CRC checksum verification failed|Couldn't deserialize thrift|\(corrupt file\?\)|"
    r"Corrupt \w+ compressed data|decompress(ion)? failed|magic bytes not found|"
    r"flatbuffer(s message|-encoded)|Malformed (Parquet )?schema|Unexpected end of stream|"
    r"didn't decompress to expected size|Invalid page header|Dictionary page must be before|"
    r"only plain dictionary encoding"
)
"""The phrases of Parquet's and Arrow's readers for a file whose bytes are not those written."""
_DAMAGED_HINT: Final = "The file is damaged: put it back from a copy."
_DELETIONS: Final = 10


@dataclass(frozen=True)
class Storage:
    """The files of a warehouse; a value that is sent to executors. ``uri``: the warehouse's root.
    ``held``: files that exist only in memory, by URI; they are read as if they were stored.

    ``fsync``: sync files and folders of a local warehouse (law 1). Off only if it is acceptable to
    lose the warehouse in a power failure.
    """

    uri: str
    fsync: bool = True
    held: Mapping[str, bytes] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "uri", normal_uri(self.uri))

    @property
    def is_local(self) -> bool:
        """Return whether this is a local folder, or one mounted under the same path everywhere."""
        return is_local(self.uri)

    def create_folder(self, uri: str) -> None:
        """Make a folder and its parents, durable on return; object stores need none.

        Existing folders are synced too, up to the warehouse: a process may have made them and been
        killed before it synced them.
        """
        if not is_local(uri):
            return
        with storage_errors("create directory", uri):
            folder, root = Path(local_path(uri)), Path(local_path(self.uri))
            chain = []
            while not folder.exists() or root in (folder, *folder.parents):
                chain.append(folder)
                folder = folder.parent
            for folder in reversed(chain):
                folder.mkdir(exist_ok=True)
                self.sync_folder(str(folder.parent))

    def sync_file(self, uri: str) -> None:
        """Make a written file's content durable."""
        if self.fsync and is_local(uri):
            with storage_errors("fsync file", uri):
                fsync_file(local_path(uri))

    def sync_folder(self, uri: str) -> None:
        """Make a folder's new names durable."""
        if self.fsync and is_local(uri):
            with storage_errors("fsync directory", uri):
                fsync_folder(local_path(uri))

    def write(self, uri: str, content: bytes) -> None:
        """Write a file, atomically replacing a file of that name; durable on return."""
        with storage_call("write file", uri):
            if is_local(uri):
                self._write_local(Path(local_path(uri)), content)
            else:
                filesystem, path = resolve(uri)
                with filesystem.open_output_stream(path) as sink:
                    sink.write(content)

    def _write_local(self, path: Path, content: bytes) -> None:
        # Content, name, folder: a power failure leaves the whole old file or the whole new one.
        temporary = write_temporary(path, content, fsync=self.fsync)
        try:
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        if self.fsync:
            fsync_folder(str(path.parent))

    def read(self, uri: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read a file or a range of it. Raises StorageError (58P01 if it does not exist)."""
        if uri in self.held:
            return self.held[uri][offset : None if length is None else offset + length]
        with storage_call("read file", uri):
            filesystem, path = resolve(uri)
            with filesystem.open_input_file(path) as source:
                if length is None and offset == 0:
                    return bytes(source.read())
                source.seek(offset)
                return bytes(source.read(length))

    def read_if_there(self, uri: str) -> bytes | None:
        """Read a file; return None if it does not exist."""
        try:
            return self.read(uri)
        except StorageError as error:
            if error.sqlstate == _SQLSTATE[errno.ENOENT]:
                return None
            raise

    def list(self, folder: str) -> list[fs.FileInfo]:
        """Return the files directly in a folder; none if it does not exist."""
        with storage_call("read directory", folder):
            filesystem, path = resolve(folder)
            return list(filesystem.get_file_info(fs.FileSelector(path, allow_not_found=True)))

    def exists(self, uri: str) -> bool:
        """Return whether there is a file or folder of that name."""
        if any(held == uri or held.startswith(f"{uri}/") for held in self.held):
            return True
        with storage_call("stat file", uri):
            filesystem, path = resolve(uri)
            return bool(filesystem.get_file_info(path).type != fs.FileType.NotFound)

    def remove(self, uri: str) -> None:
        """Remove a file that nobody needs; an error is only logged."""
        with contextlib.suppress(FileNotFoundError), _working("remove file", uri):
            try:
                filesystem, path = resolve(uri)
                filesystem.delete_file(path)
            except FileNotFoundError:
                raise
            except OSError as error:
                log.warning("could not remove file %s: %s", uri, _message(error))

    def discard_folder(self, uri: str) -> None:
        """Remove a folder of temporary files. An error is only logged: a late task may still write
        there."""
        try:
            with _working("remove directory", uri):
                filesystem, path = resolve(uri)
                if filesystem.get_file_info(path).type == fs.FileType.Directory:
                    filesystem.delete_dir(path)
        except OSError as error:
            log.warning("could not remove directory %s: %s", uri, _message(error))

    def remove_empty_folder(self, uri: str) -> None:
        """Remove a folder if it is empty; object stores have no folders."""
        if is_local(uri):
            with contextlib.suppress(OSError):
                Path(local_path(uri)).rmdir()

    def remove_folder(self, uri: str) -> None:
        """Remove a folder with everything in it; do nothing if it is gone."""
        with storage_errors("remove directory", uri):
            filesystem, path = resolve(uri)
            if filesystem.get_file_info(path).type == fs.FileType.Directory:
                _delete(filesystem, path)
                if is_local(uri) and self.fsync:
                    fsync_folder(str(Path(path).parent))


def _delete(filesystem: fs.FileSystem, path: str) -> None:
    """Remove a folder. Try again if it changes meanwhile: others may add or remove files in it."""
    for again in reversed(range(_DELETIONS)):
        try:
            filesystem.delete_dir(path)
        except OSError as error:
            if not again or error.errno not in (errno.ENOTEMPTY, errno.ENOENT):
                raise
        if filesystem.get_file_info(path).type == fs.FileType.NotFound:
            return


def make_folder(uri: str) -> None:
    """Make a folder for temporary files, in tasks too; it need not survive a power failure."""
    if is_local(uri):
        with storage_errors("create directory", uri):
            Path(local_path(uri)).mkdir(parents=True, exist_ok=True)


def fsync_file(path: str) -> None:
    """Call fsync(2) on a local file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_folder(path: str) -> None:
    """Call fsync(2) on a local folder, which makes the names in it durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_temporary(path: Path, content: bytes, *, fsync: bool) -> Path:
    """Write ``content`` under a hidden name beside ``path``; remove the file if that fails."""
    # Readers of a table ignore hidden names; ``checkpoint`` removes those of killed processes.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        temporary.write_bytes(content)
        if fsync:
            fsync_file(str(temporary))
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def normal_uri(uri: str) -> str:
    """Return ``uri`` in the form that Spark takes: local paths become absolute ``file://`` URIs.

    Characters are not percent-encoded, because Hadoop's Path does not decode them.
    """
    if is_local(uri):
        return "file://" + os.path.abspath(local_path(uri))  # noqa: PTH100
    return uri.rstrip("/")


def is_local(uri: str) -> bool:
    """Return whether a URI is a plain path or a ``file:`` URI."""
    match = _SCHEME.match(uri)
    return match is None or match[1].lower() == "file"


def local_path(uri: str) -> str:
    """Return the path of a local URI (``file:///p``, ``file:/p`` or ``/p``)."""
    if not uri.lower().startswith("file:"):
        return uri
    return re.sub(r"^/{2,}", "/", uri[len("file:") :])


def resolve(uri: str) -> tuple[fs.FileSystem, str]:
    """Return pyarrow's filesystem for a URI, and the path in it."""
    if is_local(uri):
        return _local(), local_path(uri)
    scheme, rest = uri.split("://", 1)
    authority, _, path = rest.partition("/")
    filesystem, root = _remote(f"{scheme}://{authority}/")
    return filesystem, f"{root.rstrip('/')}/{path}" if root.strip("/") else path


@lru_cache(maxsize=1)
def _local() -> fs.FileSystem:
    return fs.LocalFileSystem()


@lru_cache(maxsize=64)
def _remote(root: str) -> tuple[fs.FileSystem, str]:
    return object_store.filesystem(root)


@contextlib.contextmanager
def storage_errors(action: str, uri: str, *, gone: str | None = None) -> Iterator[None]:
    """Turn errors of the system and of pyarrow into StorageError, worded as in PostgreSQL and
    without secrets. ``gone``: the hint if there is no such file."""
    try:
        with _working(action, uri):
            yield
    except (OSError, pa.ArrowException) as error:
        number = getattr(error, "errno", None)
        damaged = isinstance(error, pa.ArrowInvalid) or (not number and _is_damaged(error, uri))
        # The system's errors have a number; what a reader of a local file finds wrong has none.
        reads = action == "read file" and is_local(uri)
        damaged = damaged or (reads and isinstance(error, OSError) and not number)
        sqlstate = _SQLSTATE.get(number or 0, "XX001" if damaged else "58030")
        hint = {**_HINT, "58P01": gone, "XX001": _DAMAGED_HINT}.get(sqlstate)
        if not number and (isinstance(error, PermissionError) or _DENIED.search(str(error))):
            sqlstate, hint = "42501", _DENIED_HINT
        told = _message(error)
        reason = os.strerror(number) if number else told
        cause = error if told == str(error) else None  # a cause would be logged with its secret
        raise StorageError(
            f'could not {action} "{uri}": {reason}', hint=hint, sqlstate=sqlstate
        ) from cause


def _working(action: str, uri: str) -> contextlib.AbstractContextManager[None]:
    """Work with a file, which is a wait where the file is in an object store."""
    if is_local(uri):
        return contextlib.nullcontext()
    return waiting(WaitEventType.FILES, f'{action} "{uri}"')


def _is_damaged(error: Exception, uri: str) -> bool:
    """Return whether the reader's message says so, in its own words: those of a name do not."""
    place = local_path(uri).partition("://")
    names = (uri, place[2] or place[0], place[2].partition("/")[2])
    text = str(error)
    for name in filter(None, names):
        text = text.replace(name, "")
    return _DAMAGED.search(text) is not None


@contextlib.contextmanager
def storage_call(action: str, uri: str) -> Iterator[None]:
    """Handle errors as ``storage_errors``, and wait for storage as long as the block runs. For
    blocks that do nothing else."""
    with storage_errors(action, uri), waiting(WaitEventType.STORAGE, f'{action} "{uri}"'):
        yield


def _message(error: Exception) -> str:
    return object_store.without_secrets(str(error))
