"""A file that one other file alone imports stands in that file, or is here with its reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

FACE = "its room shows it to others"
NODE = "a part of its room that only the node puts together"
COMMAND = "a command of the command line, a file each"
ROOM = "the whole of its room but for its start"
FAMILY = "a family of types, a file each"
POSTGRES = "PostgreSQL has it in a file of its own: "

REASONS = {
    "backend.replication": POSTGRES + "walsender.c, exec_replication_command",
    "backend.runner": NODE,
    "backend.server": NODE,
    "catalog.block_catalog": FACE,
    "catalog.pg_type": POSTGRES + "pg_type.c, pg_enum.c",
    "cli.run": COMMAND,
    "cli.verify": COMMAND,
    "commands.partbounds": POSTGRES + "partbounds.c",
    "commands.publicationcmds": POSTGRES + "publicationcmds.c",
    "commands.tablecmds": POSTGRES + "tablecmds.c",
    "commands.user": POSTGRES + "user.c",
    "decoding.plugins.pgoutput": POSTGRES + "pgoutput.c",
    "decoding.replay": POSTGRES + "reorderbuffer.c",
    "demo.story": ROOM,
    "embedded.node_process": FACE,
    "embedded.server": FACE,
    "executor.modify": POSTGRES + "nodeModifyTable.c",
    "executor.two_phase": POSTGRES + "twophase.c",
    "node.monitoring": "the HTTP server",
    "node.node": FACE,
    "node.recovery": "a node whose state is lost: no running node needs it",
    "node.running": "the threads of a node that runs",
    "node.standing_proof": "the comparison in the background",
    "pg_catalog.origin_functions": POSTGRES + "origin.c",
    "pg_catalog.slot_functions": POSTGRES + "slotfuncs.c",
    "pg_catalog.wal_functions": POSTGRES + "xlogfuncs.c",
    "pg_catalog.subscription_views": POSTGRES + "pgstat_subscription.c",
    "pgoutput.columnar_encoder": POSTGRES + "proto.c, logicalrep_write_insert and its kin",
    "pgtypes.array": FAMILY,
    "pgtypes.integer": FAMILY,
    "sql.command_tag": "sessions alone need it, and it reads parse trees",
    "sql.grammar.literal_lists": "the other way to read a list, beside the parser",
    "sql.grammar.parser": FACE,
    "sql.text.range_literals": POSTGRES + "rangetypes.c",
    "sql.to_duckdb.json_functions": POSTGRES + "jsonfuncs.c",
    "sql.to_duckdb.timestamp_functions": POSTGRES + "timestamp.c",
    "sql.to_duckdb.catalog_query": "queries of the catalogs, beside those of tables",
    "sql.typed.parameters": "sessions alone need it, and it reads typed trees",
    "subscription.conflicts": POSTGRES + "conflict.c",
    "subscription.launcher": POSTGRES + "launcher.c",
    "subscription.streamed": POSTGRES + "apply_handle_stream_start and its kin of worker.c",
    "walreceiver.stream": "a session with START_REPLICATION, below the subscription's",
    "walsender.decoding": NODE,
    "walsender.historic_tables": NODE,
    "walsender.following": "tables' logs read on, without what is made of them",
}


def test_every_file_with_one_importer_has_its_reason() -> None:
    measure = [sys.executable, str(ROOT / "tools" / "measure_house.py"), str(ROOT)]
    done = subprocess.run(
        [*measure, "--list", "files with one importer"], capture_output=True, text=True, check=True
    )
    found = {line.partition(":")[0].removeprefix("penstock.") for line in done.stdout.splitlines()}
    assert not found - set(REASONS), "put each into the file that imports it, or give its reason"
    assert not set(REASONS) - found, "these have other importers now"
