"""``penstock init --recover``: a node whose parameter file or state store is lost.

The state store gives the warehouse of a lost ``penstock.toml``. A lost state store is made again
from the warehouse: each subscription from its record (``subscription.record``), disabled, with the
tables of its last cut, which its first session takes up. The new state has a node id of its own and
takes the warehouse over, so that the old one, if it is found again, is refused.

Each step may be repeated after a crash; the warehouse is taken over last. Not in the warehouse, and
so not made again: what the node has published (roles, publications, slots, tables made by CREATE
TABLE, the order of its transactions), passwords, and which prepared transactions wait.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.catalog.catalog import Catalog
from penstock.catalog.pg_subscription import Subscription
from penstock.catalog.store import has_node, make_private_file
from penstock.errors import ConfigurationError, DuplicateObject
from penstock.lakehouse.cuts import CutOwner
from penstock.lakehouse.log_store import check_conditional_puts
from penstock.lakehouse.warehouse import Warehouse
from penstock.node import guc
from penstock.node.claims import FILE_NAME as LOCK_FILE
from penstock.node.claims import LockFile
from penstock.node.lease import lease_on
from penstock.subscription.record import read_record


@dataclass(frozen=True, slots=True)
class Made:
    """A subscription that was made again. ``tables``: the number in its last cut. ``prepared``: the
    number of prepared transactions that were not made again."""

    subscription: Subscription
    tables: int
    prepared: int


@dataclass(frozen=True, slots=True)
class Recovered:
    """What was made again. ``unknown``: names in the cuts of which there is no record; ``others``:
    names of which there is another record, without cuts."""

    parameters: bool
    subscriptions: Sequence[Made]
    unknown: Sequence[str] = ()
    others: Sequence[str] = ()


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
        elif warehouse is not None or state is not None:
            raise ConfigurationError(
                f'"{file}" is there, and names warehouse and state store',
                hint="Change it, and leave the options --warehouse and --state out.",
            )
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
            return Recovered(True, ())
        lake = Warehouse(guc.warehouse_uri(folder, parameters), fsync=parameters.fsync)
        found = _take_over(url, lake, folder)
        made.pop_all()
        return replace(found, parameters=lacks_parameters)


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


def _take_over(url: str, lake: Warehouse, folder: Path) -> Recovered:
    if lake.owner() is None:
        again = (
            f"start it: penstock start -D {folder}"
            if has_node(url)
            else f'remove "{folder / guc.FILE_NAME}" and make it anew: penstock init {folder}'
        )
        raise ConfigurationError(
            f'the warehouse "{lake.uri}" is no node\'s',
            detail="It has no node id: it is empty, not mounted, or another folder.",
            hint="Set the parameter warehouse, or the option --warehouse, to the node's warehouse. "
            f"If the node has never run, nothing is lost: {again}",
        )
    check_conditional_puts(lake.storage)
    with contextlib.ExitStack() as undo:
        lease = lease_on(lake, folder / LOCK_FILE)
        if lease is not None:
            lease.take()
            undo.callback(lease.release)
        found = _recorded(lake)
        if not has_node(url):
            Catalog.create(url).close()
        catalog = undo.enter_context(Catalog.open(url))
        made, others = [], []
        with catalog.write() as t:
            known = {subscription.app_id: subscription for subscription in t.subscriptions.all()}
            for record, tables in found:
                subscription = known.get(record["app_id"])
                if subscription is None and t.subscriptions.find(record["name"]) is None:
                    subscription = t.subscriptions.create(**record, enabled=False)
                if subscription is not None:
                    made.append(Made(subscription, tables, _prepared(lake, subscription)))
                else:
                    others.append(record["name"])
        names = {record["name"] for record, _ in found}
        unknown = lake.cuts.names() - names
        lake.claim(catalog.node_info.node_id)
        catalog.record_warehouse(lake.uri)
    return Recovered(False, made, sorted(unknown), others)


def _recorded(lake: Warehouse) -> list[tuple[dict[str, Any], int]]:
    """Return the records of the subscriptions, with the numbers of their tables. A name is that in
    the cuts: a renaming on a node that does not run changes only them. Without cuts come last."""
    found: list[tuple[dict[str, Any], int]] = []
    for uri in lake.subscription_records():
        record = read_record(uri, lake.storage.read(uri))
        cut = lake.cuts.last(CutOwner(record["name"], record["app_id"]))
        if cut is None:
            found.append((record, 0))
        else:
            found.insert(0, ({**record, "name": cut.subscription}, len(cut.tables)))
    return found


def _prepared(lake: Warehouse, subscription: Subscription) -> int:
    """Return the number of prepared transactions of which there are files."""
    return len(lake.storage.list(lake.prepared_uri(subscription.app_id)))
