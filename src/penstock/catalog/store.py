"""The state store: its schema and version, its transactions, its change counter.

Writers run one after the other (the row of ``pg_control`` is their lock). A reader sees one state
and never waits. Rows are on disk when a writing transaction ends.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.abc import PQGen
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    ExceptionContext,
    MetaData,
    create_engine,
    event,
    inspect,
    make_url,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.schema import CreateColumn

from penstock.catalog import pg_control
from penstock.catalog.metadata import METADATA
from penstock.errors import (
    ConfigurationError,
    DuplicateObject,
    NotInPrerequisiteState,
    ObjectInUse,
    PenstockError,
    StorageError,
)
from penstock.interrupts import commit_begins
from penstock.precedence import PRECEDENCE
from penstock.wait_event import WaitEventType, waiting

# Databases that hold state: SQLite files shared by several processes, or any other database by its
# URL. ``store`` and ``pg_stat_subscription`` make the tables.

BUSY_TIMEOUT_S: Final = 30.0
"""Seconds for which a process waits for another process's transaction."""

_POSTGRESQL: Final = ("postgresql", "postgres", "postgresql+psycopg")
_SQLITE: Final = ("sqlite", "sqlite+pysqlite")
_HINT: Final = (
    "Leave the parameter state empty for SQLite in the node's folder, or write "
    "postgresql://user@host/database."
)
_CONNECT_ARGS: Final[Mapping[str, int]] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 20_000,  # milliseconds
}
"""A PostgreSQL that vanishes silently is given up after 20 s; a URL may say otherwise."""
_SILENCE: Final = "tcp_user_timeout"
"""The parameter whose time also bounds a silent query: libpq's does not count while the server's
kernel acknowledges, as for a suspended server or behind a proxy."""
_LOCK_SHARE: Final = 0.9
"""A server that runs tells of a lock before it counts as silent."""

_PRIMARY_CODE: Final = 0xFF
"""The mask of the primary code in SQLite's result codes; the other bits only refine it."""
_LOCKED: Final = "55P03"
_DISK_FULL: Final = "53100"
_NO_RIGHT: Final = "42501"
_DATA_CORRUPTED: Final = "XX001"
_UNLOCK: Final = "Another process keeps it locked; end that process."
_PUT_BACK: Final = (
    "Stop the node and remove the files state.db*. Then put a backup back as state.db, or make the "
    "state again from the warehouse: penstock init --recover DIR"
)
"""The hint for a file that is damaged or gone."""

_O_PATH: Final = getattr(os, "O_PATH", None)
"""Linux has it."""
_BEGIN: Final = "penstock_begin"
_WRITABLE: Final = "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE"
_LOCK_TIMEOUT: Final = "SELECT set_config('lock_timeout', %s, false)"
_DURABLE: Final = (
    "SELECT set_config('synchronous_commit', 'on', false)"
    " WHERE current_setting('synchronous_commit') = 'off'"
)
"""Commits must be durable, regardless of the settings of the server, the database or the role."""


def parse_url(url: str) -> URL:
    """Parse an SQLAlchemy URL. Raises ConfigurationError, which never shows the password."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        parsed = None
    if parsed is None:
        raise ConfigurationError("the URL of the state store is malformed", hint=_HINT)
    if parsed.drivername in _POSTGRESQL:  # we depend on psycopg, not on SQLAlchemy's default
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in _SQLITE:
        raise ConfigurationError(
            f'a state store of kind "{parsed.drivername}" is not supported', hint=_HINT
        )
    return parsed


def sqlite_path(url: URL) -> Path | None:
    """Return the file of an SQLite URL; None for other databases."""
    if url.get_backend_name() != "sqlite":
        return None
    return Path(url.database or "")


def make_private_file(path: Path) -> None:
    """Create a file that only its owner can read: it will hold connection strings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


class ServerSilent(psycopg.OperationalError):
    """A PostgreSQL has not answered a query for too long. The connection is closed."""


class _Connection(psycopg.Connection[Any]):
    """A connection that is closed when its server does not answer. ``silence_s``: for so many
    seconds, None: never."""

    silence_s: float | None = None

    def wait(self, gen: PQGen[Any], *args: Any, **options: Any) -> Any:
        """Wait for the end of a query. Raises ServerSilent."""
        if self.silence_s is not None:
            gen = _heard(gen, self.silence_s)
        try:
            with waiting(WaitEventType.STATE_STORE, "query the state store"):
                return super().wait(gen, *args, **options)
        except ServerSilent:
            self.close()
            raise


def _heard(gen: PQGen[Any], silence_s: float) -> PQGen[Any]:
    """Do what ``gen`` does. Raises ServerSilent when nothing can be received or sent for so many
    seconds."""
    due = time.monotonic() + silence_s
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready:
                due = time.monotonic() + silence_s
            elif time.monotonic() >= due:
                raise ServerSilent(f"the server has not answered for {silence_s:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        return end.value


def _silence(url: URL) -> float | None:
    """Return the seconds after which a server that does not answer is given up; None: never."""
    text = url.query.get(_SILENCE, str(_CONNECT_ARGS[_SILENCE]))
    try:
        return max(0, int(str(text))) / 1000 or None
    except ValueError:  # libpq refuses it
        return None


def open_engine(url: URL, *, durable: bool) -> Engine:
    """Open a database. ``durable``: every commit is on disk when it returns; otherwise it may be
    lost, but is never torn.

    SQLite runs in WAL mode: readers and one writer then do not wait for each other. Its driver
    would begin transactions late and implicitly; we send BEGIN ourselves, IMMEDIATE for a writer.
    """
    options: dict[str, Any] = {}
    if url.get_backend_name() == "postgresql":
        # connections that a restart of the server has broken are replaced, not used
        options["pool_pre_ping"] = True
        # A writer waits for the row of ``pg_control`` and must then see what the writer before it
        # has committed; under REPEATABLE READ it would fail instead.
        options["isolation_level"] = "READ COMMITTED"
        options["connect_args"] = {k: v for k, v in _CONNECT_ARGS.items() if k not in url.query}
    engine = create_engine(url, **options)
    if url.get_backend_name() == "sqlite":
        # In WAL mode NORMAL syncs at checkpoints only: a power failure would lose the last commits.
        synchronous = "FULL" if durable else "OFF"

        @event.listens_for(engine, "connect")
        def _connected(dbapi_connection: Any, _record: Any) -> None:
            dbapi_connection.isolation_level = None
            dbapi_connection.execute(f"PRAGMA busy_timeout = {int(BUSY_TIMEOUT_S * 1000)}")
            dbapi_connection.execute("PRAGMA journal_mode = WAL")
            dbapi_connection.execute(f"PRAGMA synchronous = {synchronous}")
            dbapi_connection.execute("PRAGMA foreign_keys = ON")

        @event.listens_for(engine, "begin")
        def _begun(connection: Connection) -> None:
            mode = connection.get_execution_options().get(_BEGIN, "DEFERRED")
            # bypass SQLAlchemy: its overhead for one statement exceeds most transactions' cost
            driver: Any = connection.connection.driver_connection
            try:
                driver.execute(f"BEGIN {mode}")
            except sqlite3.Error as error:
                raise _failed(error, *_of_sqlite(error)) from None

    if url.get_backend_name() == "postgresql":
        _prepare_server(engine, _silence(url), durable=durable)
    return engine


def _prepare_server(engine: Engine, silence: float | None, *, durable: bool) -> None:
    """Bound the waits for a PostgreSQL, and set up each connection."""

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: Any, _record: Any, args: Any, parameters: Any) -> _Connection:
        with waiting(WaitEventType.STATE_STORE, "connect to the state store"):
            connection = _Connection.connect(*args, **parameters)
        connection.silence_s = silence
        return connection

    @event.listens_for(engine, "handle_error")
    def _failed_ping(context: ExceptionContext) -> None:
        if context.is_pre_ping and isinstance(context.original_exception, ServerSilent):
            context.is_disconnect = False  # a new connection would wait for it once more

    @event.listens_for(engine, "connect")
    def _settings(dbapi_connection: Any, _record: Any) -> None:
        with dbapi_connection.cursor() as cursor:
            cursor.execute(_WRITABLE)
            if durable:
                cursor.execute(_DURABLE)
            if silence is not None:
                cursor.execute(_LOCK_TIMEOUT, (str(round(silence * _LOCK_SHARE * 1000)),))
        dbapi_connection.commit()


@contextlib.contextmanager
def transaction(engine: Engine, *, write: bool) -> Iterator[Connection]:
    """Run the block in one transaction, rolled back when the block raises.

    Raises StorageError when the database cannot be reached, is locked for too long, or is full.
    """
    options: dict[str, Any] = {_BEGIN: "IMMEDIATE"} if write else {}
    if not write and engine.dialect.name != "sqlite":
        # a reader looks at several catalogs, and must see all of them in one state
        options = {"isolation_level": "REPEATABLE READ"}
    with map_errors(), engine.connect() as connection:
        if options:
            connection.execution_options(**options)
        with connection.begin():
            yield connection


def add_what_is_missing(connection: Connection, metadata: MetaData) -> None:
    """Add the tables and columns of ``metadata`` that the database lacks, in a transaction that
    writes. In existing rows an added column holds its default, or NULL."""
    metadata.create_all(connection)
    found = inspect(connection)
    quote = connection.dialect.identifier_preparer.format_table
    for table in metadata.sorted_tables:
        there = {column["name"] for column in found.get_columns(table.name)}
        for column in table.columns:
            if column.name not in there:
                definition = CreateColumn(column).compile(dialect=connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {quote(table)} ADD COLUMN {definition}")


@contextlib.contextmanager
def map_errors() -> Iterator[None]:
    """Raise database errors as StorageError, without SQLAlchemy's text of statement and values."""
    try:
        yield
    except StatementError as error:
        if isinstance(error.orig, PenstockError):  # a value that a column type refuses
            raise error.orig from None
        if not isinstance(error, DBAPIError):
            raise
        raise _storage_error(error) from None
    except PoolTimeout:
        raise StorageError(
            "could not use the node's state store: none of its connections has become free",
            hint="Check that the database of the parameter state answers.",
        ) from None


def _storage_error(error: DBAPIError) -> PenstockError:
    sqlstate, hint = (
        _of_sqlite(error.orig) if isinstance(error.orig, sqlite3.Error) else _of_server(error.orig)
    )
    return _failed(error.orig, sqlstate, hint)


def _failed(error: BaseException | None, sqlstate: str | None, hint: str) -> StorageError:
    message = f"could not use the node's state store: {str(error).strip()}"
    return StorageError(message, hint=hint, sqlstate=sqlstate)


def _of_sqlite(error: sqlite3.Error) -> tuple[str | None, str]:
    """Return the SQLSTATE and hint for SQLite's error."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY_CODE
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return _LOCKED, _UNLOCK
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return _DATA_CORRUPTED, _PUT_BACK
    if code == sqlite3.SQLITE_FULL:
        return (
            _DISK_FULL,
            "Free disk space where the state store's file lies, by default the node's folder.",
        )
    return None, "Check the node's folder and its permissions."


def _of_server(error: BaseException | None) -> tuple[str | None, str]:
    """Return the SQLSTATE and hint for a server's error."""
    sqlstate = getattr(error, "sqlstate", None)
    if sqlstate == _LOCKED:
        return _LOCKED, _UNLOCK
    if sqlstate == _DISK_FULL:
        return _DISK_FULL, "Free disk space on the server of the parameter state."
    if sqlstate == _NO_RIGHT:
        return _NO_RIGHT, "The role must own the database: ALTER DATABASE ... OWNER TO ..."
    return None, "Check that the database of the parameter state can be reached."


SCHEMA_VERSION: Final = 27
"""The version of the tables in METADATA, which has all tables once the package is imported. Each
version so far has only added tables and columns, so one step upgrades from any version."""


class Store:
    """An open state store, for several threads. The owner must call ``close``."""

    def __init__(self, engine: Engine, path: Path | None, version: int) -> None:
        """``path``: of a SQLite file. ``version``: of the tables that are there."""
        self.engine = engine
        self._path = path
        # Closing another kind of descriptor would end SQLite's locks of this process.
        self._file = None if path is None or _O_PATH is None else os.open(path, _O_PATH)
        self._version = version
        self._closed = False

    @classmethod
    def create(cls, url: str) -> Store:
        """Make the tables of a new node. Raises DuplicateObject if the store already has a node."""
        parsed = parse_url(url)
        path = sqlite_path(parsed)
        if path is not None:
            make_private_file(path)
        store = cls(open_engine(parsed, durable=True), path, SCHEMA_VERSION)
        try:
            with transaction(store.engine, write=True) as connection:
                if _is_initialized(connection):
                    raise DuplicateObject(
                        "the state store holds a node already",
                        hint="Use that node, or give the new one a store of its own.",
                    )
                METADATA.create_all(connection)
                pg_control.initialize(
                    connection,
                    schema_version=SCHEMA_VERSION,
                    created_by=importlib.metadata.version("penstock"),
                    now=int(time.time()),
                )
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def open(cls, url: str) -> Store:
        """Open a node's store. Nothing but ``control`` works in that of an older Penstock, before
        ``upgrade``.

        Raises ConfigurationError if it holds no node, or a node of a newer Penstock.
        """
        parsed = parse_url(url)
        path = sqlite_path(parsed)
        if path is not None and not path.is_file():
            raise _no_node()
        store = cls(open_engine(parsed, durable=True), path, SCHEMA_VERSION)
        try:
            store._version = store._find_version()
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close every connection. The store cannot be used any more."""
        self._closed = True
        self.engine.dispose()
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def check_open(self) -> None:
        """Raise NotInPrerequisiteState if the store has been closed."""
        if self._closed:  # the engine would connect again
            raise NotInPrerequisiteState("the node is closed", hint="Open it again: Node(folder).")

    def check_there(self) -> None:
        """Check that a SQLite file is the one that was opened: what is written to a file that was
        removed is gone when it is closed. Raises ObjectInUse."""
        if self._file is not None and not os.fstat(self._file).st_nlink:
            raise ObjectInUse(
                f'the node\'s state store "{self._path}" was removed or replaced',
                detail="What the node has written since is lost.",
                hint=_PUT_BACK,
            )

    @contextlib.contextmanager
    def control(self) -> Iterator[Connection]:
        """Begin a transaction that reads only ``pg_control``: also of an older Penstock."""
        self.check_open()
        with transaction(self.engine, write=False) as connection:
            yield connection

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """Begin a transaction that sees one state."""
        self._check_current()
        with transaction(self.engine, write=False) as connection:
            yield connection

    @contextlib.contextmanager
    def write(self, *, counted: bool = True) -> Iterator[Connection]:
        """Begin a transaction that changes the catalog. Unless ``counted`` is False it counts as a
        change even if it changes nothing."""
        self._check_current()
        with PRECEDENCE.holding(), transaction(self.engine, write=True) as connection:
            # This comes first: the row is the lock of all writers, so that the rest of the
            # transaction reads the newest state.
            if counted:
                pg_control.advance_generation(connection)
            else:
                pg_control.lock_writers(connection)
            yield connection
            commit_begins()

    def check(self) -> None:
        """Check a SQLite file's structure, as the process that runs the node. Raises
        StorageError (XX001)."""
        self.check_open()
        if self._path is None:
            return
        with transaction(self.engine, write=False) as connection:
            found = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        if found != "ok":
            raise StorageError(
                f'the node\'s state store "{self._path}" is damaged: {found}',
                hint=_PUT_BACK,
                sqlstate=_DATA_CORRUPTED,
            )

    def upgrade(self) -> Path | None:
        """Bring the schema up to date, for the process that runs the node: an older Penstock
        refuses the store from then on. Return the copy of the SQLite file as it was; None if
        nothing was done, or the store is in another database."""
        self.check_open()
        if self._find_version() == SCHEMA_VERSION:
            self._version = SCHEMA_VERSION
            return None
        copy = None if self._path is None else self._copy(self._path)
        with transaction(self.engine, write=True) as connection:
            pg_control.lock_writers(connection)
            add_what_is_missing(connection, METADATA)
            pg_control.set_schema_version(connection, SCHEMA_VERSION)
        self._version = SCHEMA_VERSION
        return copy

    def _copy(self, path: Path) -> Path:
        # A copy that a crash has left in part is of a store that was not upgraded: made again.
        copy = path.with_name(f"{path.stem}-version-{self._version}{path.suffix}")
        copy.unlink(missing_ok=True)
        make_private_file(copy)
        with map_errors(), self.engine.connect() as connection:
            source: Any = connection.connection.driver_connection
            try:
                with contextlib.closing(sqlite3.connect(copy)) as target:
                    source.backup(target)
            except sqlite3.Error as error:
                raise _failed(error, *_of_sqlite(error)) from None
        return copy

    def _check_current(self) -> None:
        self.check_open()
        if self._version == SCHEMA_VERSION:
            return
        self._version = self._find_version()  # the node may have started since, and upgraded it
        if self._version < SCHEMA_VERSION:
            raise ConfigurationError(
                f"the state store has schema version {self._version} of an older Penstock, this "
                f"one uses {SCHEMA_VERSION}",
                hint="Start the node with this version, which upgrades it. If it runs with the "
                "older version, use that one, or stop it first.",
            )

    def _find_version(self) -> int:
        with self.control() as connection:
            if not _is_initialized(connection):
                raise _no_node()
            version = pg_control.schema_version(connection)
        if version > SCHEMA_VERSION:
            raise ConfigurationError(
                f"the state store has schema version {version}, this Penstock knows up to "
                f"{SCHEMA_VERSION}",
                hint="Install the version of Penstock that used it last, or a newer one. To go "
                "back to this one, put back what was saved before the upgrade (of SQLite: "
                f"state-version-{SCHEMA_VERSION}.db, as state.db).",
            )
        return version


def has_node(url: str) -> bool:
    """Return whether a state store holds a node. Raises ConfigurationError, StorageError."""
    parsed = parse_url(url)
    path = sqlite_path(parsed)
    if path is not None and not path.is_file():
        return False
    engine = open_engine(parsed, durable=True)
    try:
        with transaction(engine, write=False) as connection:
            return _is_initialized(connection)
    finally:
        engine.dispose()


def _is_initialized(connection: Connection) -> bool:
    with map_errors():
        return inspect(connection).has_table("penstock_control")


def _no_node() -> ConfigurationError:
    return ConfigurationError(
        "the state store holds no node",
        hint="Make the node first: penstock init DIR. If its state is lost: penstock init "
        "--recover DIR",
    )
