"""Partitioned tables of a node, followed by stock subscribers: as leaves and as their root.

The initial copy and the stream; filters and lists of the root or of the leaf, whichever counts.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fix_postgres import Database
from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_PARTITIONED = (
    "CREATE TABLE {0} (id int, region text, v int, PRIMARY KEY (id, region)) "
    "PARTITION BY LIST (region)",
    "CREATE TABLE {0}_eu PARTITION OF {0} FOR VALUES IN ('de', 'fr')",
    "CREATE TABLE {0}_us PARTITION OF {0} FOR VALUES IN ('us') PARTITION BY RANGE (id)",
    "CREATE TABLE {0}_us_1 PARTITION OF {0}_us FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE {0}_us_2 PARTITION OF {0}_us FOR VALUES FROM (100) TO (200)",
)
_PLAIN = ("CREATE TABLE {0} (id int, region text, v int, PRIMARY KEY (id, region))",)
_ROWS = "INSERT INTO {0} VALUES (1, 'de', 1), (2, 'fr', 20), (3, 'us', 3), (150, 'us', 40)"
_CHANGES = (
    "INSERT INTO {0} VALUES (5, 'de', 50), (6, 'de', 6), (7, 'us', 70), (107, 'us', 7)",
    "UPDATE {0} SET v = v + 5 WHERE region = 'us'",
    "UPDATE {0}_eu SET id = id + 10 WHERE region = 'fr'",
    "DELETE FROM {0} WHERE id IN (1, 3)",
)


def create(lake: LakeNode, name: str) -> None:
    lake.execute(*(text.format(name) for text in _PARTITIONED), _ROWS.format(name))


def change(lake: LakeNode, name: str) -> None:
    lake.execute(*(text.format(name) for text in _CHANGES))
    lake.caught_up(name)


def rows(database: Database, table: str, condition: str = "true") -> list[tuple[int, str, int]]:
    return sorted(database.rows(f"SELECT id, region, v FROM {table} WHERE {condition}"))


def lake_rows(lake: LakeNode, table: str, condition: str = "true") -> list[tuple[int, str, int]]:
    return sorted(lake.rows(f"SELECT id, region, v FROM {table} WHERE {condition}"))


def test_as_leaves(lake: LakeNode, subscriber: Callable[..., Database]) -> None:
    """Each partition to the partition of its name, a filter and a list for one of them."""
    name, target = "leaves", subscriber(18)
    create(lake, name)
    for text in _PARTITIONED:
        target.execute(text.format(name))
    lake.execute(
        f"CREATE PUBLICATION {name} FOR TABLE {name}, {name}_us_2 WHERE (id > 105)",
    )
    lake.subscribe(target, name, name)
    shown = "region <> 'us' OR id < 100 OR id > 105"
    assert rows(target, name) == lake_rows(lake, name, shown)
    change(lake, name)
    assert rows(target, name) == lake_rows(lake, name, shown)
    assert rows(target, f"{name}_us_1") == lake_rows(lake, f"{name}_us_1")


def test_as_the_root(lake: LakeNode, subscriber: Callable[..., Database]) -> None:
    """All of it to one plain table; the root's filter and list hold, not the leaf's."""
    name, target = "root", subscriber(15)
    create(lake, name)
    target.execute(_PLAIN[0].format(name))
    lake.execute(
        f"CREATE PUBLICATION {name} FOR TABLE {name} (id, region, v) WHERE (id <> 2), "
        f"{name}_eu WHERE (id > 1000) WITH (publish_via_partition_root = true)",
    )
    lake.subscribe(target, name, name)
    assert rows(target, name) == lake_rows(lake, name, "id <> 2")
    change(lake, name)
    assert rows(target, name) == lake_rows(lake, name, "id <> 2")
    assert (12, "fr", 20) in rows(target, name)  # its key was 2 when it was not published


def test_a_part_of_the_tree_as_its_root(
    lake: LakeNode, subscriber: Callable[..., Database]
) -> None:
    name, target = "middle", subscriber(18)
    create(lake, name)
    target.execute(_PLAIN[0].format(f"{name}_us"))
    lake.execute(
        f"CREATE PUBLICATION {name} FOR TABLE {name}_us WITH (publish_via_partition_root = true)"
    )
    lake.subscribe(target, name, name)
    assert rows(target, f"{name}_us") == lake_rows(lake, f"{name}_us")
    change(lake, name)
    assert rows(target, f"{name}_us") == lake_rows(lake, f"{name}_us")
