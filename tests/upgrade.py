"""pg_upgrade of a server, as an administrator runs it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from penstock.embedded import EmbeddedPostgres
from penstock.embedded.installation import as_account, find_installation, server_account


def upgraded(
    old: EmbeddedPostgres, settings: dict[str, str | int | bool] | None = None
) -> EmbeddedPostgres:
    """Stop a server, and move all that it has into a new cluster of PostgreSQL 18, to be started;
    ``settings``: the new server's."""
    new = EmbeddedPostgres(18, settings=settings)
    try:
        new.start()
        new.stop()
        old.stop()
        programs = find_installation(18).root / "bin"
        former = find_installation(old.version).root / "bin"
        command: list[str | Path] = [programs / "pg_upgrade", "-U", "postgres", "--no-sync"]
        command += ["-b", former, "-B", programs, "-d", old.data_dir, "-D", new.data_dir]
        command += ["--socketdir", new.socket_dir]
        done = subprocess.run(
            command,
            cwd=new.data_dir.parent / "socket",
            capture_output=True,
            text=True,
            check=False,
            **as_account(server_account()),
        )
        assert done.returncode == 0, done.stdout + done.stderr
    except BaseException:
        new.close()
        raise
    return new
