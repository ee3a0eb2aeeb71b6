"""ALTER SUBSCRIPTION ... SET, ADD and DROP PUBLICATION beside a stock server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from fix_postgres import Database
from penstock.catalog import Catalog
from penstock.commands import execute
from penstock.errors import PenstockError
from penstock.sql import parse
from penstock.walreceiver.publisher import Publisher

pytestmark = pytest.mark.postgres


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with Catalog.create(f"sqlite:///{tmp_path / 'state.db'}") as opened:
        yield opened


def _shop(database: Database) -> None:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY);"
        "CREATE TABLE c (id int PRIMARY KEY);"
        "CREATE PUBLICATION pa FOR TABLE a; CREATE PUBLICATION pb FOR TABLE b, a;"
        "CREATE PUBLICATION pc FOR TABLE c"
    )


def _run(catalog: Catalog, text: str) -> list[str]:
    return [n.message for n in execute(parse(text), catalog, Publisher.connect).notices]


def _state(catalog: Catalog) -> tuple[tuple[str, ...], set[str]]:
    (subscription,) = catalog.subscriptions()
    with catalog.read() as transaction:
        rels = transaction.relations.all(subscription.oid)
    return subscription.publications, {rel.table for rel in rels}


def test_tables_follow_the_list(catalog: Catalog, database: Database) -> None:
    _shop(database)
    _run(catalog, f"CREATE SUBSCRIPTION listed CONNECTION '{database.conninfo}' PUBLICATION pa")
    assert _state(catalog) == (("pa",), {"a"})
    _run(catalog, "ALTER SUBSCRIPTION listed ADD PUBLICATION pb, pc")
    assert _state(catalog) == (("pa", "pb", "pc"), {"a", "b", "c"})
    _run(catalog, "ALTER SUBSCRIPTION listed DROP PUBLICATION pa")
    assert _state(catalog) == (("pb", "pc"), {"a", "b", "c"})
    told = _run(catalog, "ALTER SUBSCRIPTION listed SET PUBLICATION pc, gone")
    assert told == ['publication "gone" does not exist on the publisher']
    assert _state(catalog) == (("pc", "gone"), {"c"})
    _run(catalog, "ALTER SUBSCRIPTION listed SET PUBLICATION pa WITH (refresh = false)")
    assert _state(catalog) == (("pa",), {"c"})
    _run(catalog, "ALTER SUBSCRIPTION listed REFRESH PUBLICATION")
    assert _state(catalog) == (("pa",), {"a"})
    _run(catalog, "DROP SUBSCRIPTION listed")


def test_whom_it_follows_is_kept_when_a_worker_records_it_meanwhile(
    catalog: Catalog, database: Database
) -> None:
    _shop(database)
    _run(catalog, f"CREATE SUBSCRIPTION first CONNECTION '{database.conninfo}' PUBLICATION pa")
    (subscription,) = catalog.subscriptions()
    identity = subscription.publisher
    assert identity is not None
    with catalog.write() as transaction:
        transaction.subscriptions.save(replace(subscription, publisher=None))

    def connect(conninfo: str, application_name: str) -> Publisher:
        catalog.record_publisher(subscription.oid, identity)
        return Publisher.connect(conninfo, application_name)

    execute(parse("ALTER SUBSCRIPTION first ADD PUBLICATION pc"), catalog, connect)
    (altered,) = catalog.subscriptions()
    assert (altered.publications, altered.publisher) == (("pa", "pc"), identity)
    _run(catalog, "DROP SUBSCRIPTION first")


_REFUSED = (
    "ADD PUBLICATION pa",
    "ADD PUBLICATION pb, pb",
    "ADD PUBLICATION pb",
    "ADD PUBLICATION pb WITH (refresh = false, foo = 1)",
    "DROP PUBLICATION pb",
    "DROP PUBLICATION pa",
    "DROP PUBLICATION pc",
    "DROP PUBLICATION pc WITH (copy_data = false)",
    "SET PUBLICATION pa, pa",
    "SET PUBLICATION pb",
    "SET PUBLICATION pb WITH (copy_data = 3)",
    "SET PUBLICATION pb WITH (slot_name = none)",
)


def test_errors_are_those_of_a_server(catalog: Catalog, database: Database) -> None:
    make = "CREATE SUBSCRIPTION beside CONNECTION '' PUBLICATION pa, pc WITH (connect = false)"
    _run(catalog, make)
    database.execute(make)
    try:
        for form in _REFUSED:
            statement = f"ALTER SUBSCRIPTION beside {form}"
            with pytest.raises(psycopg.Error) as theirs:
                database.execute(statement)
            with pytest.raises(PenstockError) as ours:
                _run(catalog, statement)
            found = (ours.value.sqlstate, ours.value.message, ours.value.hint)
            diagnostics = theirs.value.diag
            wanted = (diagnostics.sqlstate, diagnostics.message_primary, diagnostics.message_hint)
            assert found == wanted, form
    finally:
        database.execute("ALTER SUBSCRIPTION beside SET (slot_name = NONE)")
        database.execute("DROP SUBSCRIPTION beside")
