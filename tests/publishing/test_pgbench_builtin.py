"""pgbench's builtin scripts on tables of the lake that it makes itself, by every protocol."""

from __future__ import annotations

import os
import subprocess
from typing import Final

import pytest

from penstock.embedded.installation import clients
from publishing.lake_node import PASSWORD, LakeNode

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_SECONDS: Final = 200
_SUMS = """
SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
       (SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(delta) FROM pgbench_history),
       (SELECT count(*) FROM pgbench_history)
"""


def test_builtin_scripts(lake: LakeNode) -> None:
    """As it sends them, by every protocol."""
    _initialized(lake)
    processed = 0
    for protocol, count in (("simple", 5), ("extended", 1), ("prepared", 2)):
        printed = _pgbench(lake, "-n", "-c", "1", "-t", str(count), "-M", protocol)
        assert f"number of transactions actually processed: {count}/{count}\n" in printed
        processed += count
        accounts, tellers, branches, history, rows = lake.rows(_SUMS)[0]
        assert (accounts, tellers, branches, rows) == (history, history, history, processed)
    assert lake.rows("SELECT count(*) FROM pgbench_history WHERE mtime IS NULL") == [(0,)]
    for builtin in ("simple-update", "select-only"):
        assert "actually processed: 1/1\n" in _pgbench(lake, "-n", "-t", "1", "-b", builtin)
    # Without -n it vacuums, and empties the history.
    assert "actually processed: 1/1\n" in _pgbench(lake, "-t", "1")
    assert lake.rows("SELECT count(*) FROM pgbench_history") == [(1,)]


def _initialized(lake: LakeNode) -> None:
    """Scale 1: tables as pgbench makes them (drop, tables, vacuum, primary keys), its own rows."""
    _pgbench(lake, "-i", "-I", "dt")
    lake.execute(
        "INSERT INTO pgbench_branches(bid,bbalance)"
        " SELECT bid, 0 FROM generate_series(1, 1) AS bid",
        "INSERT INTO pgbench_tellers(tid,bid,tbalance)"
        " SELECT tid, (tid - 1) / 10 + 1, 0 FROM generate_series(1, 10) AS tid",
        *(
            "INSERT INTO pgbench_accounts(aid,bid,abalance,filler) SELECT aid,"
            f" (aid - 1) / 100000 + 1, 0, '' FROM generate_series({first}, {first + 49_999}) AS aid"
            for first in (1, 50_001)  # a file each
        ),
    )
    _pgbench(lake, "-i", "-I", "vp")


def _pgbench(lake: LakeNode, *arguments: str) -> str:
    program = str(clients().program("pgbench"))
    where = ["-h", "127.0.0.1", "-p", str(lake.port), "-U", "lake"]
    done = subprocess.run(
        [program, *where, *arguments, "lake"],
        env={**os.environ, "PGPASSWORD": PASSWORD},
        capture_output=True,
        text=True,
        check=False,
        timeout=_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
