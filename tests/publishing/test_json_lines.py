"""The example that writes files of JSON lines: killed often, and each change is there once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from publishing.lake_node import LakeNode

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "json_lines.py"
_ROWS = 3000


def test_each_change_once(lake: LakeNode, tmp_path: Path) -> None:
    lake.execute(
        "CREATE TABLE lined (id integer PRIMARY KEY, v text)",
        "SELECT pg_create_logical_replication_slot('lined', 'wal2json')",
    )
    command = [sys.executable, str(_SCRIPT), "--conninfo", lake.conninfo(), "--slot", "lined"]
    command += ["--folder", str(tmp_path), "--rows", "200"]
    chance = random.Random(7)
    for start in range(0, _ROWS, _ROWS // 3):
        numbers = f"generate_series({start}, {start + _ROWS // 3 - 1})"
        lake.execute(f"INSERT INTO lined SELECT n, 'row ' || n FROM {numbers} AS n")
        process = subprocess.Popen(command)
        time.sleep(chance.uniform(0.1, 1.0))  # anywhere in its work
        process.kill()
        process.wait()
        lake.execute(f"UPDATE lined SET v = 'changed' WHERE id = {start}")
    subprocess.run([*command, "--once"], check=True, timeout=60)
    files = sorted(tmp_path.glob("*"))
    assert {file.suffix for file in files} == {".jsonl"}
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    actions = [line["action"] for line in lines]
    assert actions.count("I") == _ROWS
    assert actions.count("U") == 3
    inserted = [
        next(c["value"] for c in line["columns"] if c["name"] == "id")
        for line in lines
        if line["action"] == "I"
    ]
    assert sorted(inserted) == list(range(_ROWS))
    subprocess.run([*command, "--once"], check=True, timeout=60)
    assert sorted(tmp_path.glob("*")) == files


def test_messages_of_no_transaction(lake: LakeNode, tmp_path: Path) -> None:
    """They end a file, too: one behind the last commit does not take its place."""
    lake.execute(
        "CREATE TABLE noted (id integer PRIMARY KEY)",
        "SELECT pg_create_logical_replication_slot('noted', 'wal2json')",
        "INSERT INTO noted VALUES (1)",
        "SELECT pg_logical_emit_message(false, 'note', 'one')",
    )
    command = [sys.executable, str(_SCRIPT), "--conninfo", lake.conninfo(), "--slot", "noted"]
    command += ["--folder", str(tmp_path), "--rows", "1", "--once"]
    for _ in range(2):
        subprocess.run(command, check=True, timeout=60)
        files = sorted(tmp_path.glob("*.jsonl"))
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        assert [line["action"] for line in lines] == ["B", "I", "C", "M"]
