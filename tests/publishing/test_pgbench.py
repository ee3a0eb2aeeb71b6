"""pgbench on tables of the lake: its builtin scripts, over tables that it makes itself, and its
transaction from several clients; the sums agree.

Clients that are not first try again, as pgbench does by itself (--max-tries).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from faults.heavy import part_of_make_faults
from penstock.embedded.installation import clients
from publishing.lake_node import PASSWORD, LakeNode

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_BRANCHES, _TELLERS, _ACCOUNTS = 4, 40, 1000
_CLIENTS, _SECONDS = 4, 20
_SCRIPT = f"""
\\set aid random(1, {_ACCOUNTS})
\\set bid random(1, {_BRANCHES})
\\set tid random(1, {_TELLERS})
\\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime)
    VALUES (:tid, :bid, :aid, :delta, CURRENT_TIMESTAMP);
END;
"""
_SUMS = """
SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
       (SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(delta) FROM pgbench_history),
       (SELECT count(*) FROM pgbench_history)
"""


@part_of_make_faults
def test_the_sums_of_pgbench_agree(tmp_path: Path) -> None:
    with LakeNode(tmp_path / "node", None) as lake:
        _initialized(lake, _BRANCHES, _TELLERS, _ACCOUNTS)
        script = tmp_path / "script.sql"
        script.write_text(_SCRIPT)
        how = ["-c", str(_CLIENTS), "-T", str(_SECONDS), "--max-tries=100", "-f", str(script)]
        printed = _pgbench(lake, "-n", *how)
        print(printed)
        accounts, tellers, branches, history, count = lake.rows(_SUMS)[0]
        assert accounts == tellers == branches == history
        assert f"actually processed: {count}\n" in printed and count


def test_builtin_scripts(lake: LakeNode) -> None:
    """As it sends them, by either protocol."""
    _initialized(lake, 1, 10, 100_000)  # scale 1
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


def _initialized(lake: LakeNode, branches: int, tellers: int, accounts: int) -> None:
    """Tables as pgbench makes them (drop, tables, vacuum, primary keys), with rows as its own."""
    _pgbench(lake, "-i", "-I", "dt")
    lake.execute(
        "INSERT INTO pgbench_branches(bid,bbalance)"
        f" SELECT bid, 0 FROM generate_series(1, {branches}) AS bid",
        "INSERT INTO pgbench_tellers(tid,bid,tbalance)"
        f" SELECT tid, (tid - 1) / 10 + 1, 0 FROM generate_series(1, {tellers}) AS tid",
        "INSERT INTO pgbench_accounts(aid,bid,abalance,filler)"
        f" SELECT aid, (aid - 1) / 100000 + 1, 0, '' FROM generate_series(1, {accounts}) AS aid",
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
        timeout=10 * _SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
