"""SET SCHEMA where a lake has its own ways: the Delta table stays in its folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from commands.both import Ours, done
from commands.test_alter_columns import insert, rows
from penstock.catalog import LakeTable, SubscriptionRelState
from penstock.commands import register_all
from penstock.commands.subscription_targets import check_targets
from penstock.errors import FeatureNotSupported
from penstock.lakehouse.storage import local_path


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Ours]:
    ours = Ours(tmp_path, "lake")
    with ours.catalog:
        done(ours, "CREATE TABLE t (a int)", "CREATE SCHEMA s")
        insert(ours, {"a": [1]})
        done(ours, "ALTER TABLE t SET SCHEMA s")
        yield ours


def tables(node: Ours) -> list[LakeTable]:
    with node.catalog.write() as t:
        register_all(t, node.scope)
        return list(t.tables.all())


def test_the_folder_stays_and_is_of_nobody_else(node: Ours) -> None:
    (table,) = tables(node)
    assert (table.qualified_name, table.folder_of) == ("s.t", ("public", "t"))
    assert rows(node) == [(1,)]
    ((_, sqlstate, message, *_),) = node.run("ALTER TABLE t ADD COLUMN b int")
    assert (sqlstate, message) == ("42P01", 'relation "t" does not exist')
    ((_, sqlstate, message, *_),) = node.run("CREATE TABLE t (b text)")
    assert (sqlstate, message) == (
        "0A000",
        'a table "t" in schema "public" is not supported as long as table "s.t" lies in its folder',
    )


def test_it_may_come_back(node: Ours) -> None:
    done(node, "ALTER TABLE s.t SET SCHEMA public", "ALTER TABLE t ADD COLUMN b int DEFAULT 2")
    (table,) = tables(node)
    assert (table.qualified_name, table.folder_of) == ("public.t", None)
    assert rows(node) == [(1, 2)]


def test_columns_change_where_it_lies_and_a_drop_empties_the_folder(node: Ours) -> None:
    done(node, "ALTER TABLE s.t ADD COLUMN b int DEFAULT 2")
    assert rows(node) == [(1, 2)]
    (table,) = tables(node)
    done(node, "DROP TABLE s.t")
    assert not Path(local_path(str(table.uri))).exists()
    done(node, "CREATE TABLE t (b text)")


def test_no_subscription_takes_its_names(node: Ours) -> None:
    for name in (("public", "t"), ("s", "t")):
        with node.catalog.read() as t, pytest.raises(FeatureNotSupported) as refused:
            check_targets(t, [name])
        assert refused.value.detail == (
            'ALTER TABLE ... SET SCHEMA has moved table "s.t" on this node.'
        )


def test_no_name_that_a_subscription_waits_for(node: Ours) -> None:
    """Its copy would lie beside the table, and nobody would see one of the two."""
    with node.catalog.write() as t:
        made = t.subscriptions.create("sub", conninfo="", publications=("p",), slot_name="sub")
        t.relations.add(made.oid, {("public", "u"): 1}, SubscriptionRelState.INIT)
    done(node, "CREATE TABLE s.u (a int)")
    ((_, sqlstate, message, *_),) = node.run("ALTER TABLE s.u SET SCHEMA public")
    assert (sqlstate, message) == (
        "55006",
        'cannot move table "u" to schema "public" because subscription "sub" maintains a table of '
        "that name there",
    )
