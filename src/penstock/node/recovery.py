"""``penstock init --recover``: a node whose parameter file or state store is lost.

The state store gives the warehouse of a lost ``penstock.toml``. A lost state store is made again
from the warehouse: each subscription from its record (``subscription.record``), disabled, with the
tables of its last cut, which its first session takes up. The new state has a node id of its own and
takes the warehouse over, so that the old one, if it is found again, is refused.

Each step may be repeated after a crash; the warehouse is taken over last. Not in the warehouse, and
so not made again: what the node has published (roles, publications, slots, tables made by CREATE
TABLE, the order of its transactions), and passwords.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.catalog.catalog import Catalog
from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.store import has_node, make_private_file
from penstock.errors import ConfigurationError, DuplicateObject
from penstock.lakehouse.cuts import CutOwner
from penstock.lakehouse.warehouse import Warehouse
from penstock.node import guc
from penstock.node.claims import FILE_NAME as LOCK_FILE
from penstock.node.claims import LockFile
from penstock.node.lease import lease_on
from penstock.subscription.record import read_record


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was made again. ``subscriptions``: with the numbers of their tables; ``unknown``: names
    in the cuts of which there is no record."""

    parameters: bool
    subscriptions: Sequence[tuple[Subscription, int]]
    unknown: Sequence[str]


def recover(folder: Path, warehouse: str | None, state: str | None) -> Recovered:
    """Make the parameter file or the state store of a node again. Raises DuplicateObject if both
    are there; ConfigurationError, StorageError, ObjectInUse."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / guc.FILE_NAME
    lacks_parameters = not file.exists()
    with contextlib.ExitStack() as undo:
        undo.callback(LockFile(folder).release)
        made = undo.enter_context(contextlib.ExitStack())
        if lacks_parameters:
            _write_parameters(folder, warehouse, state)
            made.callback(file.unlink)
        parameters = guc.load(folder)
        url = guc.state_url(folder, parameters)
        if _has_run(url):
            if not lacks_parameters:
                raise DuplicateObject(
                    f'nothing is lost of node "{folder}"',
                    detail="Its parameters and its state are there.",
                    hint=f"Start it with: penstock start -D {folder}",
                )
            made.pop_all()
            return Recovered(True, (), ())
        lake = Warehouse(guc.warehouse_uri(folder, parameters), fsync=parameters.fsync)
        found = _take_over(url, lake, folder)
        made.pop_all()
        return Recovered(lacks_parameters, *found)


def _has_run(url: str) -> bool:
    """Return whether there is a state that has a warehouse; one that ``recover`` has begun to make
    has none."""
    if not has_node(url):
        return False
    with Catalog.open(url) as catalog:
        return catalog.warehouse() is not None


def _write_parameters(folder: Path, warehouse: str | None, state: str | None) -> None:
    url = state or f"sqlite:///{folder / 'state.db'}"
    if warehouse is None and has_node(url):
        with Catalog.open(url) as catalog:
            warehouse = catalog.warehouse()
    if warehouse is None:
        raise ConfigurationError(
            f'neither "{folder / guc.FILE_NAME}" nor a state store is there',
            hint="Name what is left of the node: --warehouse URI, or --state URL.",
        )
    text = guc.with_value(guc.default_text(), "warehouse", warehouse)
    if state is not None:
        text = guc.with_value(text, "state", state)
        make_private_file(folder / guc.FILE_NAME)  # the URL may contain a password
    (folder / guc.FILE_NAME).write_text(text, encoding="utf-8")


def _take_over(
    url: str, lake: Warehouse, folder: Path
) -> tuple[list[tuple[Subscription, int]], list[str]]:
    if lake.owner() is None:
        raise ConfigurationError(
            f'the warehouse "{lake.uri}" is no node\'s',
            detail="It has no node id: it is empty, not mounted, or another folder.",
            hint="Set the parameter warehouse, or the option --warehouse, to the node's warehouse.",
        )
    with contextlib.ExitStack() as undo:
        lease = lease_on(lake, folder / LOCK_FILE)
        if lease is not None:
            lease.take()
            undo.callback(lease.release)
        records = [read_record(uri, lake.storage.read(uri)) for uri in lake.subscription_records()]
        if not has_node(url):
            Catalog.create(url).close()
        catalog = undo.enter_context(Catalog.open(url))
        with catalog.write() as t:
            known = {subscription.app_id: subscription for subscription in t.subscriptions.all()}
            made = [
                known.get(record["app_id"]) or t.subscriptions.create(**record, enabled=False)
                for record in records
            ]
        owners = [CutOwner(subscription.name, subscription.app_id) for subscription in made]
        cuts = [lake.cuts.last(owner) for owner in owners]
        unknown = lake.cuts.names() - {subscription.name for subscription in made}
        lake.claim(catalog.node_info.node_id)
        catalog.record_warehouse(lake.uri)
    tables = [0 if cut is None else len(cut.tables) for cut in cuts]
    return list(zip(made, tables, strict=True)), sorted(unknown)
