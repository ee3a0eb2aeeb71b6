"""Whether a stream may be in PostgreSQL's binary format.

In: a subscription that asks for it, and its open tables. Out: the answer, with a warning for the
first column that has to come as text. Text is right for all of them.
"""

from __future__ import annotations

import logging

from penstock.catalog.pg_subscription import Subscription
from penstock.errors import ConnectionFailure, PenstockError
from penstock.pgtypes import binary_supported
from penstock.subscription.targets import Targets
from penstock.walreceiver.publisher import Publisher

log = logging.getLogger(__name__)


def reads_binary(subscription: Subscription, publisher: Publisher, targets: Targets) -> bool:
    """Whether every published column can be read in binary. Raises ConnectionFailure."""
    for target in targets:
        name, rel = target.rel.qualified_name, target.rel
        try:
            info = publisher.table_info(subscription.publications, rel.schema, rel.table)
        except ConnectionFailure:
            raise
        except PenstockError as error:
            # Renamed, dropped, locked: what comes of it is seen in the stream.
            log.info("%s; streaming text", error.message)
            return False
        texts = targets.text_readers(info.relation)
        for attribute in info.relation.attributes:
            if attribute.name in texts or not binary_supported(attribute.type_oid):
                log.warning(
                    'subscription "%s" streams text although binary = true: column "%s" of '
                    'table "%s" is kept as PostgreSQL\'s text',
                    subscription.name,
                    attribute.name,
                    name,
                )
                return False
    return True
