"""What the warehouse keeps of a subscription, for the day on which the node's state is lost.

``penstock init --recover`` makes the subscription again from this file; the cuts name its tables,
which the first session takes up. The file has no secrets: a password in the connection string must
be given again. It has a checksum, since a damaged value may look like another one.
"""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Iterable
from typing import Any, Final

from penstock.catalog.pg_subscription import (
    Subscription,
    SubscriptionOptions,
    TwoPhaseState,
    read_choice,
)
from penstock.catalog.publisher_identity import PublisherIdentity, PublisherUpgrade
from penstock.errors import ConfigurationError
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.walreceiver.conninfo import ConnInfo

_OPTIONS: Final = tuple(option.name for option in dataclasses.fields(SubscriptionOptions))
_HISTORY: Final = "history"
_CHECKSUM: Final = "crc32"


class Records:
    """The records of the subscriptions of a running node."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._kept: dict[str, bytes] = {}

    def keep(self, subscriptions: Iterable[Subscription]) -> None:
        """Write the records that have changed since the last call. Raises StorageError,
        ObjectInUse."""
        now = {one.app_id: record_of(one) for one in subscriptions if not one.dropping}
        storage, uri_of = self._warehouse.storage, self._warehouse.subscription_uri
        for app_id, content in now.items():
            uri = uri_of(app_id)
            if self._kept.get(app_id) != content and storage.read_if_there(uri) != content:
                self._warehouse.check_lease()
                storage.create_folder(uri.rpartition("/")[0])
                storage.write(uri, content)
            self._kept[app_id] = content
        # DROP removes the record itself, maybe before the last call has written it.
        for app_id in self._kept.keys() - now.keys():
            storage.remove(uri_of(app_id))
            del self._kept[app_id]


def record_of(subscription: Subscription) -> bytes:
    """Return the content of a subscription's record."""
    options = {name: getattr(subscription, name) for name in _OPTIONS}
    publisher, upgraded = subscription.publisher, subscription.upgraded
    record = {
        "name": subscription.name,
        "app_id": subscription.app_id,
        "conninfo": str(ConnInfo(subscription.conninfo)),
        "slot_name": subscription.slot_name,
        "publications": subscription.publications,
        "two_phase_state": subscription.two_phase_state.value,
        "publisher": None if publisher is None else dataclasses.asdict(publisher),
        "upgraded": None if upgraded is None else [str(upgraded.lsn), upgraded.xid],
        "options": options | {_HISTORY: str(subscription.history)},
    }
    return f"{json.dumps(record | {_CHECKSUM: _checksum(record)}, indent=1)}\n".encode()


def _checksum(record: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(record).encode())


def read_record(uri: str, content: bytes) -> dict[str, Any]:
    """Return the arguments of ``PgSubscription.create``. Raises ConfigurationError for a file that
    is damaged, or of a newer Penstock."""
    try:
        record: dict[str, Any] = dict(json.loads(content))
        if record.pop(_CHECKSUM) != _checksum(record):
            raise ValueError("its checksum is wrong")
        options, publisher, upgraded = (
            record.pop(name) for name in ("options", "publisher", "upgraded")
        )
        if unknown := options.keys() - set(_OPTIONS):
            raise ConfigurationError(
                f'the record "{uri}" has options that this Penstock does not know: '
                f"{', '.join(sorted(unknown))}",
                hint="Install the version of Penstock that has written it, or a newer one.",
            )
        options[_HISTORY] = read_choice(_HISTORY, options[_HISTORY])
        record["two_phase_state"] = TwoPhaseState(record["two_phase_state"])
        record["publisher"] = None if publisher is None else PublisherIdentity(**publisher)
        record["upgraded"] = (
            None if upgraded is None else PublisherUpgrade(Lsn.parse(upgraded[0]), upgraded[1])
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigurationError(
            f'the record "{uri}" cannot be read: {error}',
            hint="Put it back from a copy. Or remove it: the other subscriptions are made again "
            "then, and it is told how its tables are copied again.",
        ) from None
    return {**record, **options}
