"""The Spark session: built with Delta, or checked if the caller provides one.

The session is set up for many small jobs, has Delta's classes, and runs in UTC. In other zones
Delta verifies all files at each of its commits, and timestamps would be shown differently than at
the publisher. ``jars`` provides the jars.

Some statements of the node's clients change tables through Delta in Spark. Delta's own log store
for S3 checks for an entry before it puts one. That is safe only within one process: it could
replace an entry of ours, and a JVM that outlives a killed node could replace an entry of the next
node. So the session gets a log store that puts entries only if they are absent
(``ConditionalLogStore.java``). Janino, a part of every Spark, compiles it once for each version;
the class is kept in our cache.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import java_gateway
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock import artifacts
from penstock.errors import ConfigurationError, SparkUnavailable
from penstock.lakehouse.cluster import Spark, forget, forget_dead_jvm, is_running
from penstock.lakehouse.jars import client_jars, delta_jars
from penstock.lakehouse.object_store import LOG_STORE_CLASS, LOG_STORE_SETTING, spark_conf

_SOURCE: Final = "ConditionalLogStore.java"


def add_log_store(spark: SparkSession) -> None:
    """Make the log store's class known to the session's JVM. Raises ConfigurationError."""
    source = resources.files(__package__).joinpath(_SOURCE).read_text("utf-8")
    sum_of_source = hashlib.sha256(source.encode()).hexdigest()
    folder = artifacts.cache_home() / f"log-store-{sum_of_source[:16]}"
    jvm: Any = spark._jvm
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    file = folder / f"{LOG_STORE_CLASS.replace('.', '/')}.class"
    if not file.is_file():
        with artifacts.locked(folder):
            _compile(jvm, loader, source, file)
    loader.addURL(jvm.java.io.File(str(folder)).toURI().toURL())


def _compile(jvm: Any, loader: Any, source: str, file: Path) -> None:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(source)
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = file.with_name(f"{uuid.uuid4().hex}.tmp")
    whole.write_bytes(bytes(compiler.getBytecodes()[LOG_STORE_CLASS]))
    whole.replace(file)


log = logging.getLogger(__name__)

_EXTENSIONS: Final = "spark.sql.extensions"
_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
_CATALOG: Final = "spark.sql.catalog.spark_catalog"
_DELTA_CATALOG: Final = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_TIME_ZONE: Final = "spark.sql.session.timeZone"
_UTC: Final = "-Duser.timezone=UTC"
_SPARK: Final = ("4", "2")
"""Delta's classes fit one minor version of Spark (delta.toml)."""

_SETTINGS: Final = {
    _EXTENSIONS: _EXTENSION,
    _CATALOG: _DELTA_CATALOG,
    _TIME_ZONE: "UTC",
    "spark.driver.extraJavaOptions": _UTC,
    "spark.executor.extraJavaOptions": _UTC,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "64",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.writeChecksumFile.enabled": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.python.worker.reuse": "true",
    "spark.log.level": "ERROR",
}
"""Settings for many small jobs: little planning, few partitions, workers that stay. FAIR lets the
stream run during a copy. Delta lists a table's files in as many tasks as Spark may use for finding
partitions. With the default, 10000, VACUUM of a small table takes minutes."""

_UNIX_DOMAIN: Final = "spark.python.unix.domain.socket"

_LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": "penstock.pipeline.worker_daemon",
}
"""Settings of a Spark on this machine. The last setting would not work in remote executors, which
may get penstock only with each task."""


def _local_settings() -> dict[str, str]:
    """Return the settings of a Spark on this machine, with a folder for sockets if there is one."""
    folder = socket_folder()
    if folder is None:
        return _LOCAL_SETTINGS
    return {
        **_LOCAL_SETTINGS,
        f"{_UNIX_DOMAIN}.enabled": "true",
        f"{_UNIX_DOMAIN}.dir": str(folder),
    }


_CLASSES_OF_A_JOB: Final = ("PythonRDD", "PythonUtils", "SimplePythonFunction")


def session_jars(warehouse: str = "") -> list[Path]:
    """Return Delta's jars and a store's client; fetch missing ones. Raises ConfigurationError."""
    return [*delta_jars(), *client_jars(warehouse)]


def build_session(
    *,
    master: str,
    driver_memory: str,
    conf: Mapping[str, str],
    app_name: str = "penstock",
    warehouse: str = "",
    log: Path | None = None,
) -> SparkSession:
    """Start a session, or return this process's session; check it in both cases.

    ``conf`` wins over all our settings. ``warehouse``: the warehouse's URI, which the session must
    reach if it is in an object store. ``log``: the file to which the JVM and its Python workers
    write, instead of this process's output. Raises ConfigurationError, SparkUnavailable.
    """
    # let executors on this machine run the interpreter that has the node's packages
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = {
        **_SETTINGS,
        **(_local_settings() if master.startswith("local") else {}),
        "spark.driver.memory": driver_memory,
        "spark.jars": ",".join(map(str, session_jars(warehouse))),
        **spark_conf(warehouse),
        **conf,
    }
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    with _own_interrupt(), _safe_start(log):
        session = _started(builder, log)
    check_session(session, warehouse)
    _look_classes_up(session._jvm)
    return session


def _look_classes_up(jvm: Any) -> None:
    """Find the classes of a job once. PySpark names them without their package in each job, and the
    JVM would search all jars for each package that might have them."""
    vars(jvm).update({name: getattr(jvm, name) for name in _CLASSES_OF_A_JOB})


def _started(builder: SparkSession.Builder, log: Path | None) -> SparkSession:
    try:
        return builder.getOrCreate()
    except (PySparkException, Py4JError, OSError) as error:
        forget_dead_jvm()
        words = str(error).strip().splitlines() or [type(error).__name__]
        raise SparkUnavailable(
            f"could not start Spark: {words[0]}",
            hint=f"Look at [spark] in penstock.toml, and at {log or 'the output'}.",
        ) from error


def session_of_a_statement(spark: Spark) -> SparkSession:
    """Return a session whose settings and functions no other statement sees."""
    session = spark.newSession()
    session.conf.set(_TIME_ZONE, "UTC")
    return session


@contextlib.contextmanager
def _own_interrupt() -> Iterator[None]:
    """Keep this process's handler of SIGINT. PySpark's context replaces it by its own, which
    cancels all jobs and raises KeyboardInterrupt wherever the main thread is."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _safe_start(log: Path | None) -> Iterator[None]:
    """Start the JVM without Python code between fork and exec, unlike PySpark, which runs one line.

    Before that line the child would free other threads' objects. DuckDB's connections then wait for
    threads that do not exist in the child, and the child crashes silently.
    """
    module: Any = java_gateway
    before, module.Popen = module.Popen, partial(_start_jvm, log)
    try:
        yield
    finally:
        module.Popen = before
        _starting.clear()


def _start_jvm(log: Path | None, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    del options["preexec_fn"]  # ignores SIGINT, as ``sh`` does here: Ctrl-C is for the node
    ignoring = ["sh", "-c", 'trap "" INT; exec "$0" "$@"']
    with contextlib.ExitStack() as stack:
        if log is not None:
            # Errors may show rows: only the owner reads them.
            descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            sink = stack.enter_context(os.fdopen(descriptor, "ab"))
            options |= {"stdout": sink, "stderr": sink}
        process = subprocess.Popen([*ignoring, *command], **options)
    _starting.append(process)
    return process


_starting: Final[list[subprocess.Popen[bytes]]] = []
"""The JVM that is being started, if there is one: one at a time in a process."""


def end_start() -> None:
    """Kill the JVM that is being started; whoever waits for it gets SparkUnavailable."""
    for process in tuple(_starting):
        process.kill()


def running_session(given: SparkSession) -> SparkSession:
    """Return the session, or if it was stopped, the one that somebody has built since then in this
    process. Raises SparkUnavailable if there is none."""
    for session in (given, SparkSession._instantiatedSession):
        if session is not None and (
            not hasattr(session, "_jvm") or is_running(session.sparkContext)
        ):
            return session
    forget(given)  # so that the next one is a new one
    raise SparkUnavailable(
        "the SparkSession that was given to the node has been stopped",
        hint="Build another one in this process, as the first one: the node takes it.",
    )


def check_session(spark: SparkSession, warehouse: str = "") -> None:
    """Check that a session can do the node's work, and set its time zone to UTC.

    ``warehouse``: the warehouse's URI. Raises ConfigurationError with a hint.
    """
    if not hasattr(spark, "sparkContext") or not hasattr(spark, "_jvm"):
        raise ConfigurationError(
            "the SparkSession is a Spark Connect client",
            hint="Run the node in a process with a classic session (SparkSession.builder.master).",
        )
    if tuple(spark.version.split(".")[:2]) != _SPARK:
        raise ConfigurationError(
            f"Spark {spark.version} does not fit",
            hint=f"Use pyspark {'.'.join(_SPARK)}; penstock doctor shows the known matrix.",
        )
    if _EXTENSION not in (spark.conf.get(_EXTENSIONS, "") or ""):
        raise _without_delta(f'{_EXTENSIONS} does not name "{_EXTENSION}".')
    if spark.conf.get(_CATALOG, "") != _DELTA_CATALOG:
        raise _without_delta(f'{_CATALOG} is not "{_DELTA_CATALOG}".')
    if spark.conf.get(_TIME_ZONE) not in ("UTC", "Etc/UTC"):
        log.info('parameter "%s" of the Spark session set to UTC', _TIME_ZONE)
        spark.conf.set(_TIME_ZONE, "UTC")
    if LOG_STORE_SETTING in spark_conf(warehouse):
        _check_log_store(spark)


def _check_log_store(spark: SparkSession) -> None:
    if spark.conf.get(LOG_STORE_SETTING, "") == LOG_STORE_CLASS:
        add_log_store(spark)
        return
    log.warning(
        "the SparkSession commits to S3 without conditional puts: statements on the port that "
        "change tables may replace what others commit at that moment\n"
        "HINT:  Let the node build its session, or set %s to %s.",
        LOG_STORE_SETTING,
        LOG_STORE_CLASS,
    )


def _without_delta(detail: str) -> ConfigurationError:
    return ConfigurationError(
        "the SparkSession has no Delta Lake",
        detail=detail,
        hint=f"Build it with {_EXTENSIONS}={_EXTENSION}, {_CATALOG}={_DELTA_CATALOG} and the jars "
        'of "python -m penstock.lakehouse.jars", or let the node build its own.',
    )


# The folder of the sockets between a local Spark and its Python processes. Spark asks for no secret
# on these sockets, and its Python processes run all code that arrives, so only the folder's mode
# keeps other users out. The path must be short enough for a socket in it.
#
# Over TCP a job takes some 40 ms more: both ends write in small pieces, and each waits for the
# other's delayed acknowledgement.
#
# A process holds a lock on its folder until it ends, however it ends. The next process that makes a
# folder removes folders whose lock is free; systemd-tmpfiles does not touch a locked folder.

_PREFIX: Final = "penstock-"
_SUFFIX: Final = ".sockets"
_LONGEST_PATH: Final = 107 if sys.platform == "linux" else 103
_LONGEST_NAME: Final = len(".00000000-0000-0000-0000-000000000000.sock")
"""The length of Spark's names for sockets."""


def socket_folder() -> Path | None:
    """Return the folder of this process, made at the first call; None if every temporary folder has
    too long a path or cannot hold sockets."""
    for folder, lock in _held.items():
        if lock.is_of(folder):
            return folder
    for parent in dict.fromkeys((Path(tempfile.gettempdir()), Path("/tmp"))):
        name = f"{_PREFIX}12345678{_SUFFIX}"
        if len(os.fsencode(parent / name)) + len("/") + _LONGEST_NAME > _LONGEST_PATH:
            continue
        try:
            remove_leftovers(parent)
            return _make(parent)
        except OSError as error:
            log.info("no folder for Spark's sockets in %s: %s", parent, error)
    return None


def remove_leftovers(parent: Path) -> None:
    """Remove folders of processes that have ended, and no others."""
    for folder in parent.glob(f"{_PREFIX}*{_SUFFIX}"):
        with contextlib.suppress(OSError), _Locked(folder, wait=False):
            shutil.rmtree(folder)


def _make(parent: Path) -> Path:
    while True:
        folder = Path(tempfile.mkdtemp(_SUFFIX, _PREFIX, parent))  # mode 0700
        try:
            lock = _Locked(folder, wait=True)
        except FileNotFoundError:  # another process removed it as a leftover before it was locked
            continue
        if lock.is_of(folder):
            try:
                _try(folder)
            except OSError:
                shutil.rmtree(folder, ignore_errors=True)
                lock.close()
                raise
            atexit.register(_remove, folder, os.getpid())
            _held[folder] = lock
            return folder
        lock.close()


def _try(folder: Path) -> None:
    """Make a socket in the folder and remove it: not every file system has sockets."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"{folder}/.sock")
    (folder / ".sock").unlink()


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a fork of that process
        shutil.rmtree(folder, ignore_errors=True)


class _Locked:
    """A lock on a folder. Raises OSError if another process has the lock, or if the folder is
    another user's."""

    def __init__(self, folder: Path, *, wait: bool) -> None:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        self._descriptor = os.open(folder, flags)
        try:
            if os.fstat(self._descriptor).st_uid != os.geteuid():
                raise PermissionError(f"{folder} is another user's")
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> _Locked:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def is_of(self, folder: Path) -> bool:
        """Return whether the name still belongs to the locked folder."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), folder.stat())
        except FileNotFoundError:
            return False

    def close(self) -> None:
        os.close(self._descriptor)


_held: Final[dict[Path, _Locked]] = {}
"""The locks of this process, by folder; they are held until it ends."""
