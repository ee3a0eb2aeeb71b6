"""penstock.toml: PostgreSQL's names, units and errors."""

from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.node import guc


def write(folder: Path, text: str) -> Path:
    (folder / guc.FILE_NAME).write_text(text, encoding="utf-8")
    return folder


def test_the_file_that_init_writes_gives_the_defaults(tmp_path: Path) -> None:
    assert guc.load(write(tmp_path, guc.default_text())) == guc.Parameters()


def test_every_line_of_the_default_file_is_true_when_uncommented(tmp_path: Path) -> None:
    text = "\n".join(
        line.removeprefix("# ") if " = " in line or line.startswith("# [") else line
        for line in guc.default_text().splitlines()
    )
    parameters = guc.load(write(tmp_path, text))
    assert parameters.wal_receiver_timeout == 60
    assert parameters.logical_decoding_work_mem == 64 << 20
    assert parameters.spark.conf == {"spark.executor.memory": "2g"}


@pytest.mark.parametrize(
    ("text", "seconds"), [("'100ms'", 0.1), ("'2min'", 120), ("7", 7), ("0.5", 0.5), ("'3'", 3)]
)
def test_times_take_postgresql_units(tmp_path: Path, text: str, seconds: float) -> None:
    parameters = guc.load(write(tmp_path, f"wal_receiver_timeout = {text}"))
    assert parameters.wal_receiver_timeout == seconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense = 1", 'unrecognized configuration parameter "nonsense"'),
        ("fsync = 3", 'invalid value for parameter "fsync": "3"'),
        ("wal_receiver_timeout = '3 parsecs'", "invalid value for parameter"),
        ("logical_decoding_work_mem = true", "invalid value for parameter"),
        ("cuts_kept = 'many'", "invalid value for parameter"),
        ("fsync = ", "could not read"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        guc.load(write(tmp_path, text))


def test_a_folder_that_is_no_node_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a Penstock node") as caught:
        guc.load(tmp_path)
    assert caught.value.hint == f"Make one with: penstock init {tmp_path}"
