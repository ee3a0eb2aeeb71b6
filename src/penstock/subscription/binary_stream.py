"""Whether a stream may be in PostgreSQL's binary format.

In: a subscription that asks for it, its open tables, and the Relation messages of its stream. Out:
the answer as a session begins; an error as soon as the stream tells of a column that has to come as
text, such as one of an enum, in a table that has joined the publication or has been altered since.
The session ends then, and the next one streams text, which is right for all columns. Nobody else
has read such a message: what its rows hold cannot be read, and a prepared transaction is not sent
again once it is kept.
"""

from __future__ import annotations

import logging

from penstock.catalog.pg_subscription import Subscription
from penstock.errors import ConnectionFailure, PenstockError
from penstock.pgoutput.decoder import Decoder
from penstock.pgoutput.messages import RelationMessage
from penstock.pgtypes import binary_supported
from penstock.relation import Relation
from penstock.subscription.targets import Targets
from penstock.walreceiver.publisher import Publisher

log = logging.getLogger(__name__)


class NotInBinary(Exception):
    """A relation of a binary stream has a column that is read as text only."""


class BinaryStream:
    """Of one session."""

    def __init__(self, subscription: Subscription, targets: Targets) -> None:
        self._subscription = subscription
        self._targets = targets

    def begins(self, publisher: Publisher) -> bool:
        """Whether every published column can be read in binary. Raises ConnectionFailure."""
        for target in self._targets:
            rel = target.rel
            try:
                info = publisher.table_info(self._subscription.publications, rel.schema, rel.table)
            except ConnectionFailure:
                raise
            except PenstockError as error:
                # Renamed, dropped, locked: what comes of it is seen in the stream.
                log.info("%s; streaming text", error.message)
                return False
            if (found := self._text_only(info.relation)) is not None:
                log.warning("%s", found)
                return False
        return True

    def check(self, message: bytes) -> None:
        """Raises NotInBinary for a Relation message with a column that has to come as text."""
        definition = Decoder().decode(message)
        if isinstance(definition, RelationMessage):
            found = self._text_only(definition.relation)
            if found is not None:
                raise NotInBinary(found)

    def _text_only(self, relation: Relation) -> str | None:
        texts = self._targets.text_readers(relation)
        for attribute in relation.attributes:
            if attribute.name in texts or not binary_supported(attribute.type_oid):
                name, table = self._subscription.name, relation.qualified_name
                return (
                    f'subscription "{name}" streams text although binary = true: column '
                    f'"{attribute.name}" of table "{table}" is kept as PostgreSQL\'s text'
                )
        return None
