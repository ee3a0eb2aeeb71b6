"""Functions, operators and casts on tables of the lake beside a server: zero differences.

Each call that is not refused is compared over all edges of its argument types, values, errors and
types of the result. ``make oracle`` compares all of them, ``make test`` a part that the seed draws.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from decimal import Decimal
from random import Random

import pytest

from executor.calls import call_forms, compare, create
from executor.lake_oracle import LakeOracle
from fix_postgres import Database
from penstock.sql.to_duckdb.numeric_functions import numeric_division, numeric_round

pytestmark = pytest.mark.postgres

SHARE = float(os.environ.get("PENSTOCK_ORACLE_SHARE", "0.03"))
SEED = int(os.environ.get("PENSTOCK_ORACLE_SEED", "1"))
_LEAST = 20_000
_QUOTIENTS = 3000


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


def test_quotients_of_numbers_of_any_length(database: Database) -> None:
    """Digits after the point are what PostgreSQL decides by the first digits of both."""
    random = Random(SEED)

    def number() -> str:
        digits = random.randint(1, 10 ** random.randint(0, 30))
        scale = random.choice([0, 0, 1, 2, 5, 12, 30])
        return f"{random.choice([1, -1]) * Decimal(digits).scaleb(-scale):f}"

    pairs = [(number(), number()) for _ in range(_QUOTIENTS)]
    pairs.append(("10", f"{'9' * 41}.5"))  # whose first digit is no longer 9 where it is rounded
    theirs = database.rows(
        "SELECT (a / b)::text, round(a, 3)::text"
        " FROM unnest(%s::numeric[], %s::numeric[]) WITH ORDINALITY AS x(a, b, n) ORDER BY n",
        [list(numbers) for numbers in zip(*pairs, strict=True)],
    )
    ours = [(numeric_division(a, b), numeric_round(a, 3)) for a, b in pairs]
    wrong = [found for found in zip(pairs, ours, theirs, strict=True) if found[1] != found[2]]
    assert not wrong, wrong[:5]
