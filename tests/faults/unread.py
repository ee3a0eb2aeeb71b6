"""Positions of what the slot of a subscription has still to send, while no node reads it.

In: a publisher with the slot "s" of the publication "p". Out: where transactions end, by the kind
of the message that tells it.
"""

from __future__ import annotations

from typing import Final

from fix_postgres import Database
from penstock.lsn import Lsn

_PLACES: Final = {b"B": 1, b"P": 2, b"K": 2}
"""Where Begin, Prepare and Commit Prepared hold the LSN; the latter two have flags first."""


def unread(database: Database, kind: bytes) -> list[Lsn]:
    """Return the LSNs in messages of a kind, in their order. The slot is free afterwards."""
    database.rows("SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots")
    messages = database.rows(
        "SELECT data FROM pg_logical_slot_peek_binary_changes('s', NULL, NULL,"
        " 'proto_version', '3', 'publication_names', 'p')"
    )
    at = _PLACES[kind]
    found = [bytes(data) for (data,) in messages if bytes(data)[:1] == kind]
    return [Lsn(int.from_bytes(each[at : at + 8], "big")) for each in found]
