"""Functions, operators and casts on tables of the lake beside a server: zero differences.

Each call that is not refused is compared over all edges of its argument types, values, errors and
types of the result. ``make oracle`` compares all of them, ``make test`` a part that the seed draws.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random

import pytest

from executor.calls import call_forms, compare, create
from executor.lake_oracle import LakeOracle
from fix_postgres import Database

pytestmark = pytest.mark.postgres

SHARE = float(os.environ.get("PENSTOCK_ORACLE_SHARE", "0.2"))
SEED = int(os.environ.get("PENSTOCK_ORACLE_SEED", "1"))
_LEAST = 20_000


@pytest.fixture
def oracle(database: Database) -> Iterator[LakeOracle]:
    yield LakeOracle(database.connect())


def test_every_call_gives_what_a_server_gives(
    oracle: LakeOracle, capsys: pytest.CaptureFixture[str]
) -> None:
    random = Random(SEED)
    create(oracle)
    for form in call_forms():
        if random.random() < SHARE:
            compare(oracle, form, random)
    counts = oracle.tally.counts
    with capsys.disabled():
        print(f"\n{counts['rows']} values of {counts['equal']} queries equal, {dict(counts)}")
    assert not oracle.tally.differences, "\n".join(oracle.tally.differences[:20])
    assert counts["rows"] > _LEAST * SHARE
