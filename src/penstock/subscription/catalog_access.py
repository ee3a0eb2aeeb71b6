"""What an apply worker reads and writes of the node's state.

In: nothing. Out: a record of functions, which the node makes from its catalog. So a worker takes no
part in the state store's transactions, and nothing else of the catalog is its business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from penstock.catalog import LakeTable, SubscriptionCounts
from penstock.catalog.pg_subscription import DroppedSubscription, Subscription
from penstock.catalog.pg_subscription_rel import SubscriptionRel, SubscriptionRelState
from penstock.catalog.publisher_identity import PublisherIdentity
from penstock.enum_type import EnumType
from penstock.lsn import Lsn
from penstock.relation import TableName
from penstock.subscription.advanced import AdvancedOrigin
from penstock.subscription.cut_requests import RequestedCuts
from penstock.subscription.prepared import TwoPhase
from penstock.subscription.skipping import SkipLsns


@dataclass(frozen=True, slots=True)
class CatalogAccess:
    """``node`` makes it."""

    generation: Callable[[], int]
    """Grows with every change; cheap."""
    rels: Callable[[], Sequence[SubscriptionRel]]
    subscription_with_rels: Callable[[], tuple[Subscription | None, Sequence[SubscriptionRel]]]
    """As they are now, of one state; None: it is gone."""
    set_state: Callable[[SubscriptionRel, SubscriptionRelState, Lsn | None], object]
    check_origin: Callable[[], None]
    """Raises ConfigurationLimitExceeded: there is no state for the subscription's origin now."""
    record_publisher: Callable[[PublisherIdentity], None]
    park: Callable[[SubscriptionRel, BaseException], object]
    """Record that a table follows no more, and why."""
    bind: Callable[[SubscriptionRel, int | None, str | None], object]
    copy_again: Callable[[SubscriptionRel, int | None], object]
    record_definition: Callable[[SubscriptionRel, str], object]
    """Record what a table's rows depend on at the publisher."""
    record_conflict: Callable[[SubscriptionRel, str], object]
    member: Callable[
        [SubscriptionRel, Subscription],
        AbstractContextManager[Callable[[SubscriptionRelState, Lsn | None], object]],
    ]
    """Keep a table in the subscription, and that as it is, until the block is left; yields what
    sets the table's state."""
    partition_tree: Callable[[TableName], tuple[LakeTable, ...]]
    """A partitioned table of the node with all its partitions, root first; () for others."""
    enum_types: Callable[[], tuple[EnumType, ...]]
    """The node's own types."""
    next_values: Callable[[TableName, str, int], Sequence[int]]
    """So many next values of the sequence of a table's column. Raises UndefinedTable (42P01),
    SequenceGeneratorLimitExceeded (2200H)."""
    restart_sequences: Callable[[TableName], object]
    """Those of a table's columns begin again, as for TRUNCATE RESTART IDENTITY."""
    primary_key_name: Callable[[TableName], str | None]
    """Of the constraint; None: the catalogs do not have it, or the table."""
    subscription_name: Callable[[str], str | None]
    """By app id; None: there is no such subscription on the node."""
    dropped_subscriptions: Callable[[], Sequence[DroppedSubscription]]
    """All that the node has had."""
    origin_name: Callable[[str], str | None]
    """Of a subscription's replication origin, as ``subscription_name``."""
    requested_cuts: RequestedCuts
    two_phase: Callable[[], TwoPhase]
    """Whether prepared transactions are received as such, as it is now."""
    follow_change: Callable[[SubscriptionRel, BaseException], object]
    """Have a table copied again whose relation has changed at the publisher. Raises what REFRESH
    raises."""
    count: Callable[[SubscriptionCounts], object]
    """Count errors and conflicts; never raises."""
    skip_lsns: SkipLsns
    advanced: AdvancedOrigin
    record_stop: Callable[[BaseException, str | None, bool], None]
    """Record that the subscription has stopped because of an error, the sync id of the table that
    it is an error of, and whether it is disabled."""
