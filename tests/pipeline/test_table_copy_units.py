from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from penstock.attribute import Attribute
from penstock.pipeline.table_copy import Unit, unit_bytes, units_of
from penstock.relation import Relation, ReplicaIdentity
from penstock.walreceiver.table_info import LeafTable, RemoteTable

BLOCK = 8192
ID = Attribute("id", 23, key=True)
MAC = Attribute('m"ac', 829, -1)


def published(leaves: Sequence[LeafTable], row_filter: str | None = None) -> RemoteTable:
    relation = Relation(1, "public", "t", ReplicaIdentity.DEFAULT, (ID, MAC))
    return RemoteTable(relation, "r", ("id",), row_filter, tuple(leaves), BLOCK)


def leaf(blocks: int, name: str = "t", toast: int = 0) -> LeafTable:
    return LeafTable(1, "public", name, blocks, blocks * BLOCK + toast)


def ranges(units: Sequence[Unit], name: str) -> list[tuple[int, int | None]]:
    found = []
    for query in (q for unit in units for q in unit.queries if f'"{name}"' in q):
        low = re.search(r">= '\((\d+),0\)'", query)
        high = re.search(r"< '\((\d+),0\)'", query)
        found.append((int(low[1]) if low else 0, int(high[1]) if high else None))
    return found


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1 << 24)), min_size=1, max_size=5),
    st.integers(BLOCK, 100 * BLOCK),
)
def test_every_block_is_read_once_and_the_last_range_is_open(
    sizes: list[tuple[int, int]], unit_bytes: int
) -> None:
    leaves = [leaf(blocks, f"l{n}", toast) for n, (blocks, toast) in enumerate(sizes)]
    units = units_of(published(leaves), (ID,), unit_bytes)
    for piece in leaves:
        found = ranges(units, piece.name)
        assert found[0][0] == 0
        assert found[-1][1] is None
        for (_, high), (low, _) in itertools.pairwise(found):
            assert high == low
            assert low > 0


@given(st.integers(10_000, 1 << 24), st.integers(1, 64), st.integers(100 * BLOCK, 1 << 28))
def test_cores_get_the_same_number_of_units(blocks: int, cores: int, least: int) -> None:
    size = blocks * BLOCK
    largest = max(least, min(size // (cores * 8), 512 << 20))
    found = unit_bytes(size, cores, least)
    assert min(size, largest) // 2 <= found <= 2 * largest
    count = len(units_of(published([leaf(blocks)]), (ID,), found))
    assert count <= cores or count % cores == 0


def test_units_of_two_cores() -> None:
    count = -(-(666 << 20) // unit_bytes(666 << 20, 2, 64 << 20))
    assert count == 10


def test_many_small_partitions_share_a_unit() -> None:
    units = units_of(published([leaf(10, f"p{n}") for n in range(100)]), (ID,), 500 * BLOCK)
    assert [len(unit.queries) for unit in units] == [50, 50]


def test_toast_counts() -> None:
    assert len(units_of(published([leaf(100, toast=0)]), (ID,), 64 << 20)) == 1
    assert len(units_of(published([leaf(100, toast=1 << 30)]), (ID,), 64 << 20)) == 17


def test_query_text() -> None:
    (unit,) = units_of(published([leaf(1)], "((id > 1)) OR ((id < 0))"), (ID, MAC), 1 << 20)
    assert unit.queries == (
        """SELECT "id", CASE WHEN pg_catalog.num_nulls("m""ac") = 0 THEN"""
        """ pg_catalog.format('%s', "m""ac") END FROM ONLY "public"."t\""""
        """ WHERE (((id > 1)) OR ((id < 0)))""",
    )


def test_whole_root_and_no_columns() -> None:
    whole = LeafTable(1, "public", "t", 0, 0, by_ctid=False, only=False)
    (unit,) = units_of(published([whole]), (ID,), 1 << 20)
    assert unit.queries == ('SELECT "id" FROM "public"."t"',)
    (counted,) = units_of(published([leaf(1)]), (), 1 << 20)
    assert counted.queries == ('SELECT true FROM ONLY "public"."t"',)
