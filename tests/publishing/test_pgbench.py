"""pgbench's transaction (tpcb-like) on tables of the lake, from several clients: the sums agree.

The script is pgbench's own, but for the time of the history's rows; ``test_pgbench_builtin`` has
that, too. Clients that are not first try again, as pgbench does by itself (--max-tries).
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from faults.heavy import part_of_make_faults
from penstock.embedded.installation import clients
from publishing.lake_node import PASSWORD, LakeNode

pytestmark = [part_of_make_faults]

_BRANCHES, _TELLERS, _ACCOUNTS = 4, 40, 1000
_CLIENTS, _SECONDS = 4, 20
TABLES = (
    "CREATE TABLE pgbench_branches (bid int PRIMARY KEY, bbalance int, filler text)",
    "CREATE TABLE pgbench_tellers (tid int PRIMARY KEY, bid int, tbalance int, filler text)",
    "CREATE TABLE pgbench_accounts (aid int PRIMARY KEY, bid int, abalance int, filler text)",
    "CREATE TABLE pgbench_history (tid int, bid int, aid int, delta int, filler text)",
    f"INSERT INTO pgbench_branches SELECT g, 0, NULL FROM generate_series(1, {_BRANCHES}) g",
    f"INSERT INTO pgbench_tellers SELECT g, g % 4 + 1, 0, '' FROM generate_series(1, {_TELLERS}) g",
    f"INSERT INTO pgbench_accounts SELECT g, 1, 0, NULL FROM generate_series(1, {_ACCOUNTS}) g",
)
SCRIPT = f"""
\\set aid random(1, {_ACCOUNTS})
\\set bid random(1, {_BRANCHES})
\\set tid random(1, {_TELLERS})
\\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO pgbench_history (tid, bid, aid, delta) VALUES (:tid, :bid, :aid, :delta);
END;
"""
SUMS = """
SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
       (SELECT sum(bbalance) FROM pgbench_branches), (SELECT sum(delta) FROM pgbench_history),
       (SELECT count(*) FROM pgbench_history)
"""


def test_the_sums_of_pgbench_agree(tmp_path: Path) -> None:
    with LakeNode(tmp_path / "node", None) as lake:
        lake.execute(*TABLES)
        printed = _pgbench(lake, tmp_path / "script.sql")
        print(printed)
        accounts, tellers, branches, history, count = lake.rows(SUMS)[0]
        assert accounts == tellers == branches == history
        assert f"actually processed: {count}\n" in printed and count


def _pgbench(lake: LakeNode, script: Path) -> str:
    script.write_text(SCRIPT)
    program = str(clients().program("pgbench"))
    where = ["-h", "127.0.0.1", "-p", str(lake.port), "-U", "lake"]
    how = ["-n", "-c", str(_CLIENTS), "-T", str(_SECONDS), "--max-tries=100", "-f", str(script)]
    done = subprocess.run(
        [program, *where, *how, "lake"],
        env={**os.environ, "PGPASSWORD": PASSWORD},
        capture_output=True,
        text=True,
        check=False,
        timeout=10 * _SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
