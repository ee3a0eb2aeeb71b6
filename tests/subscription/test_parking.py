"""What a stopped subscription is told: statements that lead on, and what they do."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.catalog import Catalog, SubscriptionRelState
from penstock.errors import AnotherTable, PenstockError, RelationChanged
from penstock.lakehouse.warehouse import Warehouse
from penstock.subscription.parking import Parking
from penstock.walreceiver.table_info import not_found


def refused(folder: Path, catalog: Catalog, error: PenstockError) -> str:
    with catalog.write() as t:
        subscription = t.subscriptions.create(
            "s", conninfo="host=h", publications=["p"], slot_name="s"
        )
        names = [("public", "t")]
        (rel,) = t.relations.add(subscription.oid, names, SubscriptionRelState.READY)
    warehouse = Warehouse(str(folder / "warehouse"), False)
    parking = Parking(subscription, warehouse, catalog.park, lambda rel: None)
    with pytest.raises(type(error)) as raised:
        parking.refuse(rel, error)
    return str(raised.value.hint)


def test_a_copy_takes_the_place_of_all_rows(tmp_path: Path, catalog: Catalog) -> None:
    hint = refused(tmp_path, catalog, RelationChanged("it has changed"))
    assert hint.startswith("Run ALTER SUBSCRIPTION s REFRESH PUBLICATION, and then ")
    assert "in place of all its rows" in hint


def test_a_table_that_the_publisher_does_not_have_is_not_copied(
    tmp_path: Path, catalog: Catalog
) -> None:
    hint = refused(tmp_path, catalog, not_found("public", "t"))
    assert hint == (
        "It was dropped or renamed. Run ALTER SUBSCRIPTION s REFRESH PUBLICATION, and then ALTER "
        "SUBSCRIPTION s ENABLE. To let the other tables go on without this one: ALTER SUBSCRIPTION "
        "s SET (on_table_error = park)."
    )


def test_another_table_is_moved_away_before_a_copy(tmp_path: Path, catalog: Catalog) -> None:
    hint = refused(tmp_path, catalog, AnotherTable("another", hint="Put the table back."))
    assert hint == (
        "Put the table back. Then run ALTER SUBSCRIPTION s ENABLE. Or move away what lies there, "
        "and run ALTER SUBSCRIPTION s REFRESH PUBLICATION, and then ALTER SUBSCRIPTION s ENABLE. "
        "It copies the table again, into a new one. To let the other tables go on without this "
        "one: ALTER SUBSCRIPTION s SET (on_table_error = park)."
    )
