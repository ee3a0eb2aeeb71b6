"""Records what wal2json itself writes: ``wal2json.json.xz``.

In: ``PENSTOCK_WAL2JSON``, a folder with wal2json.so, built for PostgreSQL 18 (or the version in
``PENSTOCK_WAL2JSON_VERSION``) from its own source. Out: a recording: pgoutput's messages of a
random history, facts of its tables, and what wal2json wrote of it with each list of options.
Run it as ``python -m decoding.wal2json_golden``.
"""

from __future__ import annotations

import json
import lzma
import os
from pathlib import Path
from typing import Any, Final

import psycopg

from decoding.random_history import History
from penstock.embedded import EmbeddedPostgres

GOLDEN: Final = Path(__file__).with_name("wal2json.json.xz")
_BOTH: Final = (
    {"include-xids": "1", "include-timestamp": "1", "include-lsn": "1"},
    {"include-typmod": "0", "include-type-oids": "1", "include-pk": "1"},
    {"include-types": "0", "include-not-null": "1", "include-column-positions": "1"},
    {"include-not-null": "1", "include-pk": "1", "include-types": "0", "include-schemas": "0"},
    {"pretty-print": "1", "include-pk": "1", "include-not-null": "1"},
    {"write-in-chunks": "1", "pretty-print": "1", "include-xids": "1"},
    {"numeric-data-types-as-string": "1", "actions": "insert, truncate"},
    {"actions": "", "add-msg-prefixes": "a\\ b"},
    {"add-tables": "Odd.*", "filter-msg-prefixes": "x"},
    {"add-tables": ""},
    {"filter-tables": "*.default\\ 0,public.*", "include-transaction": "0"},
)
OPTIONS: Final = [
    {"format-version": version, **options} for version in ("1", "2") for options in ({}, *_BOTH)
]
_SETTINGS: Final = {"timezone": "UTC"}
_PEEK: Final = "(%s, NULL, NULL, VARIADIC %s::text[])"
_FACTS: Final = """
    SELECT attrelid::int, attname, attnum, attnotnull, coalesce(attnum = ANY(indkey), false)
    FROM pg_attribute JOIN pg_class c ON c.oid = attrelid AND relkind = 'r'
    LEFT JOIN pg_index ON indrelid = attrelid AND indisprimary
    WHERE attnum > 0 AND NOT attisdropped AND attrelid >= 16384
"""


def record(seed: int, transactions: int) -> dict[str, Any]:
    version = int(os.environ.get("PENSTOCK_WAL2JSON_VERSION", "18"))
    path = f"{os.environ['PENSTOCK_WAL2JSON']}:$libdir"
    settings = {**_SETTINGS, "dynamic_library_path": path}
    with (
        EmbeddedPostgres(version, settings=settings) as server,
        psycopg.connect(server.conninfo(), autocommit=True) as db,
    ):
        history = History(seed, without="xml")
        for statement in history.setup:
            db.execute(statement)
        for plugin in ("pgoutput", "wal2json"):
            db.execute("SELECT pg_create_logical_replication_slot(%s, %s)", (plugin, plugin))
        for statements in history.transactions(transactions):
            db.execute(";".join(statements))
        db.execute("SELECT pg_logical_emit_message(true, 'end', '')")
        given = {"proto_version": "1", "publication_names": "p,p_inserts", "messages": "true"}
        rows = _peek(db, "pgoutput", given, "binary_changes", "encode(data, 'hex')")
        written = [
            [options, [row[2] for row in _peek(db, "wal2json", options, "changes", "data")]]
            for options in OPTIONS
        ]
        types = "SELECT oid::int, format_type(oid, NULL) FROM pg_type WHERE oid >= 16384"
        return {
            "version": version,
            "rows": rows,
            "types": db.execute(types).fetchall(),
            "columns": db.execute(_FACTS).fetchall(),
            "written": written,
        }


def _peek(db: Any, slot: str, options: dict[str, str], kind: str, data: str) -> list[Any]:
    flat = [part for pair in options.items() for part in pair]
    asked = f"SELECT lsn::text, xid::text::int, {data} FROM pg_logical_slot_peek_{kind}{_PEEK}"
    found: list[Any] = db.execute(asked, (slot, flat)).fetchall()
    return found


if __name__ == "__main__":
    text = json.dumps(record(17, 24), ensure_ascii=False)
    GOLDEN.write_bytes(lzma.compress(text.encode(), preset=9))
