"""Random SELECTs, UPDATEs and DELETEs on tables of the lake beside a server: same rows in the same
order, or refused; the same whether files are skipped or not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random

import pytest

from executor.lake_oracle import LakeOracle
from executor.queries import STRINGS, TABLES, Queries, rows
from fix_postgres import Database

pytestmark = pytest.mark.postgres

QUERIES = int(os.environ.get("PENSTOCK_ORACLE_QUERIES", "300"))
SEED = int(os.environ.get("PENSTOCK_ORACLE_SEED", "1"))
_ROWS = 30


@pytest.fixture
def oracle(database: Database) -> Iterator[LakeOracle]:
    found = LakeOracle(database.connect())
    random = Random(SEED)
    for name, columns in TABLES.items():
        columns = {
            name_: f'{type_} COLLATE "C"' if type_ in STRINGS else type_
            for name_, type_ in columns.items()
        }
        found.create(name, columns, rows(random, name, _ROWS))
    yield found


def test_queries_give_what_a_server_gives(
    oracle: LakeOracle, capsys: pytest.CaptureFixture[str]
) -> None:
    queries = Queries(Random(SEED))
    for _ in range(QUERIES):
        oracle.compare(queries.draw())
    _told(oracle, capsys)


def test_changes_leave_what_a_server_leaves(
    oracle: LakeOracle, capsys: pytest.CaptureFixture[str]
) -> None:
    queries = Queries(Random(SEED))
    for _ in range(QUERIES):
        oracle.compare_change(queries.draw_change())
    _told(oracle, capsys)


def _told(oracle: LakeOracle, capsys: pytest.CaptureFixture[str]) -> None:
    tally = oracle.tally
    with capsys.disabled():
        print(f"\n{dict(tally.counts)}, refused: {tally.refused.most_common(5)}")
    assert not tally.differences, "\n".join(tally.differences[:20])
    assert tally.counts["refused"] <= QUERIES * 0.02
    assert tally.counts["equal"] > QUERIES * 0.9
