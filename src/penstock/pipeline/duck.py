"""DuckDB as the engine inside a task: one connection per thread, kept between tasks.

A connection is kept because opening one costs 12-20 ms, the whole time that a batch of one row may
take. Threads must not share a connection.
"""

from __future__ import annotations

import os
import tempfile
import threading
import uuid
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.precedence import PRECEDENCE
from penstock.query_memory import MEMORY
from penstock.sql.to_duckdb import fmgr
from penstock.sql.to_duckdb.duckdb_errors import postgres_error
from penstock.sql.to_duckdb.pg_proc import PYTHON
from penstock.sqlstate import OutOfMemory

_IN_A_TASK: Final = "1GiB"
"""The memory limit of a task; DuckDB spills the rest to the folder for temporary files."""
_OUT_OF_MEMORY: Final = "Out of Memory Error"
_local: Final = threading.local()
_idle: Final[deque[duckdb.DuckDBPyConnection]] = deque()
_MAX_IDLE: Final = 4
_open: Final[weakref.WeakSet[duckdb.DuckDBPyConnection]] = weakref.WeakSet()
_opening: Final = threading.Lock()
_of_the_parent: Final[list[duckdb.DuckDBPyConnection]] = []


def out_of_memory(error: duckdb.OutOfMemoryException) -> PenstockError:
    """Return the user's error: parts of DuckDB's work cannot spill to disk."""
    return OutOfMemory(
        "out of memory",
        detail=f"DuckDB in a task: {error}",
        hint="Lower logical_decoding_work_mem, or make smaller transactions.",
    )


def query_error(error: duckdb.Error) -> PenstockError:
    """Return PostgreSQL's error for an error of compiled SQL in a task."""
    if isinstance(error, duckdb.OutOfMemoryException):
        return OutOfMemory(
            "out of memory",
            detail=str(error),
            hint="Read fewer rows at once, or let Spark read the table.",
        )
    return postgres_error(str(error))


def connection() -> duckdb.DuckDBPyConnection:
    """Return this thread's in-memory DuckDB. It has one thread: Spark gives a task one core."""
    found: duckdb.DuckDBPyConnection | None = getattr(_local, "connection", None)
    if found is None:
        found = connect()
        _local.connection = found
    return found


def connect() -> duckdb.DuckDBPyConnection:
    """Open a connection that only the caller uses.

    DuckDB may not install or load extensions by itself: an executor must not download.
    """
    opened = duckdb.connect(
        config={
            "threads": 1,
            "memory_limit": _IN_A_TASK,
            "temp_directory": str(Path(tempfile.gettempdir(), f"penstock-{uuid.uuid4()}")),
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
    )
    opened.execute("set TimeZone = 'UTC'")
    fmgr.register(opened, PYTHON)
    with _opening:
        _open.add(opened)
    return opened


def _before_fork() -> None:
    _opening.acquire()
    _of_the_parent.extend(_open)


def _after_fork_in_parent() -> None:
    _of_the_parent.clear()
    _opening.release()


def _after_fork_in_child() -> None:
    """Keep the parent's connections open, and unused. A connection's thread does not survive the
    fork, so that closing it would crash; without a reference Python would close it."""
    _idle.clear()
    _local.__dict__.clear()
    _open.clear()
    _opening.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)


@contextmanager
def lent(*, change: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """Lend an empty connection to a statement, if possible an idle one, with a share of
    ``query_mem``, as ``QueryMemory.lend``. Borrowers must leave nothing in it. After an error it is
    closed. Raises OutOfMemory (53200)."""
    try:
        duck = _idle.pop()
    except IndexError:
        duck = connect()
    try:
        with MEMORY.lend(duck, change=change) as size:
            try:
                yield duck
            except duckdb.OutOfMemoryException:
                raise MEMORY.error(size) from None
    except BaseException:
        duck.close()
        raise
    if len(_idle) < _MAX_IDLE:
        _idle.append(duck)
    else:
        duck.close()


def read_from(duck: duckdb.DuckDBPyConnection, sql: str, rows: int) -> Iterator[pa.RecordBatch]:
    """Yield a query's rows, at most ``rows`` in a batch. Raises duckdb.Error at the row that fails.

    Arrow reports errors after the first batch as OSError with DuckDB's text: these are converted.
    """
    reader = PRECEDENCE.politely(lambda: duck.sql(sql).to_arrow_reader(rows))
    try:
        yield from reader
    except OSError as error:
        text = str(error)
        if text.startswith(_OUT_OF_MEMORY):
            raise duckdb.OutOfMemoryException(text) from None
        raise duckdb.Error(text) from None


def read_into(
    duck: duckdb.DuckDBPyConnection,
    name: str,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
) -> None:
    """Create the table ``name`` from scanned batches. Raises the scan's errors unwrapped."""
    errors: list[Exception] = []

    def guarded() -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except Exception as error:
            errors.append(error)

    duck.register("scanned", pa.RecordBatchReader.from_batches(schema, guarded()))
    try:
        duck.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS SELECT * FROM scanned")
    finally:
        duck.unregister("scanned")
    if errors:
        raise errors[0]
