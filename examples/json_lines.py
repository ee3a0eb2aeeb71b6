"""Changes of a slot as files of JSON lines, each change once, whatever is killed.

    python examples/json_lines.py --conninfo "host=... dbname=..." --slot my_slot --folder changes

The slot's output plugin is wal2json; a node and a PostgreSQL with wal2json do alike. A file has
whole transactions. Its name is the LSN at which the last of them ends, and it gets the name when it
is on disk; then the slot moves there. So a file that is there is complete, and tells where to go
on, also where the slot has not moved because we were killed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import psycopg

_QUERY = """COPY (SELECT lsn, data FROM pg_logical_slot_peek_changes({slot}, NULL, NULL,
    'format-version', '2')) TO STDOUT"""
_PARTIAL = "partial"


class JsonLines:
    """``rows``: changes in a file, at least; a transaction is never divided."""

    def __init__(self, conninfo: str, slot: str, folder: Path, rows: int) -> None:
        self._connection: psycopg.Connection[Any] = psycopg.connect(conninfo, autocommit=True)
        self._slot, self._folder, self._rows = slot, folder, rows
        folder.mkdir(parents=True, exist_ok=True)

    def resume(self) -> None:
        """Forget the file that was being written; have the slot where the last whole one ends."""
        (self._folder / _PARTIAL).unlink(missing_ok=True)
        ends = sorted(path.stem for path in self._folder.glob("*.jsonl"))
        if ends:
            self._advance(f"{ends[-1][:8]}/{ends[-1][8:]}")

    def run(self) -> int:
        """Write what is there now; the number of files."""
        files, end = 0, None
        lines: list[str] = []
        query = psycopg.sql.SQL(_QUERY).format(slot=psycopg.sql.Literal(self._slot))
        with self._connection.cursor().copy(query) as copy:
            for lsn, data in copy.rows():
                lines.append(data)
                if not _ends(json.loads(data)):
                    continue
                end = lsn
                if len(lines) >= self._rows:
                    self._write(lines, end)
                    files, lines = files + 1, []
            if lines and end is not None:
                self._write(lines, end)
                files += 1
        if end is not None:
            self._advance(end)
        return files

    def _write(self, lines: list[str], end: str) -> None:
        partial = self._folder / _PARTIAL
        with partial.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        high, low = end.split("/")
        partial.rename(self._folder / f"{int(high, 16):08X}{int(low, 16):08X}.jsonl")
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _advance(self, lsn: str) -> None:
        self._connection.execute(
            "SELECT pg_replication_slot_advance(slot_name, %s) FROM pg_replication_slots "
            "WHERE slot_name = %s AND confirmed_flush_lsn < %s",
            (lsn, self._slot, lsn),
        )


def _ends(line: dict[str, Any]) -> bool:
    """Whether the slot may move to where the line stands: a commit is at the end of its
    transaction, a message that belongs to none is at its own end."""
    return line["action"] == "C" or (line["action"] == "M" and not line["transactional"])


def main() -> None:
    """Until it is stopped; with --once until there is nothing more."""
    parser = argparse.ArgumentParser(description="Changes of a slot as files of JSON lines.")
    parser.add_argument("--conninfo", required=True, help="of libpq")
    parser.add_argument("--slot", required=True, help="of the plugin wal2json")
    parser.add_argument("--folder", required=True, type=Path)
    parser.add_argument("--rows", type=int, default=100_000, help="changes in a file, at least")
    parser.add_argument("--once", action="store_true", help="end when there is nothing more")
    given = parser.parse_args()
    writer = JsonLines(given.conninfo, given.slot, given.folder, given.rows)
    writer.resume()
    while True:
        if writer.run() == 0:
            if given.once:
                return
            time.sleep(1)


if __name__ == "__main__":
    main()
