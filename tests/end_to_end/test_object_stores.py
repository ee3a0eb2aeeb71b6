"""A node on S3, the whole way and killed on it; no secret in what it writes.

``make faults`` does the same in Azure, and kills more often: in copies, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from end_to_end.object_story import IN_STREAM, PortNode, whole_way
from fix_object_store import SECRET, ObjectStore
from fix_postgres import Database


@pytest.mark.spark
@pytest.mark.slow
def test_s3(s3: ObjectStore, tmp_path: Path, database: Database, database_on: Any) -> None:
    bucket = s3.bucket()
    node = PortNode(tmp_path / "node", f"s3://{bucket}/lake")
    try:
        whole_way(node, f"s3a://{bucket}/lake", database, database_on(18), (IN_STREAM,))
        for file in node.folder.rglob("*"):
            assert not file.is_file() or SECRET.encode() not in file.read_bytes(), str(file)
    finally:
        node.close()
