"""Replication commands: the values they become; the verdicts are in test_replication_oracle."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.protocol import replication_grammar as c
from penstock.protocol.replication_grammar import (
    KEYWORDS,
    AlterSlotOptions,
    CreateSlotOptions,
    Option,
    ReplicationKind,
    SnapshotAction,
    alter_slot_options,
    create_slot_options,
    is_replication_command,
    parse_replication_command,
)

LOGICAL, PHYSICAL = ReplicationKind.LOGICAL, ReplicationKind.PHYSICAL


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("IDENTIFY_SYSTEM", c.IdentifySystem()),
        ("SHOW data_directory_mode", c.Show("data_directory_mode")),
        ("SHOW A.b;", c.Show("a.b")),
        ("READ_REPLICATION_SLOT s", c.ReadReplicationSlot("s")),
        ("TIMELINE_HISTORY 7", c.TimelineHistory(7)),
        ("BASE_BACKUP", c.BaseBackup()),
        ("BASE_BACKUP (LABEL 'x', PROGRESS, WAIT 0)",
         c.BaseBackup((Option("label", "x"), Option("progress"), Option("wait", 0)))),
        ("UPLOAD_MANIFEST", c.UploadManifest()),
        ("DROP_REPLICATION_SLOT pg_16402_sync_16384_7710174438041874734 WAIT",
         c.DropReplicationSlot("pg_16402_sync_16384_7710174438041874734", wait=True)),
        ('DROP_REPLICATION_SLOT "A""b"', c.DropReplicationSlot('A"b')),
        ("ALTER_REPLICATION_SLOT \"s\" ( FAILOVER false, TWO_PHASE true );",
         c.AlterReplicationSlot("s", (Option("failover", "false"), Option("two_phase", "true")))),
        ("CREATE_REPLICATION_SLOT \"s\" TEMPORARY LOGICAL pgoutput (SNAPSHOT 'use')",
         c.CreateReplicationSlot("s", LOGICAL, True, "pgoutput", (Option("snapshot", "use"),))),
        ("CREATE_REPLICATION_SLOT s LOGICAL pgoutput TWO_PHASE NOEXPORT_SNAPSHOT",
         c.CreateReplicationSlot("s", LOGICAL, False, "pgoutput",
                                 (Option("two_phase", True), Option("snapshot", "nothing")))),
        ("CREATE_REPLICATION_SLOT s PHYSICAL RESERVE_WAL",
         c.CreateReplicationSlot("s", PHYSICAL, options=(Option("reserve_wal", True),))),
        ("START_REPLICATION 1/A", c.StartReplication(None, PHYSICAL, Lsn.parse("1/A"))),
        ("START_REPLICATION SLOT s PHYSICAL 0/0 TIMELINE 3",
         c.StartReplication("s", PHYSICAL, Lsn(0), 3)),
        ("START_REPLICATION SLOT \"s\" LOGICAL FF/1f (proto_version '4', origin 'any',"
         " publication_names '\"a\",\"it''s\"', binary 'true')",
         c.StartReplication("s", LOGICAL, Lsn.parse("FF/1F"), options=(
             ("proto_version", "4"), ("origin", "any"),
             ("publication_names", '"a","it\'s"'), ("binary", "true")))),
        ("START_REPLICATION SLOT \"rl\" LOGICAL 0/0 (\"include-xids\" '0', \"skip-empty-xacts\")",
         c.StartReplication("rl", LOGICAL, Lsn(0), options=(
             ("include-xids", "0"), ("skip-empty-xacts", None)))),
        ("START_REPLICATION SLOT s LOGICAL 1FFFFFFFF/FFFFFFFFFFFFFFFFF",
         c.StartReplication("s", LOGICAL, Lsn(2**64 - 1))),
    ],
)  # fmt: skip
def test_commands(text: str, command: c.ReplicationCommand) -> None:
    assert is_replication_command(text)
    assert parse_replication_command(text) == command


def test_names_are_folded_and_cut_as_the_server_does() -> None:
    long = "é" * 40
    command = parse_replication_command(f"DROP_REPLICATION_SLOT MixÉd{long}")
    assert command == c.DropReplicationSlot("mixÉd" + "é" * 28)


@pytest.mark.parametrize(
    ("word", "since"), [("ALTER_REPLICATION_SLOT", 17), ("READ_REPLICATION_SLOT", 15)]
)
def test_key_words_of_later_versions_are_sql_before(word: str, since: int) -> None:
    assert is_replication_command(f"{word} s", since)
    assert not is_replication_command(f"{word} s", since - 1)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ("", CreateSlotOptions()),
        ("(SNAPSHOT 'nothing', TWO_PHASE, FAILOVER on)",
         CreateSlotOptions(SnapshotAction.NOTHING, two_phase=True, failover=True)),
        ("(two_phase 'OFF', failover 0)", CreateSlotOptions()),
        ("USE_SNAPSHOT", CreateSlotOptions(SnapshotAction.USE)),
    ],
)  # fmt: skip
def test_options_of_a_new_slot(options: str, wanted: CreateSlotOptions) -> None:
    command = parse_replication_command(f"CREATE_REPLICATION_SLOT s LOGICAL p {options}")
    assert isinstance(command, c.CreateReplicationSlot)
    assert create_slot_options(command) == wanted


def test_options_to_alter_a_slot() -> None:
    command = parse_replication_command("ALTER_REPLICATION_SLOT s (FAILOVER, TWO_PHASE false)")
    assert isinstance(command, c.AlterReplicationSlot)
    assert alter_slot_options(command) == AlterSlotOptions(failover=True, two_phase=False)
    with pytest.raises(PenstockError, match="unrecognized option: two_phase"):
        alter_slot_options(command, 17)


_PIECES = [*KEYWORDS, *"();,.'\" ", "0/0", "1", "'x'", "s", '"S"', "snapshot", "''", "\n"]


def test_a_doubled_quote_at_the_end_does_not_end_a_name() -> None:
    with pytest.raises(PenstockError, match="unterminated quoted string"):
        parse_replication_command('IDENTIFY_SYSTEM "x""')


PIECE = st.sampled_from(_PIECES) | st.text(max_size=5)


@settings(max_examples=400)
@given(st.sampled_from([*KEYWORDS]), st.lists(PIECE, max_size=12), st.sampled_from(range(14, 19)))
def test_any_text_is_a_command_or_an_error_of_ours(
    first: str, pieces: list[str], version: int
) -> None:
    text = " ".join([first, *pieces])
    try:
        if is_replication_command(text, version):
            command = parse_replication_command(text, version)
            if isinstance(command, c.CreateReplicationSlot):
                create_slot_options(command, version)
            elif isinstance(command, c.AlterReplicationSlot):
                alter_slot_options(command, version)
    except PenstockError as error:
        assert error.sqlstate in ("42601", "22023", "XX000")


@pytest.mark.parametrize("piece", ["'", "''", '"', "(", "a,", "0/", "1" * 9, "'\n", "a "])
def test_long_texts_are_read_in_linear_time(piece: str) -> None:
    for head in ("SHOW ", "START_REPLICATION SLOT s LOGICAL 0/0 (", ""):
        text = head + piece * 200_000
        try:
            if is_replication_command(text):
                parse_replication_command(text)
        except PenstockError as error:
            assert error.sqlstate == "42601"
