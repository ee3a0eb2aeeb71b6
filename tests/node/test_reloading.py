"""penstock.toml read again: what holds at once, what needs a restart, what is said of mistakes."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.node import guc
from penstock.node.guc import LiveParameters, reload_told, signal_running


def write(folder: Path, text: str) -> Path:
    (folder / guc.FILE_NAME).write_text(text, encoding="utf-8")
    return folder


def test_what_is_reloaded_are_parameters() -> None:
    assert {field.name for field in dataclasses.fields(guc.Parameters)} > guc.RELOADED


def test_some_hold_at_once_and_others_after_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    live = LiveParameters(write(tmp_path, "wal_sender_timeout = '30s'\ncuts_kept = 7\n"))
    write(
        tmp_path,
        "wal_sender_timeout = 90000\nport = 5433\nhba = ['host all all 127.0.0.1/32 trust']\n"
        "[spark]\nmaster = 'local[1]'\n",
    )
    with caplog.at_level(logging.INFO):
        live.reload()
        live.reload()
    assert live.now.wal_sender_timeout == 90
    assert live.now.cuts_kept == 1000, "it has left the file"
    assert live.now.hba == ("host all all 127.0.0.1/32 trust",)
    assert (live.now.port, live.now.spark.master) == (0, "local[*]")
    fixed = [
        'parameter "port" cannot be changed without restarting the server',
        'parameter "spark.master" cannot be changed without restarting the server',
        f'configuration file "{tmp_path / guc.FILE_NAME}" contains errors; unaffected changes '
        "were applied",
    ]
    assert caplog.messages == [
        'parameter "cuts_kept" changed to "1000"',
        'parameter "hba" changed to "["host all all 127.0.0.1/32 trust"]"',
        'parameter "wal_sender_timeout" changed to "90s"',
        *fixed,
        *fixed,
    ]


@pytest.mark.parametrize(
    "mistake",
    ["cuts_kept = 0", "nonsense = 1", "fsync = ", "hba = ['host all all everywhere trust']"],
)
def test_a_mistake_changes_nothing(
    tmp_path: Path, mistake: str, caplog: pytest.LogCaptureFixture
) -> None:
    live = LiveParameters(write(tmp_path, ""))
    write(tmp_path, f"wal_sender_timeout = '30s'\n{mistake}\n")
    with pytest.raises(ConfigurationError):
        live.reload()
    assert live.now == guc.Parameters()
    with caplog.at_level(logging.INFO):
        reload_told(tmp_path, live.reload)
    first, error, last = caplog.messages
    assert first == "received SIGHUP, reloading configuration files"
    assert error.startswith("ERROR:  ")
    assert last == (
        f'configuration file "{tmp_path / guc.FILE_NAME}" contains errors; no changes were applied'
    )


def test_a_file_that_cannot_be_read_changes_nothing(tmp_path: Path) -> None:
    """Whatever is wrong with it: who waits for signals goes on."""
    live = LiveParameters(write(tmp_path, ""))
    file = tmp_path / guc.FILE_NAME
    file.write_bytes("# gr\xfcn\n".encode("latin-1"))
    with pytest.raises(ConfigurationError, match="could not read"):
        live.reload()
    file.unlink()
    file.mkdir()
    with pytest.raises(ConfigurationError, match="could not read"):
        live.reload()
    reload_told(tmp_path, live.reload)
    assert live.now == guc.Parameters()


def test_a_node_that_nobody_runs_gets_no_signal(tmp_path: Path) -> None:
    with pytest.raises(ProcessLookupError):
        signal_running(tmp_path)
