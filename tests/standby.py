"""A physical standby of a server that keeps its failover slots in step."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.embedded import EmbeddedPostgres, wait_until
from penstock.embedded.installation import clients, server_account

PHYSICAL_SLOT: Final = "standby1"
"""For ``synchronized_standby_slots`` of the primary: streams wait for the standby."""


@contextmanager
def primary_and_standby(
    version: int, settings: dict[str, str | int | bool] | None = None
) -> Iterator[tuple[EmbeddedPostgres, EmbeddedPostgres]]:
    """A primary, and a standby that keeps its slots in step; streams wait for the standby."""
    settings = {"synchronized_standby_slots": PHYSICAL_SLOT, **(settings or {})}
    with EmbeddedPostgres(version, settings=settings) as primary:
        del settings["synchronized_standby_slots"]
        with standby_of(primary, settings) as standby:
            yield primary, standby


def standby_of(
    primary: EmbeddedPostgres, settings: dict[str, str | int | bool] | None = None
) -> EmbeddedPostgres:
    """To be started; the slot that it streams from is made here, if it is not there yet."""
    primary.psql(
        f"SELECT pg_create_physical_replication_slot('{PHYSICAL_SLOT}', true) WHERE NOT EXISTS"
        f" (SELECT FROM pg_replication_slots WHERE slot_name = '{PHYSICAL_SLOT}')"
    )
    more: dict[str, str | int | bool] = {
        "primary_conninfo": primary.conninfo(),
        "primary_slot_name": PHYSICAL_SLOT,
        "hot_standby_feedback": True,
        "sync_replication_slots": True,
    }
    folder = _base_backup(primary)
    return EmbeddedPostgres(primary.version, folder, settings={**(settings or {}), **more})


def synchronised(
    primary: EmbeddedPostgres, standby: EmbeddedPostgres, slot: str, timeout: float = 90
) -> None:
    """Wait until the standby could go on with that slot, whose restart_lsn has to pass what the
    standby has WAL from: its subscriber must not be far behind, and the primary has to write which
    transactions run, as it does every 15 seconds where something is written."""
    query = f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}'"
    query += " AND synced AND NOT temporary AND invalidation_reason IS NULL"

    def is_synced() -> bool:
        if standby.psql(query) == "1":
            return True
        primary.psql("SELECT pg_log_standby_snapshot()")
        return False

    wait_until(is_synced, "the slot on the standby", timeout, pause=0.5)


@contextmanager
def telling_what_runs(primary: EmbeddedPostgres) -> Iterator[None]:
    """Slots of a standby begin where its primary tells which transactions run."""
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(0.2):
            primary.psql("SELECT pg_log_standby_snapshot()")

    teller = threading.Thread(target=tell)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


def _base_backup(primary: EmbeddedPostgres) -> Path:
    """A data folder for a standby, where the servers' account can reach it."""
    folder = primary.socket_dir.parent / "standby"
    command: list[str | Path] = [clients().program("pg_basebackup"), "-D", folder]
    command += ["-d", primary.conninfo(), "-c", "fast", "--no-sync"]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "standby.signal").touch()
    if (account := server_account()) is not None:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, account.uid, account.gid)
    return folder
