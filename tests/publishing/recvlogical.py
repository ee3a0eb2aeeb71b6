"""pg_recvlogical beside a test."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

from penstock.embedded.installation import clients
from publishing.lake_node import PASSWORD, LakeNode


@contextlib.contextmanager
def recvlogical(lake: LakeNode, user: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """It runs until the block is left."""
    program = str(clients().program("pg_recvlogical"))
    where = ["-h", "127.0.0.1", "-p", str(lake.port), "-U", user, "-d", "lake"]
    with subprocess.Popen(
        [program, *where, *arguments],
        env={**os.environ, "PGPASSWORD": PASSWORD},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()
