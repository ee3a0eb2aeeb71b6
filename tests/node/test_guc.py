"""penstock.toml: PostgreSQL's names, units and errors."""

from pathlib import Path

import pytest

from penstock.errors import ConfigurationError
from penstock.guc import INT_MAX
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
    ("text", "seconds"),
    [("'100ms'", 0.1), ("'2min'", 120), ("7000", 7), ("'500'", 0.5), ("'1.5 s'", 1.5), ("0", 0)],
)
def test_times_take_postgresql_units(tmp_path: Path, text: str, seconds: float) -> None:
    parameters = guc.load(write(tmp_path, f"wal_receiver_timeout = {text}"))
    assert parameters.wal_receiver_timeout == seconds


def test_a_bare_number_is_in_the_unit_of_the_parameter(tmp_path: Path) -> None:
    parameters = guc.load(
        write(
            tmp_path,
            "wal_sender_timeout = 60000\nlogical_decoding_work_mem = 65536\n"
            "authentication_timeout = 60\nwal_receiver_status_interval = 10\n"
            "wal_retrieve_retry_interval = 5000\nbacklog_copy_threshold = -1\n"
            "maintenance_work_mem = 65536\nidle_session_timeout = 1\n",
        )
    )
    assert parameters.wal_sender_timeout == 60
    assert parameters.logical_decoding_work_mem == parameters.maintenance_work_mem == 64 << 20
    assert parameters.authentication_timeout == 60
    assert parameters.wal_receiver_status_interval == 10
    assert parameters.wal_retrieve_retry_interval == 5
    assert parameters.backlog_copy_threshold < 0
    assert parameters.idle_session_timeout == 0.001


def _range(name: str, value: str, limits: str) -> str:
    return f'{value} is outside the valid range for parameter "{name}" ({limits})'


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("fsync = 3", 'parameter "fsync" requires a Boolean value', None),
        (
            "wal_receiver_timeout = '3 parsecs'",
            'invalid value for parameter "wal_receiver_timeout": "3 parsecs"',
            'Valid units for this parameter are "us", "ms", "s", "min", "h", and "d".',
        ),
        (
            "copy_unit_size = '3 s'",
            'invalid value for parameter "copy_unit_size": "3 s"',
            'Valid units for this parameter are "B", "kB", "MB", "GB", and "TB".',
        ),
        (
            "logical_decoding_work_mem = true",
            'invalid value for parameter "logical_decoding_work_mem": "true"',
            None,
        ),
        ("cuts_kept = 'many'", 'invalid value for parameter "cuts_kept": "many"', None),
        ("cuts_kept = 0", _range("cuts_kept", "0", f"1 .. {INT_MAX}"), None),
        ("cuts_kept = nan", 'invalid value for parameter "cuts_kept": "nan"', None),
        (
            "wal_sender_timeout = inf",
            'invalid value for parameter "wal_sender_timeout": "inf"',
            None,
        ),
        ("port = 65536", _range("port", "65536", "0 .. 65535"), None),
        ("port = -1", _range("port", "-1", "0 .. 65535"), None),
        ("port = true", 'invalid value for parameter "port": "true"', None),
        ("metrics_port = 70000", _range("metrics_port", "70000", "0 .. 65535"), None),
        ("server_version = 13", _range("server_version", "13", "14 .. 18"), None),
        (
            "apply_batch_delay = '-1s'",
            _range("apply_batch_delay", "-1000 ms", f"0 ms .. {INT_MAX} ms"),
            None,
        ),
        (
            "sequencer_interval = 0",
            _range("sequencer_interval", "0 ms", f"1 ms .. {INT_MAX} ms"),
            None,
        ),
        (
            "logical_decoding_work_mem = 63",
            _range("logical_decoding_work_mem", "63 kB", f"64 kB .. {INT_MAX} kB"),
            None,
        ),
        (
            "max_connections = 99999999999",
            'invalid value for parameter "max_connections": "99999999999"',
            "Value exceeds integer range.",
        ),
        (
            "compact_dead_ratio = nan",
            'invalid value for parameter "compact_dead_ratio": "nan"',
            None,
        ),
        ("compact_dead_ratio = inf", _range("compact_dead_ratio", "Infinity", "0.01 .. 1"), None),
        ("compact_dead_ratio = 0", _range("compact_dead_ratio", "0", "0.01 .. 1"), None),
        (
            "database = 3",
            'invalid value for parameter "database": "3"',
            'Put it in quotes: database = "3".',
        ),
        (
            "hba = 'host all all all trust'",
            'invalid value for parameter "hba": "host all all all trust"',
            'Write a list of texts: hba = ["...", "..."].',
        ),
        ("warehouse = ''", 'invalid value for parameter "warehouse": ""', None),
        (
            "spark = 3",
            '"spark" is not a parameter: "3"',
            "It is a section: write [spark], and its parameters below.",
        ),
        (
            "[spark]\ndriver_memory = '-1g'",
            'invalid value for parameter "driver_memory": "-1g"',
            'Write a number and a unit: "512m", "2g".',
        ),
        (
            'listen_addresses = "localhost,"',
            'invalid value for parameter "listen_addresses": "localhost,"',
            'Write them with commas: "127.0.0.1, ::1".',
        ),
    ],
)
def test_what_is_wrong_is_said_as_postgresql_says_it(
    tmp_path: Path, text: str, message: str, hint: str | None
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        guc.load(write(tmp_path, text))
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert caught.value.sqlstate == "22023"
    assert caught.value.detail == f'In file "{tmp_path / guc.FILE_NAME}".'


def test_what_is_no_parameter_and_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="unrecognized configuration parameter"):
        guc.load(write(tmp_path, "nonsense = 1"))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("port", "Write it above the line [spark]: below, it is a parameter of that section."),
        ("nonsense", "Known parameters in section [spark]: conf, driver_memory, master."),
    ],
)
def test_a_line_at_the_end_of_the_file_is_one_of_the_last_section(
    name: str, hint: str, tmp_path: Path
) -> None:
    """As after ``echo 'port = 5440' >> penstock.toml``."""
    path = write(tmp_path, f"[spark]\n{name} = 5440\n")
    with pytest.raises(ConfigurationError) as caught:
        guc.load(path)
    file = path / guc.FILE_NAME
    assert caught.value.message == (
        f'unrecognized configuration parameter "{name}" in file "{file}" in section [spark]'
    )
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("text", "message", "detail", "hint"),
    [
        (
            'port = 1\nwarehouse = "a"\n\nwarehouse = "b"\n',
            'parameter "warehouse" is set twice in file "FILE", lines 2 and 4',
            None,
            "Remove one of the lines.",
        ),
        (
            "port = 1\nwarehouse = lake\n",
            'syntax error in file "FILE" line 2: Invalid value',
            "The line is: warehouse = lake",
            'Write names and values as in: listen_addresses = "127.0.0.1" (texts have quotes).',
        ),
        (
            "port = 1\nfsync =",
            'syntax error in file "FILE" line 2: Invalid value',
            "The line is: fsync =",
            'Write names and values as in: listen_addresses = "127.0.0.1" (texts have quotes).',
        ),
    ],
)
def test_what_is_no_file_of_parameters_says_where(
    tmp_path: Path, text: str, message: str, detail: str | None, hint: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        guc.load(write(tmp_path, text))
    error, path = caught.value, tmp_path / guc.FILE_NAME
    told = (error.message, error.detail, error.hint, error.sqlstate)
    assert told == (message.replace("FILE", str(path)), detail, hint, "42601")


def test_settings_of_spark_become_texts(tmp_path: Path) -> None:
    text = '[spark.conf]\n"spark.ui.enabled" = false\n"spark.task.maxFailures" = 2\n'
    found = guc.load(write(tmp_path, text)).spark.conf
    assert found == {"spark.ui.enabled": "false", "spark.task.maxFailures": "2"}
    with pytest.raises(ConfigurationError, match="invalid value"):
        guc.load(write(tmp_path, "[spark.conf]\nspark.ui.enabled = false\n"))


def test_a_folder_that_is_no_node_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is not a Penstock node") as caught:
        guc.load(tmp_path)
    hint = str(caught.value.hint)
    assert hint.startswith(f"Make one with: penstock init {tmp_path}. If only the file is lost: ")
