"""A throw-away PostgreSQL server in one folder: initdb, start, stop, kill, and nothing left behind.

A server of a major version runs with logical replication on. It is reachable over TCP on 127.0.0.1
and over a unix socket. The server is a direct child of this process, without pg_ctl, and is ready
once its postmaster.pid says so. A guardian, a shell that waits on a pipe, stops the server and
removes its folder when this process ends, even by SIGKILL.

::

    new ──start──> running ──stop | kill9──> stopped ──start──> running
     └───────────────────── close (folder removed) ──────────────────┘
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, Self

from penstock.artifacts import Notice
from penstock.embedded.installation import (
    Account,
    as_account,
    clients,
    find_installation,
    server_account,
)
from penstock.errors import ConfigurationError
from penstock.identifiers import simple_quote_literal

_PORTS: Final = range(16384, 32768)
_PREFIX: Final = "penstock-pg-"
_SOCKET: Final = f"{_PREFIX}12345678/socket/.s.PGSQL.{_PORTS.start}"
_LONGEST_PATH: Final = 107 if sys.platform == "linux" else 103
"""Bytes that a unix socket's path may have."""

logger = logging.getLogger(__name__)

StopMode = Literal["smart", "fast", "immediate"]

_STOP_SIGNAL = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
_START_ATTEMPTS = 5
"""Attempts to start, since another process may take a free port before the server binds it."""

_SETTINGS: dict[str, str | int | bool] = {
    "wal_level": "logical",
    "max_wal_senders": 20,
    "max_replication_slots": 20,
    "max_connections": 100,
    "shared_buffers": "64MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_line_prefix": "%m [%p] ",
    "lc_messages": "C",
}
# Commits survive a killed server, since the kernel has their WAL, but not a crash of the machine.
_NO_FSYNC: dict[str, str | int | bool] = {"fsync": False, "full_page_writes": False}

# $1 is the base folder, $2 the data folder. `read` returns when the pipe is closed.
_GUARDIAN = """
read -r verdict
if [ "$verdict" != done ]; then
    pid=$(head -n 1 "$2/postmaster.pid" 2>/dev/null)
    if [ -n "$pid" ]; then
        kill -QUIT "$pid" 2>/dev/null
        for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$pid" 2>/dev/null || break; sleep 1; done
        kill -KILL "$pid" 2>/dev/null
    fi
    rm -rf "$1"
fi
"""


class EmbeddedPostgres:
    """One PostgreSQL server of a major version (14 to 18), owned by this process.

    ``settings`` override the defaults. The lines of ``hba`` come first in pg_hba.conf, which
    otherwise trusts everybody. Without ``data_dir`` the data lives in a temporary folder, which
    ``close()`` removes; a given ``data_dir`` stays and can be started again later. ``port`` 0 takes
    a free port and keeps it over restarts. Use the object as a context manager, or call start() and
    close().
    """

    def __init__(
        self,
        version: int = 18,
        data_dir: Path | str | None = None,
        port: int = 0,
        settings: Mapping[str, str | int | bool] | None = None,
        *,
        fsync: bool = False,
        hba: Sequence[str] = (),
        notice: Notice = logger.info,
    ) -> None:
        self.version = version
        self.port = port
        self._account = server_account()
        self._installation = find_installation(version, notice=notice)
        self._settings = {**_SETTINGS, **({} if fsync else _NO_FSYNC), **(settings or {})}
        self._hba = tuple(hba)
        self._base = _make_base(self._account)
        self.data_dir = Path(data_dir).absolute() if data_dir else self._base / "data"
        self.socket_dir = self._base / "socket"
        self.log_path = self._base / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._guardian: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        state = f"port {self.port}" if self.running else "stopped"
        return f"EmbeddedPostgres({self.version}, {state})"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Life

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The postmaster's process id. Raises ConfigurationError if the server is stopped."""
        if self._process is None or not self.running:
            raise ConfigurationError("the embedded PostgreSQL server is not running")
        return self._process.pid

    def start(self) -> None:
        """Start the server, after initdb if there is no data; return once it accepts connections.

        Raises ConfigurationError with the end of the server's log if it does not come up.
        """
        if self.running:
            return
        if not (self.data_dir / "PG_VERSION").is_file():
            self._initdb()
        self._guard()
        chosen = self.port
        for attempt in range(_START_ATTEMPTS):
            self.port = chosen or free_port()
            self._write_conf()
            if self._launch():
                return
            if attempt + 1 == _START_ATTEMPTS or not self._worth_a_retry(port_given=bool(chosen)):
                break
        self.port = chosen
        raise ConfigurationError(
            f"the embedded PostgreSQL {self.version} server did not start",
            detail=self._log_tail(),
        )

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server as ``pg_ctl stop -m`` does and wait for its end."""
        if self._process is None:
            return
        if self.running:
            self._process.send_signal(_STOP_SIGNAL[mode])
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def restart(self, mode: StopMode = "fast") -> None:
        """Restart on the same port; "immediate" makes the server recover from its WAL."""
        self.stop(mode)
        self.start()

    def reload(self) -> None:
        """Tell the server to read its configuration files again (SIGHUP)."""
        os.kill(self.pid, signal.SIGHUP)

    def kill9(self) -> None:
        """Kill the postmaster and all its children with SIGKILL, as if the server crashed."""
        if self._process is None:
            return
        # Stop it first, so that it forks no child while its children are listed.
        self._process.send_signal(signal.SIGSTOP)
        for pid in (*_children(self._process.pid), self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        self._process = None

    def close(self) -> None:
        """Stop the server and remove its temporary folder; safe to call again."""
        self.stop("immediate" if self.data_dir.is_relative_to(self._base) else "fast")
        if self._guardian is not None and self._guardian.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._guardian.stdin.write(b"done\n")
                self._guardian.stdin.close()
            self._guardian.wait()
            self._guardian = None
        shutil.rmtree(self._base, ignore_errors=True)
        atexit.unregister(self.close)

    # Use

    def conninfo(self, dbname: str = "postgres", user: str = "postgres") -> str:
        """Return a connection string over TCP for libpq."""
        return f"host=127.0.0.1 port={self.port} dbname={dbname} user={user}"

    def psql(self, sql: str, dbname: str = "postgres") -> str:
        """Run a script with psql up to the first error; return unaligned rows, stripped.

        Raises ConfigurationError with psql's error text.
        """
        options = ["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", self.conninfo(dbname)]
        return self._client("psql", options, sql).strip()

    def pgbench(self, *arguments: str, dbname: str = "postgres") -> str:
        """Run pgbench with the arguments (``"-i", "-s", "10"``) and return its report."""
        place = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", dbname]
        return self._client("pgbench", [*arguments, *place])

    def log(self) -> str:
        """Return the server's log so far."""
        return self.log_path.read_text("utf-8", "replace") if self.log_path.exists() else ""

    # Inside

    def _client(self, program: str, arguments: Sequence[str], text: str = "") -> str:
        done = subprocess.run(
            [clients().program(program), *arguments],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise ConfigurationError(f"{program} failed", detail=done.stderr.strip())
        return done.stdout

    def _initdb(self) -> None:
        self._folder(self._base, 0o711)
        self._folder(self.data_dir, 0o700)
        command: list[Path | str] = [self._installation.program("initdb"), "-D", self.data_dir]
        command += ["-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        done = subprocess.run(
            command,
            cwd="/",
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
            **as_account(self._account),
        )
        if done.returncode != 0:
            raise ConfigurationError("initdb failed", detail=(done.stderr or done.stdout).strip())
        hba = self.data_dir / "pg_hba.conf"
        hba.write_text("\n".join((*self._hba, hba.read_text("utf-8"))), encoding="utf-8")

    def _folder(self, folder: Path, mode: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(mode)
        if self._account is not None:
            os.chown(folder, self._account.uid, self._account.gid)

    def _write_conf(self) -> None:
        settings = {
            **self._settings,
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": str(self.socket_dir),
        }
        lines = [f"{name} = {_conf_value(value)}" for name, value in settings.items()]
        conf = self.data_dir / "penstock.conf"
        conf.write_text("\n".join(lines) + "\n", encoding="utf-8")
        main = self.data_dir / "postgresql.conf"
        text = main.read_text("utf-8")
        include = "include 'penstock.conf'"
        if include not in text:
            main.write_text(f"{text}\n{include}\n", encoding="utf-8")

    def _launch(self) -> bool:
        self._folder(self._base, 0o711)
        self._folder(self.socket_dir, 0o755)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [self._installation.program("postgres"), "-D", self.data_dir],
                cwd="/",
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the terminal must reach only us; the guardian ends the server.
                start_new_session=True,
                **as_account(self._account),
            )
        return self._wait_ready(self._process)

    def _wait_ready(self, process: subprocess.Popen[bytes]) -> bool:
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, IndexError):
                lines = (self.data_dir / "postmaster.pid").read_text("utf-8").splitlines()
                # A killed server leaves its own postmaster.pid behind.
                if lines[0] == str(process.pid) and lines[7].strip() == "ready":
                    return True
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
                return False
        self.stop("immediate")
        return False

    def _worth_a_retry(self, *, port_given: bool) -> bool:
        """Tell whether another try may succeed: the port was taken, or killed backends still
        end."""
        log = self._log_tail()
        if "pre-existing shared memory block" in log:
            return True
        return "could not bind" in log and not port_given

    def _guard(self) -> None:
        if self._guardian is not None:
            return
        self._guardian = subprocess.Popen(
            ["/bin/sh", "-c", _GUARDIAN, "guardian", self._base, self.data_dir],
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        atexit.register(self.close)

    def _log_tail(self) -> str:
        return "\n".join(self.log().splitlines()[-12:])


def _make_base(account: Account | None) -> Path:
    """Make a server's temporary folder in TMPDIR. Use /tmp if TMPDIR makes socket paths too long,
    or the account cannot enter it."""
    parent = Path(tempfile.gettempdir()).absolute()
    fits = len(os.fsencode(parent / _SOCKET)) <= _LONGEST_PATH
    enters = account is None or all(
        folder.stat().st_mode & stat.S_IXOTH for folder in (parent, *parent.parents)
    )
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent if fits and enters else "/tmp"))


def _environment() -> dict[str, str]:
    """Return our environment without libpq's variables, which a server's apply workers, as clients,
    would use."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")}


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody uses at the moment.

    The port is outside the range that systems give to outgoing connections, so it stays free while
    the server restarts. Raises OSError if there is none.
    """
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(errno.EADDRINUSE, f"ports {_PORTS.start} to {_PORTS.stop - 1} are in use")


def _conf_value(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return simple_quote_literal(str(value))


def _children(pid: int) -> list[int]:
    listing = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=False
    )
    pairs = [line.split() for line in listing.stdout.splitlines()]
    return [int(child) for child, parent in pairs if int(parent) == pid]
