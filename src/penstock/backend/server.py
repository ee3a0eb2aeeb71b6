"""The node's port: accept clients up to the limits, each in a thread of its own (postmaster.c).

``Server`` listens on addresses, and runs sessions until ``stop``. It also finds the session that a
CancelRequest names.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import os
import selectors
import socket
import threading
import time
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.backend.backend import Backend, BackendOptions, Services
from penstock.backend.client_socket import ClientSocket
from penstock.catalog import Role
from penstock.errors import ConfigurationError
from penstock.protocol.startup import CancelRequest
from penstock.sqlstate import TooManyConnections
from penstock.wait_event import Patience, leave_behind

_KEY_SIZE: Final = 32
"""The bytes of a cancel key in protocol 3.2; clients of protocol 3.0 get the first four."""
_SHORTEST_KEY: Final = 4
"""The fewest bytes of a cancel key that is accepted: four, as in protocol 3.0."""
_BACKLOG: Final = 128
_STOP_S: Final = 10.0
"""Seconds to wait for all threads to end. Threads are daemons, so the process ends anyway."""
_TOLD_S: Final = 2.0
"""Seconds that sessions have to send their clients the error that the node stops."""
_JOIN_S: Final = 0.1
_TURNED_AWAY_AT_ONCE: Final = 20
"""The number of clients beyond the limits that can get an error, or be silent, at the same time;
for further clients the oldest silent ones are disconnected, of whom as many more can be ending."""
_LOOK_S: Final = 0.5
"""How often clients are looked for whose statements run, in seconds."""
_ROOM_S: Final = 1.0
"""How long a new client waits for their end, in seconds."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Options of the port. ``addresses``: names or addresses of this host, ``*`` for all.
    ``port``: 0 for any free one.

    ``max_wal_senders`` limits replication connections, ``max_connections`` all others
    (InitProcess). A connection counts from its startup packet on, even before it has logged in.
    Only superusers get the last ``superuser_reserved_connections`` of ``max_connections``.
    """

    addresses: tuple[str, ...] = ("127.0.0.1",)
    port: int = 5432
    max_connections: int = 100
    max_wal_senders: int = 10
    superuser_reserved_connections: int = 3
    write_timeout_s: float = 60.0


def _listen(options: ListenOptions) -> list[socket.socket]:
    """Listen on the addresses (ListenServerPort); those that cannot be had are logged. Raises
    ConfigurationError if none can."""
    found: list[socket.socket] = []
    failures: list[str] = []
    port, in_use = options.port, False

    def failed(address: str, error: OSError | UnicodeError) -> None:
        failures.append(f'could not listen on "{address}", port {port}: {_reason(error)}')
        log.warning("%s", failures[-1])

    for address in options.addresses:
        try:
            places = _resolve(address)
        except (OSError, UnicodeError) as error:  # the latter: what cannot be a name
            failed(address, error)
            continue
        for family, (host, _, *scope) in places:
            try:
                sock = socket.create_server((host, port, *scope), family=family, backlog=_BACKLOG)
            except OSError as error:
                in_use |= error.errno == errno.EADDRINUSE
                failed(address, error)
            else:
                found.append(sock)
                port = sock.getsockname()[1]
    if not found:
        hint = f"Is another node or server running on port {port}? Choose another port."
        raise ConfigurationError(
            "could not create any TCP/IP sockets",
            detail="\n".join(failures),
            hint=hint if in_use else 'Write names or addresses of this host, or "*" for all.',
        )
    return found


def _reason(error: OSError | UnicodeError) -> str:
    number = getattr(error, "errno", None) or 0
    return os.strerror(number) if number > 0 else getattr(error, "strerror", None) or str(error)


def _resolve(address: str) -> list[tuple[socket.AddressFamily, tuple[Any, ...]]]:
    """Return families and places of an address. Raises OSError, UnicodeError."""
    host = None if address == "*" else address
    places = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return [(family, place) for family, _, _, _, place in places]


class Server:
    """Listens from ``start`` to ``stop``."""

    def __init__(self, listen: ListenOptions, backends: BackendOptions, services: Services) -> None:
        """Prepare the server. Raises ConfigurationError if no connection would be left for roles
        that are no superusers."""
        self._listen = listen
        self._options = backends
        self._check_reserved()
        self._services = replace(
            services,
            cancel=self._cancel,
            sessions_of=self._sessions_of,
            admit=self._admit,
            admit_role=self._admit_role,
        )
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._admitted: dict[int, bool] = {}  # pid -> True for a walsender
        self._backends: dict[int, tuple[Backend, threading.Thread]] = {}
        self._sockets: list[socket.socket] = []
        self._acceptor: threading.Thread | None = None
        self._stopping = threading.Event()

    def take(self, options: BackendOptions) -> None:
        """Set the options of new sessions, and of running sessions from their next message on, as
        a reload of PostgreSQL does."""
        self._options = options

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return int(self._sockets[0].getsockname()[1]) if self._sockets else 0

    @property
    def sessions(self) -> int:
        """The number of connected clients."""
        with self._lock:
            return len(self._backends)

    def start(self) -> None:
        """Listen. Raises ConfigurationError if none of the addresses can be had."""
        self._sockets = _listen(self._listen)
        self._acceptor = threading.Thread(target=self._accept, name="postmaster", daemon=True)
        self._acceptor.start()
        threading.Thread(target=self._look, name="clients", daemon=True).start()
        for each in self._sockets:
            log.info("listening on %s, port %d", *each.getsockname()[:2])

    def stop(self, patience: Patience | None = None) -> None:
        """Stop listening, end all sessions, and return when their threads have ended.

        Clients get an error (57P01), as in a fast shutdown; 40003 if what a statement does may
        last. A session that does not end by itself is disconnected, after this error.
        """
        patience = patience or Patience()
        with self._lock:
            self._stopping.set()  # no session begins after this
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        with self._lock:
            running = list(self._backends.values())
        for backend, _ in running:
            backend.terminate()
        deadline = time.monotonic() + _TOLD_S
        for backend, thread in running:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                backend.give_up()
        deadline = time.monotonic() + _STOP_S
        for backend, thread in running:
            while thread.is_alive() and time.monotonic() < deadline:
                thread.join(_JOIN_S)
                if thread.is_alive() and (wait := patience.over()) is not None:
                    leave_behind(f"session with PID {backend.pid}", wait)
                    break
        if self._acceptor is not None:
            self._acceptor.join(_STOP_S)
        for each in self._sockets:
            each.close()

    def _accept(self) -> None:
        with selectors.DefaultSelector() as selector:
            for each in self._sockets:
                each.setblocking(False)  # a client may be gone before it is accepted
                selector.register(each, selectors.EVENT_READ)
            while not self._stopping.is_set():
                for key, _ in selector.select():
                    self._accept_from(key.fileobj)

    def _look(self) -> None:
        """End statements of clients that have left (client_connection_check_interval)."""
        while not self._stopping.wait(_LOOK_S):
            with self._lock:
                backends = [backend for backend, _ in self._backends.values()]
            for backend in backends:
                backend.end_if_left()

    def _accept_from(self, listening: Any) -> None:
        try:
            accepted, _ = listening.accept()
            accepted.setblocking(True)
        except BlockingIOError:
            return
        except OSError as error:
            if not self._stopping.is_set():
                log.warning("could not accept a connection: %s", error)
                self._stopping.wait(0.1)  # too many open files, for instance
            return
        try:
            self._begin(accepted)
        except (OSError, RuntimeError) as error:
            # The client has disconnected, or no thread could be started.
            accepted.close()
            log.info("could not begin a session: %s", error)

    def _begin(self, accepted: socket.socket) -> None:
        limit = self._listen.max_connections + self._listen.max_wal_senders
        if not self._make_room(limit + _TURNED_AWAY_AT_ONCE):
            accepted.close()
            return
        pid = self._services.sessions.next_pid()
        sock = ClientSocket(accepted, write_timeout_s=self._listen.write_timeout_s)
        key = os.urandom(_KEY_SIZE)
        backend = Backend(sock, pid, key, lambda: self._options, self._services)
        thread = threading.Thread(
            target=self._serve, args=(backend,), name=f"backend {pid}", daemon=True
        )
        with self._lock:
            if self._stopping.is_set():
                accepted.close()
                return
            # Start it under the lock, because stop() joins every thread in the dict.
            thread.start()
            self._backends[pid] = backend, thread

    def _make_room(self, limit: int) -> bool:
        """Tell whether another connection may be served. At the limit, the oldest connection that
        has not sent a startup packet is ended: connections that only stay open must not lock out
        others until authentication_timeout."""
        most = limit + _TURNED_AWAY_AT_ONCE
        with self._lock:
            # Those that were dismissed need a moment to end.
            if not self._room.wait_for(lambda: len(self._backends) < most, _ROOM_S):
                return False
            if len(self._backends) < limit:
                return True
            silent = (b for b, _ in self._backends.values() if b.pid not in self._admitted)
            oldest = next((backend for backend in silent if not backend.dismissed), None)
            if oldest is not None:
                oldest.dismiss()
            return oldest is not None

    def _serve(self, backend: Backend) -> None:
        try:
            backend.run()
        finally:
            with self._lock:
                del self._backends[backend.pid]
                self._room.notify()
                self._admitted.pop(backend.pid, None)

    def _admit(self, pid: int, walsender: bool) -> None:
        listen = self._listen
        with self._lock:
            others = sum(kind == walsender for kind in self._admitted.values())
            if others < (listen.max_wal_senders if walsender else listen.max_connections):
                self._admitted[pid] = walsender
                return
        if not walsender:
            raise TooManyConnections("sorry, too many clients already")
        quoted = '"max_wal_senders"' if self._options.version >= 17 else "max_wal_senders"
        raise TooManyConnections(
            f"number of requested standby connections exceeds {quoted} "
            f"(currently {listen.max_wal_senders})",
        )

    def _admit_role(self, role: Role, walsender: bool) -> None:
        """Keep the last connections for superusers (InitPostgres)."""
        if role.superuser or walsender:
            return
        with self._lock:
            free = self._listen.max_connections - sum(not kind for kind in self._admitted.values())
        if free < self._listen.superuser_reserved_connections:
            whose = "non-replication superuser connections"
            if self._options.version >= 16:
                whose = "roles with the SUPERUSER attribute"
            raise TooManyConnections(f"remaining connection slots are reserved for {whose}")

    def _check_reserved(self) -> None:
        """Check the numbers of connections against each other (PostmasterMain)."""
        listen, version = self._listen, self._options.version
        if listen.superuser_reserved_connections < listen.max_connections:
            return
        quote = '"' if version >= 17 else ""
        own = f"{quote}superuser_reserved_connections{quote}"
        own = f"{own} ({listen.superuser_reserved_connections})"
        if version >= 16:
            own = f"{own} plus {quote}reserved_connections{quote} (0)"
        limit = f"{quote}max_connections{quote} ({listen.max_connections})"
        raise ConfigurationError(f"{own} must be less than {limit}")

    def _sessions_of(self, role_oid: int) -> int:
        with self._lock:
            return sum(backend.role_oid == role_oid for backend, _ in self._backends.values())

    def _cancel(self, request: CancelRequest) -> None:
        """Cancel a session's statement if the key matches. The client gets no answer."""
        with self._lock:
            found = self._backends.get(request.process_id)
        if found is None or len(request.key) < _SHORTEST_KEY:
            return
        backend = found[0]
        if hmac.compare_digest(backend.key[: len(request.key)], request.key):
            runner = backend.runner
            if runner is not None:
                runner.cancel()
