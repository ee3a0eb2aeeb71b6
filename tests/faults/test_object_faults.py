"""Exactly once with the warehouse in an object store: kill -9 in the copy and in the stream.

``make test`` runs two cycles, ``make faults`` as many as PENSTOCK_FAULT_CYCLES says, of those that
need no folder.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from faults.arena import Arena
from faults.kinds import KINDS
from faults.test_faults import report
from fix_object_store import SECRET, ObjectStore
from penstock import failpoint

pytestmark = [pytest.mark.faults, pytest.mark.postgres, pytest.mark.spark, pytest.mark.slow]

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
    cycles = min(int(os.environ.get("PENSTOCK_FAULT_CYCLES", "2")), len(_KINDS))
    with Arena(tmp_path, 1, f"s3://{s3.bucket()}/lake") as arena:
        for kind in _KINDS[:cycles]:
            arena.run(kind, KINDS[kind])
        differences = arena.finish()
        lost = sum(found.lost.total() for found in differences)
        made_up = sum(found.made_up.total() for found in differences)
        with capsys.disabled():
            print(report(arena, 1, lost, made_up))
        assert not any(differences), "\n".join(str(found) for found in differences if found)
        logs = "".join(log.read_text("utf-8") for log in arena.node.folder.glob("*.log"))
        assert SECRET not in logs + (arena.node.folder / "penstock.toml").read_text("utf-8")
        assert not arena.node.warehouse.exists()
