"""Parking: stop for a table whose changes cannot be applied, or go on without it (on_table_error).

This module handles an error of one table alone. With ``stop`` it raises the error again, with the
table's name and what the user can do, and ends the session. With ``park`` the table leaves the open
tables, so it is in no cut and no longer holds back the acknowledged LSN; the other tables go on.
The catalog records that it is parked before any cut can omit it, so the next session leaves it out
too. REFRESH PUBLICATION copies a parked table again, as it does a table whose error has stopped the
subscription. An error's own hint says how to mend its cause, if that is possible; this module adds
what to do next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from penstock.catalog.pg_subscription import FOLLOWING, Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel
from penstock.catalog.publisher_identity import alter
from penstock.errors import (
    AnotherTable,
    FeatureNotSupported,
    HistoryMismatch,
    PenstockError,
    RelationChanged,
    ReplicationConflict,
    SchemaChanged,
    StateMismatch,
    StorageError,
    UndefinedObject,
    UnknownLabel,
    ValueNotRepresentable,
)
from penstock.lakehouse.warehouse import Warehouse
from penstock.relation import TableName
from penstock.subscription.retry import heals

log = logging.getLogger(__name__)

OWN_ERRORS: Final = (
    FeatureNotSupported,
    RelationChanged,
    ReplicationConflict,
    StateMismatch,
    UndefinedObject,
    ValueNotRepresentable,
)
"""Errors that can concern one table alone, in addition to each StorageError that is not retried."""

_PARKED: Final = (
    "The table is parked; {alter} REFRESH PUBLICATION copies it again, in place of all its rows."
)
_PARKED_BESIDE: Final = (
    "The table is parked. Move away what lies in its place, or put the table back there; then "
    "{alter} REFRESH PUBLICATION copies it again."
)
_MENDED_ALONE: Final = "Then run {alter} ENABLE."
_MENDED: Final = f"{_MENDED_ALONE} Or run"
_IN_THE_WAL: Final = (
    "It stays in the publisher's WAL, so the table must pass it by as well. Then run"
)
_ALTERED: Final = "Run {alter} {statement}, and then {alter} ENABLE."
_COPIED: Final = (
    "{alter} REFRESH PUBLICATION, and then {alter} ENABLE. It copies the table again, in place of "
    "all its rows: those that the publisher does not have are gone from it then."
)
_MOVED: Final = (
    "{mended} Then run {alter} ENABLE. Or move away what lies there, and run {alter} REFRESH "
    "PUBLICATION, and then {alter} ENABLE. It copies the table again, into a new one."
)
_WITHOUT: Final = (
    "To let the other tables go on without this one: {alter} SET (on_table_error = park)."
)

_MENDED_BY_A_COPY: Final = (RelationChanged, StateMismatch)
"""Errors whose hints are omitted once the table is parked, because the new copy mends the cause."""


class Parking:
    """The decisions about errors of one subscription's tables."""

    def __init__(
        self,
        subscription: Subscription,
        warehouse: Warehouse,
        record: Callable[[SubscriptionRel, PenstockError], object],
        primary_key_name: Callable[[TableName], str | None],
    ) -> None:
        """``record``: writes the state and its reason to the catalog. ``primary_key_name``: returns
        the constraint's name if the node's catalogs have one."""
        self._subscription = subscription
        self._warehouse = warehouse
        self._record = record
        self._primary_key_name = primary_key_name
        self.refused: SubscriptionRel | None = None
        """The table whose error was raised last."""

    def refuse(self, rel: SubscriptionRel, error: PenstockError) -> None:
        """Park a table, or raise the error. The caller closes the table when this returns.

        Raises StorageError if the warehouse is not there; ObjectInUse if it is another node's now.
        """
        if not is_own(error):
            raise error
        self._warehouse.check_there()  # without a warehouse the error is not the table's
        begun = alter(self._subscription.name)
        if not self.parks(error):
            self.refused = rel
            raise _with_ways_on(rel, error, begun)
        self._warehouse.confirm_lease()  # another node may have caused it, and has the state, too
        found = _parking_error(error, begun)
        self._record(rel, found)
        log.error(
            'table "%s" of subscription "%s" is parked, the others go on; because of:\n%s',
            rel.qualified_name,
            self._subscription.name,
            found.report(),
        )

    def parks(self, error: PenstockError) -> bool:
        """Return whether ``refuse`` would park the table for its own error."""
        return self._subscription.on_table_error == "park" and not self._follows(error)

    def to_follow(self, error: BaseException) -> SubscriptionRel | None:
        """Return the table whose schema change ended the session, if such changes are followed."""
        return self.refused if self._follows(error) else None

    def _follows(self, error: BaseException) -> bool:
        return self._subscription.schema_change in FOLLOWING and isinstance(error, SchemaChanged)

    def unique_index(self, table: TableName | None) -> str | None:
        """Return the name of the table's primary key if the node's catalogs have one."""
        return None if table is None else self._primary_key_name(table)


def is_own(error: PenstockError) -> bool:
    """Return whether an error concerns only its table."""
    if isinstance(error, StorageError):
        return not heals(error)
    return isinstance(error, OWN_ERRORS)


def _parking_error(error: PenstockError, begun: str) -> PenstockError:
    if isinstance(error, AnotherTable):
        return _with_hint(error, error.detail, _PARKED_BESIDE.format(alter=begun))
    mended = None if isinstance(error, _MENDED_BY_A_COPY) else error.hint
    return _with_hint(error, error.detail, _sentences(mended, _PARKED.format(alter=begun)))


def _with_ways_on(rel: SubscriptionRel, error: PenstockError, begun: str) -> PenstockError:
    detail, table = error.detail, f'"{rel.qualified_name}"'
    if table not in f"{error.message} {detail}":
        detail = _sentences(detail, f"It came up at table {table}.")
    if error.alter is not None:
        mended = _sentences(error.hint, _ALTERED.format(alter=begun, statement=error.alter))
    elif isinstance(error, SchemaChanged):  # its own hint comes last: it keeps rows that differ
        mended = _sentences(f"Run {_COPIED.format(alter=begun)}", error.hint or "").rstrip()
    elif isinstance(error, AnotherTable):
        mended = _MOVED.format(mended=error.hint, alter=begun)
    elif isinstance(error, HistoryMismatch):  # a new copy would have the same error
        mended = _sentences(error.hint, _MENDED_ALONE.format(alter=begun))
    else:
        else_run = "Run" if error.hint is None else _MENDED.format(alter=begun)
        if isinstance(error, ValueNotRepresentable) and not isinstance(error, UnknownLabel):
            else_run = _IN_THE_WAL
        mended = f"{_sentences(error.hint, else_run)} {_COPIED.format(alter=begun)}"
    hint = f"{mended} {_WITHOUT.format(alter=begun)}"
    return _with_hint(error, detail, hint)


def _sentences(first: str | None, then: str) -> str:
    return then if first is None else f"{first.rstrip('.')}. {then}"


def _with_hint(error: PenstockError, detail: str | None, hint: str) -> PenstockError:
    return error.changed(detail=detail, hint=hint, alter=None)
