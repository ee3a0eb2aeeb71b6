"""Sessions ended by SQL functions, and the node's parameters read again (signalfuncs.c).

In: the node's sessions, the catalog, the session that asks. Out: pg_cancel_backend,
pg_terminate_backend and pg_reload_conf for ``pg_catalog``. Who may do it is looked up now; a
session of a superuser is a superuser's to end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.catalog import Catalog
from penstock.errors import InsufficientPrivilege, ValueNotRepresentable
from penstock.pg_catalog import PythonFunction
from penstock.pg_catalog.session_facts import SessionFacts
from penstock.pg_catalog.snapshot import NODE_OWNER
from penstock.sql.to_duckdb.catalog_functions import CatalogFunction
from penstock.sqlstate import QueryCanceled
from penstock.stats.backend_status import Session, Sessions

_CANCEL: Final = "pg_cancel_backend"
_TERMINATE: Final = "pg_terminate_backend"
_RELOAD: Final = "pg_reload_conf"
_DETAILS_SINCE: Final = 16
_BACKEND_SINCE: Final = 15
_MS: Final = 1000
_TICK_S: Final = 0.1

SIGNAL_FUNCTIONS: Final = frozenset({_CANCEL, _TERMINATE, _RELOAD})


@dataclass(frozen=True, slots=True)
class _Words:
    """How PostgreSQL speaks of one of the functions: before 16, and since."""

    denied: str
    superusers: str
    others: str
    before: str
    whose: str


_WORDS: Final = {
    _CANCEL: _Words(
        "permission denied to cancel query",
        "may cancel queries of roles with the SUPERUSER attribute.",
        'role whose query is being canceled or with privileges of the "pg_signal_backend" role '
        "may cancel this query.",
        "must be a superuser to cancel superuser query",
        "query is being canceled",
    ),
    _TERMINATE: _Words(
        "permission denied to terminate process",
        "may terminate processes of roles with the SUPERUSER attribute.",
        'role whose process is being terminated or with privileges of the "pg_signal_backend" role '
        "may terminate this process.",
        "must be a superuser to terminate superuser process",
        "process is being terminated",
    ),
}


class SignalFunctions:
    """For one session."""

    def __init__(
        self,
        sessions: Sessions,
        catalog: Catalog,
        facts: SessionFacts,
        reload: Callable[[], None],
    ) -> None:
        """``reload``: has the parameters read again. Raises OSError: nobody runs the node."""
        self._sessions = sessions
        self._reload = reload
        self._catalog = catalog
        self._facts = facts

    def functions(self) -> Mapping[str, PythonFunction]:
        """By name."""
        return {
            _CANCEL: PythonFunction(CatalogFunction(_CANCEL, ("int4",), "bool"), self._cancel),
            _TERMINATE: PythonFunction(
                CatalogFunction(_TERMINATE, ("int4", "int8"), "bool"), self._terminate
            ),
            _RELOAD: PythonFunction(
                CatalogFunction(_RELOAD, (), "bool"), self._reload_conf, strict=False
            ),
        }

    def _cancel(self, pid: int) -> bool:
        session = self._found(pid)
        if session is None:
            return False
        self._check(session, _WORDS[_CANCEL])
        session.cancel()
        return True

    def _terminate(self, pid: int, timeout_ms: int | None) -> bool:
        if timeout_ms is not None and timeout_ms < 0:
            raise ValueNotRepresentable('"timeout" must not be negative')
        session = self._found(pid)
        if session is None:
            return False
        self._check(session, _WORDS[_TERMINATE])
        session.terminate()
        if not timeout_ms or pid == self._facts.pid or self._ends(session, timeout_ms / _MS):
            return True
        plural = "" if timeout_ms == 1 else "s"
        self._facts.warn(
            f"backend with PID {pid} did not terminate within {timeout_ms} millisecond{plural}"
        )
        return False

    def _reload_conf(self) -> bool:
        """PostgreSQL lets only superusers call it, until somebody grants it."""
        if not self._facts.superuser:
            raise InsufficientPrivilege(f"permission denied for function {_RELOAD}")
        try:
            self._reload()
        except OSError as error:
            self._facts.warn(f"failed to send signal to postmaster: {error.strerror or error}")
            return False
        return True

    def _ends(self, session: Session, timeout_s: float) -> bool:
        """Raises PenstockError (57014) where the query that waits is cancelled."""
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            if session.ended.wait(min(_TICK_S, left)):
                return True
            if self._facts.cancelled():
                raise QueryCanceled.by_user()
        return False

    def _found(self, pid: int) -> Session | None:
        session = self._sessions.find(pid)
        if session is None:
            kind = "backend" if self._facts.version >= _BACKEND_SINCE else "server"
            self._facts.warn(f"PID {pid} is not a PostgreSQL {kind} process")
        return session

    def _check(self, session: Session, words: _Words) -> None:
        """pg_signal_backend"""
        if self._facts.superuser:
            return
        with self._catalog.read() as t:
            role = t.roles.find_oid(session.activity.role)
        details = self._facts.version >= _DETAILS_SINCE
        owner = session.activity.role == NODE_OWNER
        if owner or (role is not None and role.superuser):
            if not details:
                raise InsufficientPrivilege(words.before)
            raise InsufficientPrivilege(
                words.denied,
                detail=f"Only roles with the SUPERUSER attribute {words.superusers}",
            )
        if session.activity.role == self._facts.role_oid:
            return
        if not details:
            raise InsufficientPrivilege(
                f"must be a member of the role whose {words.whose} or member of pg_signal_backend"
            )
        raise InsufficientPrivilege(
            words.denied, detail=f"Only roles with privileges of the {words.others}"
        )
