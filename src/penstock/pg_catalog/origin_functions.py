"""Replication origins by SQL functions (origin.c): read and set the positions of subscriptions.

A node's origins are those of its subscriptions, ``pg_<oid>``; sessions have none. The functions'
effects last even if the query fails. The position to which an origin was advanced is kept in the
catalog until the worker's next session makes it a cut (``subscription.origin``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from penstock.catalog import Catalog, Subscription
from penstock.errors import (
    FeatureNotSupported,
    InsufficientPrivilege,
    NotInPrerequisiteState,
    ObjectInUse,
    UndefinedObject,
)
from penstock.lakehouse.cuts import CutOwner
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import INVALID, Lsn
from penstock.pg_catalog import PythonFunction
from penstock.pg_catalog.snapshot import SessionFacts
from penstock.sql.to_duckdb.catalog_functions import CatalogFunction, TableFunction
from penstock.sqlstate import ReservedName
from penstock.stats.backend_status import BackendType, Sessions

_SHOW: Final = "pg_show_replication_origin_status"
_STATUS: Final = "penstock_origin_status"
_FAMILY: Final = "pg_replication_origin_"
_RESERVED: Final = ("any", "none")
_SUBSCRIPTIONS_ONLY: Final = "A node's origins are those of its subscriptions."

# name without pg_replication_origin_: (arguments, returns)
_SIGNATURES: Final = {
    "create": (("text",), "oid"),
    "drop": (("text",), "void"),
    "oid": (("text",), "oid"),
    "advance": (("text", "pg_lsn"), "void"),
    "progress": (("text", "bool"), "pg_lsn"),
    "session_setup": (("text",), "void"),
    "session_reset": ((), "void"),
    "session_is_setup": ((), "bool"),
    "session_progress": (("bool",), "pg_lsn"),
    "xact_setup": (("pg_lsn", "timestamptz"), "void"),
    "xact_reset": ((), "void"),
}

ORIGIN_FUNCTIONS: Final = frozenset({_SHOW, *(f"{_FAMILY}{name}" for name in _SIGNATURES)})


class OriginFunctions:
    """Functions of origins, for one session. Superusers only."""

    def __init__(
        self, catalog: Catalog, warehouse: Warehouse, sessions: Sessions, facts: SessionFacts
    ) -> None:
        self._catalog = catalog
        self._warehouse = warehouse
        self._sessions = sessions
        self._facts = facts

    def functions(self) -> Mapping[str, PythonFunction]:
        """Return the functions by name."""
        found = {}
        for short, (arguments, returns) in _SIGNATURES.items():
            name = f"{_FAMILY}{short}"
            found[name] = PythonFunction(
                CatalogFunction(name, arguments, returns),
                self._checked(name, getattr(self, f"_{short}")),
                strict=False,
            )
        show = CatalogFunction(f"{_SHOW}_allowed", (), "bool")
        allowed = self._checked(_SHOW, lambda: True)
        return {**found, show.name: PythonFunction(show, allowed, strict=False)}

    def table_functions(self) -> Mapping[str, TableFunction]:
        """Return the functions that return rows."""
        columns = ("local_id", "oid"), ("external_id", "text")
        show = TableFunction(
            _SHOW,
            (),
            (*columns, ("remote_lsn", "pg_lsn"), ("local_lsn", "pg_lsn")),
            "SELECT s.local_id AS o1, s.external_id AS o2, s.remote_lsn AS o3, s.local_lsn AS o4 "
            f'FROM cat."{_STATUS}" AS s WHERE pg__{_SHOW}_allowed()',
            tables=(_STATUS,),
            functions=(f"{_SHOW}_allowed",),
        )
        return {_SHOW: show}

    def _checked(self, name: str, call: Callable[..., object]) -> Callable[..., object]:
        """Return a function that is strict: any NULL argument makes its result NULL. Otherwise only
        superusers may call it."""

        def checked(*arguments: object) -> object:
            if None in arguments:
                return None
            if not self._facts.superuser:
                raise InsufficientPrivilege(f"permission denied for function {name}")
            return call(*arguments)

        return checked

    def _create(self, name: str) -> int:
        if name.lower() in _RESERVED or name.startswith("pg_"):
            raise ReservedName(
                f'replication origin name "{name}" is reserved',
                detail='Origin names "any", "none", and names starting with "pg_" are reserved.',
            )
        raise FeatureNotSupported(f"{_FAMILY}create is not supported", detail=_SUBSCRIPTIONS_ONLY)

    def _drop(self, name: str) -> str:
        self._subscription(name)
        raise FeatureNotSupported(
            f"{_FAMILY}drop is not supported",
            detail=f"{_SUBSCRIPTIONS_ONLY} They go with DROP SUBSCRIPTION.",
        )

    def _oid(self, name: str) -> int | None:
        found = self._find(name)
        return None if found is None else found.origin_id

    def _advance(self, name: str, lsn: int) -> str:
        subscription = self._subscription(name)
        self._check_idle(subscription)
        cut = self._last_cut(subscription)
        with self._catalog.write() as t:
            now = t.subscriptions.find_oid(subscription.oid)
            if now is None:
                raise _missing(name)
            if now.should_run:
                raise _enabled(now)
            t.subscriptions.save(replace(now, origin_lsn=Lsn(lsn)))
        if lsn < cut:
            self._facts.warn(
                f'replication origin "{name}" stays at {cut}: the tables hold what came before'
            )
        return ""

    def _progress(self, name: str, _flush: bool) -> int | None:
        """Return the origin's position; it is always flushed, since a cut is durable."""
        subscription = self._subscription(name)
        return int(max(subscription.origin_lsn, self._last_cut(subscription))) or None

    def _session_setup(self, name: str) -> str:
        self._subscription(name)
        raise FeatureNotSupported(
            f"{_FAMILY}session_setup is not supported", detail=_SUBSCRIPTIONS_ONLY
        )

    def _session_reset(self) -> str:
        raise NotInPrerequisiteState("no replication origin is configured")

    def _session_is_setup(self) -> bool:
        return False

    def _session_progress(self, _flush: bool) -> int:
        raise NotInPrerequisiteState("no replication origin is configured")

    def _xact_setup(self, _lsn: int, _time: object) -> str:
        raise NotInPrerequisiteState("no replication origin is configured")

    def _xact_reset(self) -> str:
        return ""

    def _find(self, name: str) -> Subscription | None:
        """Return the subscription whose origin has the name (replorigin_by_name)."""
        known = self._catalog.subscriptions()
        return next((found for found in known if found.origin_name == name), None)

    def _subscription(self, name: str) -> Subscription:
        found = self._find(name)
        if found is None:
            raise _missing(name)
        return found

    def _check_idle(self, subscription: Subscription) -> None:
        """Raise ObjectInUse if the subscription has a worker or is enabled."""
        pid = self._worker(subscription)
        if pid is not None:
            raise ObjectInUse(
                f"replication origin with ID {subscription.origin_id} is already active for "
                f"PID {pid}"
            )
        if subscription.should_run:
            raise _enabled(subscription)

    def _worker(self, subscription: Subscription) -> int | None:
        """Return the pid of a subscription's worker, or the pid reported by another process."""
        for session in self._sessions.all():
            applies = session.backend_type is BackendType.APPLY
            if applies and session.subscription == subscription.oid:
                return session.pid
        told = self._catalog.statistics.all().get(subscription.oid)
        runs = told is not None and subscription.should_run and told.reported(time.time())
        return told.pid if told is not None and runs else None

    def _last_cut(self, subscription: Subscription) -> Lsn:
        owner = CutOwner(subscription.name, subscription.app_id)
        cut = self._warehouse.cuts.last(owner)
        return INVALID if cut is None else cut.lsn


def _missing(name: str) -> UndefinedObject:
    return UndefinedObject(f'replication origin "{name}" does not exist')


def _enabled(subscription: Subscription) -> ObjectInUse:
    return ObjectInUse(
        f'replication origin "{subscription.origin_name}" cannot be advanced while subscription '
        f'"{subscription.name}" is enabled',
        hint="Disable the subscription first.",
    )
