"""A node whose state or parameters are lost: the ways back of docs/operations.md, to the letter."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from docs.blocks import blocks
from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from end_to_end.test_older_state import copies
from end_to_end.test_state_store import state_url
from fix_postgres import Database
from penstock import Node
from penstock.cli.main import app
from penstock.embedded import EmbeddedPostgres
from penstock.errors import ConfigurationError, DuplicateObject, ObjectInUse, PenstockError
from penstock.lakehouse.history_table import history_of
from penstock.lakehouse.warehouse import Warehouse
from penstock.node.recovery import recover

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_SETUP = (
    "CREATE TABLE t (id integer PRIMARY KEY, v text); CREATE TABLE u (id integer PRIMARY KEY);"
    "INSERT INTO t SELECT i, 'copied' FROM generate_series(1, 1000) i;"
    "CREATE PUBLICATION p FOR TABLE t, u"
)
_OPTIONS = "soft_delete = true, history = 'u', on_table_error = park, binary = true"


def documented(heading: str) -> list[str]:
    """The commands of a section of docs/operations.md."""
    found = [b.text for b in blocks("docs/operations.md") if b.heading == heading]
    return [line for text in found for line in text.splitlines() if line.startswith("penstock ")]


def run(command: str, folder: Path) -> str:
    """Run a documented command, of which the folder is ``node``."""
    words = [re.sub(r"^node(?=/|$)", str(folder), word) for word in command.split()[1:]]
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def follows(node: LocalNode, database: Database, spark: Any) -> None:
    """The node is opened and started, and its tables are the publisher's, copied once."""
    node.node = Node(node.folder, spark=spark)
    node.node.start()
    database.execute(
        "INSERT INTO t VALUES (2001, 'after'); UPDATE t SET v = 'after' WHERE id = 1;"
        "INSERT INTO u VALUES (2001)"
    )
    node.caught_up("s", database)
    with database.connect() as connection:
        for table in ("t", "u"):
            wanted = publisher_rows(connection, f"public.{table}")
            found = [row[: len(wanted[0])] for row in node.rows(table)]
            assert not (lack := difference(table, wanted, found)), str(lack)
    assert copies(node) == 1


def enables(output: str, node: LocalNode, spark: Any) -> None:
    """Run the statements that ``init --recover`` has printed."""
    with Node(node.folder, spark=spark) as closed:
        closed.sql("\n".join(line for line in output.splitlines() if line.startswith("  ALTER")))


def changes(node: LocalNode, database: Database) -> None:
    database.execute("INSERT INTO u VALUES (1); UPDATE t SET v = 'streamed' WHERE id > 990")
    node.caught_up("s", database)
    node.node.close()
    database.execute("DELETE FROM u WHERE id = 1; INSERT INTO u VALUES (2)")


@pytest.fixture
def node(local_node: Callable[..., LocalNode], database: Database) -> LocalNode:
    """A node with a subscription that has its tables."""
    database.execute(_SETUP)
    node = local_node()
    node.subscribe("s", database, "p", "binary = true, disable_on_error = true")
    node.caught_up("s", database)
    return node


def loses_state(node: LocalNode) -> None:
    for file in node.folder.glob("state.db*"):
        file.unlink()


def test_a_lost_state_store(node: LocalNode, database: Database, spark: Any) -> None:
    before = node.node.sql("SELECT subname, subslotname, subpublications FROM pg_subscription")
    changes(node, database)
    loses_state(node)
    command, *_ = documented("A lost state store")
    enables(run(command, node.folder), node, spark)
    follows(node, database, spark)
    after = node.node.sql("SELECT subname, subslotname, subpublications FROM pg_subscription")
    assert after.rows == before.rows
    options = node.node.sql("SELECT subbinary, subdisableonerr FROM pg_subscription").rows
    assert options == ((True, True),)


def test_a_lost_database(
    local_node: Callable[..., LocalNode],
    database: Database,
    postgres: EmbeddedPostgres,
    spark: Any,
) -> None:
    """The state store is in a PostgreSQL."""
    database.execute(_SETUP)
    database.execute("CREATE DATABASE lost_state")
    try:
        node = local_node(state=state_url(postgres, "lost_state"))
        node.subscribe("s", database, "p")
        node.caught_up("s", database)
        changes(node, database)
        database.execute("DROP DATABASE lost_state WITH (FORCE)")
        database.execute("CREATE DATABASE lost_state")
        command, *_ = documented("A lost state store")
        enables(run(command, node.folder), node, spark)
        follows(node, database, spark)
        node.node.close()
    finally:
        database.execute("DROP DATABASE lost_state WITH (FORCE)")


def test_a_lost_folder(node: LocalNode, database: Database, spark: Any, tmp_path: Path) -> None:
    changes(node, database)
    text = (node.folder / "penstock.toml").read_text("utf-8")
    _, command = documented("A lost state store")
    shutil.move(node.warehouse, tmp_path / "lake")
    shutil.rmtree(node.folder)
    shutil.copytree(tmp_path / "lake", node.warehouse)
    command = command.replace("/srv/warehouse", str(node.warehouse))
    output = run(command, node.folder)
    (node.folder / "penstock.toml").write_text(text, encoding="utf-8")
    enables(output, node, spark)
    follows(node, database, spark)


def test_a_lost_parameter_file(node: LocalNode, database: Database, spark: Any) -> None:
    changes(node, database)
    (node.folder / "penstock.toml").unlink()
    with pytest.raises(ConfigurationError) as refused:
        Node(node.folder)
    assert "penstock init --recover" in str(refused.value.hint)
    (command,) = documented("A lost parameter file")
    run(command, node.folder)
    follows(node, database, spark)


def test_options_come_back(
    local_node: Callable[..., LocalNode], database: Database, spark: Any
) -> None:
    """Deleted rows stay, and the history goes on: other options would change the rows."""
    database.execute(_SETUP)
    node = local_node()
    node.subscribe("s", database, "p", _OPTIONS)
    changes(node, database)
    loses_state(node)
    enables(run(f"penstock init --recover {node.folder}", node.folder), node, spark)
    node.node = Node(node.folder, spark=spark)
    node.node.start()
    node.caught_up("s", database)
    database.execute("DELETE FROM u WHERE id = 2")
    node.caught_up("s", database)
    assert sorted(row[0] for row in node.rows("u")) == [1, 2]
    operations = [row[0] for row in node.rows(history_of(("public", "u"))[1])]
    assert operations.count("delete") == 2


def test_a_table_with_partitions_of_the_node(
    local_node: Callable[..., LocalNode], database: Database, spark: Any
) -> None:
    """The new state lacks them: the table is no plain one, until it is copied again."""
    database.execute(_SETUP)
    node = local_node()
    node.node.sql(
        "CREATE TABLE t (id integer PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE t_0 PARTITION OF t FOR VALUES FROM (0) TO (500);"
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (500) TO (MAXVALUE)"
    )
    node.subscribe("s", database, "p")
    changes(node, database)
    loses_state(node)
    enables(run(f"penstock init --recover {node.folder}", node.folder), node, spark)
    node.node = Node(node.folder, spark=spark)
    node.node.start()
    told = str(node.stopped("s"))
    assert 'table "public.t" must be copied again' in told and '"public.t_1"' in told
    node.node.sql("ALTER SUBSCRIPTION s REFRESH PUBLICATION; ALTER SUBSCRIPTION s ENABLE")
    node.caught_up("s", database)
    database.execute("UPDATE t SET v = 'after' WHERE id = 1")
    node.caught_up("s", database)
    with database.connect() as connection:
        wanted = publisher_rows(connection, "public.t")
    assert not (lack := difference("t", wanted, node.rows("t"))), str(lack)


def test_what_is_refused(node: LocalNode, database: Database, spark: Any, tmp_path: Path) -> None:
    with pytest.raises(ObjectInUse):  # the node runs
        recover(node.folder, None, None)
    with pytest.raises(ObjectInUse, match="is in use by another node"):
        recover(tmp_path / "other", str(node.warehouse), None)
    assert not (tmp_path / "other" / "penstock.toml").exists()
    changes(node, database)
    with pytest.raises(DuplicateObject, match="nothing is lost"):
        recover(node.folder, None, None)
    with pytest.raises(ConfigurationError, match="no node's"):
        recover(tmp_path / "other", str(tmp_path / "empty"), None)
    with pytest.raises(ConfigurationError, match="neither"):
        recover(tmp_path / "other", None, None)
    assert "secret" not in next((node.warehouse / "_penstock/subscriptions").iterdir()).read_text()
    node.node = Node(node.folder, spark=spark)


@pytest.mark.parametrize("fails", ["claim", "subscription_records"])
def test_a_crash_in_between(
    node: LocalNode,
    database: Database,
    spark: Any,
    monkeypatch: pytest.MonkeyPatch,
    fails: str,
) -> None:
    """It is repeated: the warehouse is taken over last."""
    changes(node, database)
    loses_state(node)

    def crash(*_: object) -> None:
        raise PenstockError("a crash")

    with monkeypatch.context() as patched:
        patched.setattr(Warehouse, fails, crash)
        with pytest.raises(PenstockError, match="a crash"):
            recover(node.folder, None, None)
    enables(run(f"penstock init --recover {node.folder}", node.folder), node, spark)
    follows(node, database, spark)


def test_a_slot_that_is_lost_too(node: LocalNode, database: Database, spark: Any) -> None:
    """It says what to do."""
    changes(node, database)
    loses_state(node)
    database.execute("SELECT pg_drop_replication_slot('s')")
    enables(run(f"penstock init --recover {node.folder}", node.folder), node, spark)
    node.node = Node(node.folder, spark=spark)
    node.node.start()
    told = str(node.stopped("s"))
    assert 'replication slot "s" does not exist' in told.replace("\\", "")
    assert "To copy its tables again" in told


def test_a_state_that_is_found_again(
    node: LocalNode, database: Database, spark: Any, tmp_path: Path
) -> None:
    """Two states never follow at once."""
    changes(node, database)
    shutil.copytree(node.folder, tmp_path / "old", ignore=shutil.ignore_patterns("warehouse"))
    loses_state(node)
    enables(run(f"penstock init --recover {node.folder}", node.folder), node, spark)
    follows(node, database, spark)
    node.node.stop()
    with Node(tmp_path / "old", spark=spark) as old, pytest.raises(ConfigurationError) as refused:
        old.start()
    assert "belongs to another node" in refused.value.message
    assert node.warehouse.exists()
