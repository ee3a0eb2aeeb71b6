"""The node's state: subscriptions and publications, their tables, roles, slots, statistics
(PostgreSQL's catalogs and views).

``Catalog`` opens a state store by its URL, SQLite by default, and returns frozen rows. No other
package imports SQLAlchemy. The catalog decides nothing: commands change it, and workers record
their progress in it.
"""

from penstock.catalog.block_catalog import BlockCatalog
from penstock.catalog.block_commits import BlockCommit, BlockMessage, MadeTable, MessageHead
from penstock.catalog.catalog import Catalog, CatalogTransaction
from penstock.catalog.metadata import RecordedError
from penstock.catalog.pg_authid import Role
from penstock.catalog.pg_class import LakeTable, UniqueIndex
from penstock.catalog.pg_control import NodeInfo
from penstock.catalog.pg_namespace import Namespace
from penstock.catalog.pg_prepared_xacts import (
    PreparedBlock,
    PreparedState,
    PreparedXact,
    PrepareRecord,
    TwoPhaseKind,
    TwoPhaseRecord,
)
from penstock.catalog.pg_publication import (
    HistoricPublications,
    Publication,
    PublicationHistory,
    PublicationNamespace,
    PublicationRel,
)
from penstock.catalog.pg_replication_slots import Slot
from penstock.catalog.pg_sequence import Sequence, SequenceParameters
from penstock.catalog.pg_stat_subscription import (
    SubscriptionCounts,
    SubscriptionStatistics,
    TableStatistics,
)
from penstock.catalog.pg_subscription import Subscription, TwoPhaseState
from penstock.catalog.pg_subscription_rel import (
    SubscriptionRel,
    SubscriptionRelState,
    TableVerification,
)
from penstock.catalog.pg_transactions import (
    EmittedMessage,
    LakeTransaction,
    Member,
    Sequenced,
)
from penstock.catalog.sequences import Sequences, SessionSequences

__all__ = [
    "BlockCatalog",
    "BlockCommit",
    "BlockMessage",
    "Catalog",
    "CatalogTransaction",
    "EmittedMessage",
    "HistoricPublications",
    "LakeTable",
    "LakeTransaction",
    "MadeTable",
    "Member",
    "MessageHead",
    "Namespace",
    "NodeInfo",
    "PrepareRecord",
    "PreparedBlock",
    "PreparedState",
    "PreparedXact",
    "Publication",
    "PublicationHistory",
    "PublicationNamespace",
    "PublicationRel",
    "RecordedError",
    "Role",
    "Sequence",
    "SequenceParameters",
    "Sequenced",
    "Sequences",
    "SessionSequences",
    "Slot",
    "Subscription",
    "SubscriptionCounts",
    "SubscriptionRel",
    "SubscriptionRelState",
    "SubscriptionStatistics",
    "TableStatistics",
    "TableVerification",
    "TwoPhaseKind",
    "TwoPhaseRecord",
    "TwoPhaseState",
    "UniqueIndex",
]
