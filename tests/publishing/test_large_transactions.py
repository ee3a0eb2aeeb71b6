"""Commits larger than logical_decoding_work_mem: streamed where the subscriber asked for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.heavy import in_make_faults
from fix_postgres import Database
from publishing.lake_node import LakeNode
from publishing.test_subscribe import equal

pytestmark = [pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

_ROWS = 30_000


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeNode]:
    folder: Path = tmp_path_factory.mktemp("large") / "node"
    with LakeNode(folder, spark, logical_decoding_work_mem="64kB") as started:
        yield started


@pytest.mark.parametrize(
    ("version", "streaming"),
    [
        in_make_faults(14, "on"),
        in_make_faults(16, "parallel"),
        (18, "parallel"),
        in_make_faults(18, "off"),
    ],
)
def test_a_large_commit_arrives_whole(
    lake: LakeNode, subscriber: Callable[..., Database], version: int, streaming: str
) -> None:
    name = f"large_{version}_{streaming}"
    database = subscriber(version)
    for create in (lake.execute, database.execute):
        create(f"CREATE SCHEMA {name}")
        create(f"CREATE TABLE {name}.a (id integer PRIMARY KEY, v text)")
        create(f"CREATE TABLE {name}.b (id integer PRIMARY KEY)")
    lake.execute(f"CREATE PUBLICATION {name} FOR TABLE {name}.a, {name}.b")
    lake.subscribe(database, name, name, f"streaming = {streaming}")
    lake.execute(
        f"INSERT INTO {name}.b VALUES (1)",
        f"INSERT INTO {name}.a SELECT id, md5(CAST(id AS text)) "
        f"FROM generate_series(1, {_ROWS}) AS t(id)",
        f"INSERT INTO {name}.b VALUES (2)",
        f"UPDATE {name}.a SET v = upper(v)",
        f"INSERT INTO {name}.a VALUES (-1, 'small')",
        f"TRUNCATE {name}.b",
    )
    equal(lake, database, name, "a", "b")
    assert database.value(f"SELECT count(*) FROM {name}.a") == _ROWS + 1
