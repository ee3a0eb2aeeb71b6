"""``init --recover`` on warehouses made by hand: what comes back, and what is told."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.catalog import Catalog, Subscription
from penstock.cli.main import app
from penstock.errors import ConfigurationError, DuplicateObject
from penstock.lakehouse import log_store
from penstock.lakehouse.cuts import CutOwner, CutTable
from penstock.lakehouse.storage import Storage, local_path
from penstock.lakehouse.warehouse import Warehouse
from penstock.lsn import Lsn
from penstock.node import Node, recovery
from penstock.node.recovery import recover
from penstock.subscription.record import Records

_TABLES = {("public", "t"): CutTable("file:///t", 1, "an id", 1)}


@pytest.fixture
def lake(tmp_path: Path) -> Warehouse:
    lake = Warehouse(str(tmp_path / "warehouse"), fsync=False)
    lake.claim("the lost node")
    return lake


@pytest.fixture
def subscription(tmp_path: Path) -> Subscription:
    with (
        Catalog.create(f"sqlite:///{tmp_path / 'state.db'}") as catalog,
        catalog.write() as t,
    ):
        return t.subscriptions.create(
            "s", conninfo="host=none password=secret", publications=("p",), slot_name="s"
        )


def of(subscription: Subscription, number: int, name: str = "s") -> Subscription:
    app_id = f"{subscription.app_id[:-2]}{number:02}"
    return replace(subscription, oid=number, app_id=app_id, name=name, slot_name=f"s{number}")


def slots(folder: Path) -> dict[str, str | None]:
    with Catalog.open(f"sqlite:///{folder / 'state.db'}") as catalog:
        return {one.name: one.slot_name for one in catalog.subscriptions()}


def test_the_names_are_those_of_the_cuts(
    lake: Warehouse, subscription: Subscription, tmp_path: Path
) -> None:
    """A renaming on a node that did not run is in the cuts, not in the record."""
    renamed, second = of(subscription, 1), of(subscription, 2)
    Records(lake).keep([second, renamed])
    lake.cuts.append(CutOwner("s", second.app_id), Lsn(1), None, {})
    lake.cuts.append(CutOwner("s_old", renamed.app_id), Lsn(1), None, _TABLES)
    found = recover(tmp_path / "node", lake.uri, None)
    assert {(m.subscription.name, m.tables) for m in found.subscriptions} == {
        ("s", 0),
        ("s_old", 1),
    }
    assert slots(tmp_path / "node") == {"s": "s2", "s_old": "s1"}


def test_one_record_of_a_name_without_cuts(
    lake: Warehouse, subscription: Subscription, tmp_path: Path
) -> None:
    """The one that has cuts is made again."""
    one, two = of(subscription, 1), of(subscription, 2)
    Records(lake).keep([one, two])
    lake.cuts.append(CutOwner("s", two.app_id), Lsn(1), None, {})
    assert recover(tmp_path / "node", lake.uri, None).others == ["s"]
    assert slots(tmp_path / "node") == {"s": "s2"}


def test_records_follow_the_subscriptions(lake: Warehouse, subscription: Subscription) -> None:
    records, first = Records(lake), of(subscription, 1)
    records.keep([first])
    records.keep([replace(first, name="other"), of(subscription, 2)])
    contents = [lake.storage.read(uri) for uri in lake.subscription_records()]
    assert [b'"other"' in content for content in contents] == [True, False]
    assert not any(b"secret" in content for content in contents)
    records.keep([replace(first, dropping=True)])
    assert lake.subscription_records() == []


def test_no_damaged_record_is_taken_for_another_one(
    lake: Warehouse, subscription: Subscription, tmp_path: Path
) -> None:
    Records(lake).keep([replace(subscription, publications=("p", "q"))])
    (uri,) = lake.subscription_records()
    content = lake.storage.read(uri)
    for place, byte in enumerate(content):
        if content[place : place + 1].isspace():
            continue  # between the values it means nothing
        lake.storage.write(uri, content[:place] + bytes([byte ^ 1]) + content[place + 1 :])
        with pytest.raises(ConfigurationError, match=re.escape(f'"{uri}" cannot be read')):
            recover(tmp_path / f"node{place}", lake.uri, None)
    lake.storage.write(uri, b"null")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        recover(tmp_path / "node", lake.uri, None)


def test_prepared_transactions_are_told_of(
    lake: Warehouse, subscription: Subscription, tmp_path: Path
) -> None:
    Records(lake).keep([subscription])
    kept = Path(local_path(lake.prepared_uri(subscription.app_id)))
    (kept / "750-1000-x").mkdir(parents=True)
    command = ["init", "--recover", "--warehouse", lake.uri, str(tmp_path / "node")]
    told = CliRunner().invoke(app, command, catch_exceptions=False).output
    assert "Not made again: prepared transactions of subscription s: 1." in told
    assert (kept / "750-1000-x").exists()


@pytest.mark.parametrize("option", ["warehouse", "state"])
def test_options_beside_a_parameter_file(tmp_path: Path, option: str) -> None:
    """They would not be followed."""
    Node.init(tmp_path / "node").close()
    (tmp_path / "node/state.db").unlink()
    options = {"warehouse": None, "state": None, option: f"sqlite:///{tmp_path}/other"}
    with pytest.raises(ConfigurationError, match=r"penstock\.toml"):
        recover(tmp_path / "node", **options)


def test_a_store_without_conditional_puts_is_refused(
    lake: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes would take it over at once."""

    def refuse(storage: Storage) -> None:
        raise ConfigurationError("no conditional writes")

    monkeypatch.setattr(recovery, "check_conditional_puts", refuse)
    with pytest.raises(ConfigurationError, match="no conditional writes"):
        recover(tmp_path / "node", lake.uri, None)
    assert lake.owner() == "the lost node"
    assert not (tmp_path / "node/penstock.toml").exists()
    monkeypatch.setattr(recovery, "check_conditional_puts", log_store.check_conditional_puts)
    recover(tmp_path / "node", lake.uri, None)
    with pytest.raises(DuplicateObject, match="nothing is lost"):
        recover(tmp_path / "node", None, None)


def test_a_node_that_has_never_run_has_lost_nothing(tmp_path: Path) -> None:
    """Each hint is followed."""
    folder = tmp_path / "node"
    Node.init(folder).close()
    with pytest.raises(ConfigurationError, match="is no node's") as caught:
        recover(folder, None, None)
    assert f"nothing is lost: start it: penstock start -D {folder}" in str(caught.value.hint)
    (folder / "state.db").unlink()
    with pytest.raises(ConfigurationError, match="holds no node") as unstarted:
        Node(folder)
    assert "init --recover" in str(unstarted.value.hint)
    with pytest.raises(ConfigurationError, match="is no node's") as caught:
        recover(folder, None, None)
    file = folder / "penstock.toml"
    anew = f'remove "{file}" and make it anew: penstock init {folder}'
    assert anew in str(caught.value.hint)
    file.unlink()
    Node.init(folder).close()
