"""Which cut a reader gets: the last one, or the one that shows a moment.

In: a subscription, a table, an LSN or a time. Out: a cut. Reading tables at it is ``reading``'s.
"""

from __future__ import annotations

from datetime import datetime

from penstock.catalog import Catalog, Subscription
from penstock.errors import InvalidParameterValue, NotInPrerequisiteState
from penstock.lakehouse.cuts import Cut, CutOwner
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.node import reading
from penstock.relation import TableName

AsOf = Cut | Lsn | int | str | datetime
"""An LSN as a number or as PostgreSQL writes it (``16/B374D848``), or a time with its zone."""


class CutChoice:
    """For the subscriptions of a node."""

    def __init__(self, catalog: Catalog, warehouse: Warehouse) -> None:
        self._catalog = catalog
        self._warehouse = warehouse

    def last(self, subscription: Subscription) -> Cut | None:
        """The newest one."""
        return self._warehouse.cuts.last(_owner(subscription))

    def all(self, subscription: Subscription) -> tuple[Cut, ...]:
        """Those that are kept, the oldest first."""
        return self._warehouse.cuts.all(_owner(subscription))

    def wanted(self, subscription: str | None, table: TableName | None, as_of: AsOf | None) -> Cut:
        """For a reader of a table, or of all. Raises NotInPrerequisiteState where there is none,
        InvalidParameterValue, UndefinedObject, ConfigurationError."""
        if isinstance(as_of, Cut):
            return as_of
        if as_of is not None:
            return self._as_of(
                reading.find_subscription(self._catalog, subscription), _moment(as_of)
            )
        cut = self._newest(subscription, table)
        if table is not None and table not in cut.tables:
            known = reading.find_subscription(self._catalog, cut.subscription)
            return reading.older_cut(self._catalog, self._warehouse, known, table) or cut
        return cut

    def leaves(self, table: TableName) -> tuple[TableName, ...]:
        """The partitions that hold a table's rows."""
        return reading.leaves(self._catalog, table)

    def _newest(self, subscription: str | None, table: TableName | None) -> Cut:
        known = self._catalog.subscriptions()
        if subscription is None and table is not None and len(known) > 1:
            cuts = [self.last(each) for each in known]
            holding = [cut for cut in cuts if cut is not None and table in cut.tables]
            if len(holding) == 1:
                return holding[0]
        chosen = reading.find_subscription(self._catalog, subscription)
        return reading.existing(self.last(chosen), chosen)

    def _as_of(self, subscription: Subscription, moment: Lsn | datetime) -> Cut:
        found = self._warehouse.cuts.as_of(_owner(subscription), moment)
        if found is not None:
            return found
        oldest = next(iter(self.all(subscription)), None)
        raise NotInPrerequisiteState(
            f'subscription "{subscription.name}" has no cut of {moment} or before',
            detail="There is none yet."
            if oldest is None
            else f"The oldest one is at {oldest.lsn}, made at {oldest.cut_time}.",
            hint="The parameter cuts_kept says how many are kept.",
        )


def _owner(subscription: Subscription) -> CutOwner:
    return CutOwner(subscription.name, subscription.app_id)


def _moment(as_of: Lsn | int | str | datetime) -> Lsn | datetime:
    if isinstance(as_of, datetime):
        if as_of.tzinfo is None:
            raise InvalidParameterValue(
                f"time {as_of} has no time zone",
                hint="For example: datetime(2026, 1, 31, 12, tzinfo=UTC).",
            )
        return as_of
    return Lsn.parse(as_of) if isinstance(as_of, str) else Lsn(as_of)
