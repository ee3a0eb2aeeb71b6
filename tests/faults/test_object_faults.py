"""Exactly once with the warehouse in an object store: the bank's faults in S3, the story in Azure.

Part of ``make faults`` only, since a way takes minutes; ``make test`` has the log, the races and
the documentation's commands. Of the kinds of faults there are here those that need no folder, as
many as PENSTOCK_FAULT_CYCLES says.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import pytest

from end_to_end.object_story import IN_COPY, IN_STREAM, PortNode, whole_way
from faults.arena import Arena
from faults.heavy import part_of_make_faults
from faults.test_faults import live_through
from fix_azurite import KEY, Azurite
from fix_object_store import SECRET, ObjectStore
from fix_postgres import Database
from penstock import failpoint

_CYCLES: Final = int(os.environ.get("PENSTOCK_FAULT_CYCLES", "0"))

pytestmark = [
    part_of_make_faults,
    pytest.mark.faults,
    pytest.mark.postgres,
    pytest.mark.spark,
    pytest.mark.slow,
]

_KINDS: Final = (
    f"SIGKILL {failpoint.INSIDE_COPY}",
    f"SIGKILL {failpoint.BETWEEN_COMMITS}",
    *(f"SIGKILL {name}" for name in (failpoint.BEFORE_CUT, failpoint.AFTER_COPY_COMMIT)),
    "SIGKILL at random",
    "server restart immediate",
    "connections cut in copy",
    "table leaves and comes back",
)


def test_nothing_is_lost_or_doubled_in_s3(
    s3: ObjectStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Arena(tmp_path, 1, f"s3://{s3.bucket()}/lake") as arena:
        live_through(arena, _KINDS[:_CYCLES], capsys)
        logs = "".join(log.read_text("utf-8") for log in arena.node.folder.glob("*.log"))
        assert SECRET not in logs + (arena.node.folder / "penstock.toml").read_text("utf-8")
        assert not arena.node.warehouse.exists()


def test_the_whole_way_in_azure(
    azurite: Azurite, tmp_path: Path, database: Database, database_on: Any
) -> None:
    uri = f"{azurite.container()}/lake"
    node = PortNode(tmp_path / "node", uri)
    try:
        whole_way(node, uri, database, database_on(18), (IN_COPY, IN_STREAM))
        for file in node.folder.rglob("*"):
            assert not file.is_file() or KEY.encode() not in file.read_bytes(), str(file)
    finally:
        node.close()


def test_the_whole_way_in_s3(
    s3: ObjectStore, tmp_path: Path, database: Database, database_on: Any
) -> None:
    bucket = s3.bucket()
    node = PortNode(tmp_path / "node", f"s3://{bucket}/lake")
    try:
        whole_way(node, f"s3a://{bucket}/lake", database, database_on(18), (IN_COPY, IN_STREAM))
        for file in node.folder.rglob("*"):
            assert not file.is_file() or SECRET.encode() not in file.read_bytes(), str(file)
    finally:
        node.close()
