"""What becomes of a table whose changes cannot be applied (option on_table_error).

In: a table of a subscription, and the error of its own. Out: with ``stop`` the error is raised
again, with the table's name and the ways on: it ends the session. With ``park`` the table leaves
the open tables, and with them the cuts and what holds back the acknowledged LSN; the others go on.
That it is parked is in the catalog before any cut can pass it by: whoever opens the tables next
leaves it out too. REFRESH PUBLICATION copies it again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel
from penstock.errors import (
    FeatureNotSupported,
    PenstockError,
    RelationChanged,
    ReplicationConflict,
    StateMismatch,
    StorageError,
    UndefinedObject,
    ValueNotRepresentable,
)
from penstock.lakehouse.warehouse import Warehouse
from penstock.sql.quoting import quote_identifier
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
"""What can be wrong with one table alone; of StorageError what a retry does not heal."""

_AGAIN: Final = "The table is parked; ALTER SUBSCRIPTION {} REFRESH PUBLICATION copies it again."
_WITHOUT: Final = (
    "To let the other tables go on without this one: "
    "ALTER SUBSCRIPTION {} SET (on_table_error = park)."
)


class Parking:
    """Decides for the tables of one subscription."""

    def __init__(
        self,
        subscription: Subscription,
        warehouse: Warehouse,
        record: Callable[[SubscriptionRel, PenstockError], object],
    ) -> None:
        """``record``: writes the state and its reason to the catalog."""
        self._subscription = subscription
        self._warehouse = warehouse
        self._record = record

    def refuse(self, rel: SubscriptionRel, error: PenstockError) -> None:
        """Park a table, or raise the error. The caller closes the table when this returns.

        Raises StorageError where the warehouse is not there.
        """
        if not is_own(error):
            raise error
        name = quote_identifier(self._subscription.name)
        if self._subscription.on_table_error != "park":
            raise _with_ways_on(rel, error, name)
        self._warehouse.check_there()  # else no table of it is to blame
        found = _parked(error, _AGAIN.format(name))
        self._record(rel, found)
        log.error(
            'table "%s" of subscription "%s" is parked, the others go on; because of:\n%s',
            rel.qualified_name,
            self._subscription.name,
            found.report(),
        )


def is_own(error: PenstockError) -> bool:
    """Whether an error concerns the table alone where it came up."""
    if isinstance(error, StorageError):
        return not heals(error)
    return isinstance(error, OWN_ERRORS)


def _parked(error: PenstockError, hint: str) -> PenstockError:
    if isinstance(error, StateMismatch):  # its hint says how a subscription that stopped goes on
        return StateMismatch(error.message, detail=error.detail, hint=hint, sqlstate=error.sqlstate)
    return _with_hint(error, error.detail, hint)


def _with_ways_on(rel: SubscriptionRel, error: PenstockError, name: str) -> PenstockError:
    detail, table = error.detail, f'"{rel.qualified_name}"'
    if table not in error.message:
        detail = f"{f'{detail} ' if detail else ''}It came up at table {table}."
    return _with_hint(error, detail, _WITHOUT.format(name))


def _with_hint(error: PenstockError, detail: str | None, hint: str) -> PenstockError:
    hint = hint if error.hint is None else f"{error.hint} {hint}"
    return type(error)(error.message, detail=detail, hint=hint, sqlstate=error.sqlstate)
