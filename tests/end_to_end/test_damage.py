"""One bit of one file of the node is flipped: healed, or an error that names the file.

Never other rows: what follows is what the publisher has, once the file is as it was. Spools, key
indexes and staged rows have tests beside those of their code.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from end_to_end.compare import difference, publisher_rows
from end_to_end.local_node import LocalNode
from faults.heavy import in_make_faults
from fix_postgres import Database
from penstock import Node
from penstock.embedded import wait_until
from penstock.errors import PenstockError

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_SETUP = (
    "CREATE TABLE t (id integer PRIMARY KEY, v text);"
    "INSERT INTO t SELECT i, md5(i::text) FROM generate_series(1, 20000) i;"
    "CREATE PUBLICATION p FOR TABLE t"
)
_CHANGES = (
    "UPDATE t SET v = v || 'x' WHERE id % 100 = 1; DELETE FROM t WHERE id % 100 = 2;"
    "INSERT INTO t SELECT max(id) + 1, 'new' FROM t"
)
_FILES = {
    "data": "warehouse/public/t/part-*.parquet",
    "vector": "warehouse/public/t/deletion_vector_*.bin",
    "cuts": "warehouse/_penstock/cuts/part-*.parquet",
}


@pytest.fixture
def node(local_node: Callable[..., LocalNode], database: Database) -> LocalNode:
    """A node whose table has data files and deletion vectors."""
    database.execute(_SETUP)
    node = local_node()
    node.subscribe("s", database, "p")
    node.caught_up("s", database)
    for _ in range(3):
        database.execute("UPDATE t SET v = v || 'y' WHERE id % 1000 = 0")
        node.caught_up("s", database)
    return node


def largest(node: LocalNode, kind: str) -> Path:
    found = [path for path in node.folder.glob(_FILES[kind]) if path.is_file()]
    assert found, f"no file of kind {kind}"
    if kind == "cuts":
        return max(found, key=lambda path: path.stat().st_mtime)
    return max(found, key=lambda path: path.stat().st_size)


def flip(path: Path, share: float) -> None:
    content = bytearray(path.read_bytes())
    content[int(len(content) * share)] ^= 1
    path.write_bytes(content)  # in place, as a disk would do it


def is_equal(node: LocalNode, database: Database) -> None:
    node.caught_up("s", database)
    with database.connect() as connection:
        wanted = publisher_rows(connection, "public.t")
    assert not (lack := difference("t", wanted, node.rows("t"))), str(lack)


@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("share", [0.3, in_make_faults(0.1), in_make_faults(0.6)])
@pytest.mark.parametrize("kind", _FILES)
def test_a_bit_of_a_file(
    node: LocalNode, database: Database, spark: Any, kind: str, share: float, runs: bool
) -> None:
    if not runs:
        node.node.stop()
    path = largest(node, kind)
    sound = path.read_bytes()
    flip(path, share)
    database.execute(_CHANGES)
    if not runs:
        node.node.start()

    def settled() -> bool:
        status = node.status("s")
        return status.stopped or path.name in str(status) or passed()

    target = int(database.value("SELECT pg_current_wal_flush_lsn() - '0/0'"))

    def passed() -> bool:
        status = node.status("s")
        return status.state == "streaming" and (status.cut_lsn or 0) >= target

    wait_until(settled, "an error or the changes", 60, state=lambda: node.status("s"))
    if passed():
        if path.exists():  # others read it, too
            path.write_bytes(sound)
    else:
        assert path.name in str(node.status("s")), node.status("s")
        path.write_bytes(sound)
        if node.status("s").stopped:
            node.node.sql("ALTER SUBSCRIPTION s ENABLE")
    is_equal(node, database)


def test_the_state_store(node: LocalNode, spark: Any) -> None:
    """Its structure is checked by a start; the file is named, and the way on."""
    node.node.close()
    with Node(node.folder, spark=spark):  # the write-ahead log goes into the file
        pass
    path = node.folder / "state.db"
    content = bytearray(path.read_bytes())
    for page in range(1, len(content) // 4096):
        content[page * 4096] ^= 1  # the kind of each page of a tree
    path.write_bytes(content)
    with pytest.raises(PenstockError) as found, Node(node.folder, spark=spark) as damaged:
        damaged.start()
    assert found.value.sqlstate == "XX001"
    assert "--recover" in str(found.value.hint)
