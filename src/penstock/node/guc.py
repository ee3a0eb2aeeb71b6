"""A node's parameters, with PostgreSQL's names and units (guc_tables.c, postgresql.conf).

In: ``penstock.toml`` in the node's folder. Out: one frozen ``Parameters``; every default stands
here and nowhere else. Times are seconds and sizes are bytes once read; in the file they may carry
PostgreSQL's units (``ms s min h d``, ``B kB MB GB``).
"""

from __future__ import annotations

import dataclasses
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from penstock.errors import ConfigurationError

FILE_NAME: Final = "penstock.toml"

_T = TypeVar("_T")
_TIME_UNITS: Final = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE_UNITS: Final = {"B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_QUANTITY: Final = re.compile(r"^\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*$")


DEFAULT_HBA: Final = (
    "host all all 127.0.0.1/32 scram-sha-256",
    "host all all ::1/128 scram-sha-256",
)


def seconds(default: float) -> Any:
    """A time: a bare number is in seconds."""
    return field(default=default, metadata={"units": _TIME_UNITS})


def size(default: int) -> Any:
    """A size: a bare number is in bytes."""
    return field(default=default, metadata={"units": _SIZE_UNITS})


@dataclass(frozen=True, slots=True)
class SparkParameters:
    """Section ``[spark]``: the session that a node builds when it is not given one."""

    master: str = "local[*]"
    driver_memory: str = "2g"
    conf: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Parameters:
    """All parameters of a node."""

    warehouse: str = "warehouse"
    """Folder (relative to the node) or URI of the Delta tables."""
    state: str = ""
    """SQLAlchemy URL of the state store; empty: SQLite in the node's folder."""
    fsync: bool = True
    """Force data to disk before a cut. Off loses data in a power failure."""
    wal_receiver_timeout: float = seconds(60)
    wal_receiver_status_interval: float = seconds(10)
    wal_retrieve_retry_interval: float = seconds(5)
    logical_decoding_work_mem: int = size(64 << 20)
    """Changes decoded at once; a transaction larger than this is applied in pieces."""
    apply_queue_mem: int = size(256 << 20)
    """Changes received and not applied yet; more than this spills or waits at the publisher."""
    apply_batch_rows: int = 1_000_000
    """Messages in one batch."""
    apply_batch_delay: float = seconds(0.2)
    """How long a finished transaction waits for others."""
    apply_batch_idle: float = seconds(0.01)
    """A batch is closed when nothing has come for this long."""
    apply_backlog_delay: float = seconds(5)
    """How long it waits instead of apply_batch_delay when megabytes come at once."""
    backlog_copy_threshold: int = size(64 << 20)
    """So far behind, a backlog is fetched by COPY of a slot function, not streamed; -1: never."""
    copy_unit_size: int = size(64 << 20)
    """Heap that one Spark task copies in the initial snapshot."""
    maintenance_work_mem: int = size(64 << 20)
    """Rows that a task of compaction holds: those it has read, and those it is to write."""
    compact_small_files: int = 32
    compact_dead_ratio: float = 0.3
    checkpoint_commits: int = 100
    cuts_kept: int = 1000
    port: int = 0
    """Where clients of PostgreSQL connect; 0: the node publishes nothing."""
    listen_addresses: str = "127.0.0.1"
    """The address to listen on; beyond loopback ``hba`` must allow clients, too."""
    hba: tuple[str, ...] = DEFAULT_HBA
    """Lines as in pg_hba.conf; the first that matches a connection decides."""
    ssl_cert_file: str = ""
    ssl_key_file: str = ""
    """Certificate and private key, relative to the node's folder; empty: no TLS."""
    database: str = "lake"
    """The name of the only database."""
    server_version: int = 18
    """The major version of PostgreSQL that the node behaves as, 14 to 18."""
    max_connections: int = 100
    max_wal_senders: int = 10
    max_replication_slots: int = 10
    max_slot_keep_age: float = seconds(0)
    """A slot that nobody reads is given up when its oldest commit is older; 0: never."""
    wal_sender_timeout: float = seconds(60)
    authentication_timeout: float = seconds(60)
    idle_session_timeout: float = seconds(0)
    sequencer_interval: float = seconds(0.1)
    """How often the logs of published tables are looked at."""
    metrics_port: int = 0
    """Where Prometheus scrapes /metrics; 0: nowhere."""
    metrics_address: str = "127.0.0.1"
    """The address of it. Whoever reaches it reads it: there is no login."""
    spark: SparkParameters = field(default_factory=SparkParameters)


def load(folder: Path) -> Parameters:
    """Read ``penstock.toml``. Raises ConfigurationError: no node there, unknown name, bad value."""
    path = folder / FILE_NAME
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(
            f'"{folder}" is not a Penstock node',
            detail=f'There is no file "{path}".',
            hint=f"Make one with: penstock init {folder}",
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f'could not read "{path}": {error}') from error
    spark = raw.pop("spark", {})
    return _build(Parameters, raw, path, spark=_build(SparkParameters, spark, path))


def default_text() -> str:
    """The file that ``penstock init`` writes: every parameter with its default, commented out."""
    lines = [
        "# Penstock node. Names and units are PostgreSQL's; changes take effect at the next start.",
        "",
    ]
    for parameter in dataclasses.fields(Parameters):
        if parameter.name == "spark":
            continue
        prefix = "" if parameter.name == "warehouse" else "# "
        lines.append(f"{prefix}{parameter.name} = {_show(parameter.default, parameter.metadata)}")
    lines += ["", "[spark]"]
    defaults = SparkParameters()
    lines.append(f'# master = "{defaults.master}"')
    lines.append(f'# driver_memory = "{defaults.driver_memory}"')
    lines += ["", "# [spark.conf]", '# "spark.executor.memory" = "2g"', ""]
    return "\n".join(lines)


def with_value(text: str, name: str, value: str) -> str:
    """A parameter file's text with one parameter set to a string."""
    written = f"{name} = {json.dumps(value)}"
    lines = [
        written if line.removeprefix("# ").partition(" = ")[0] == name else line
        for line in text.splitlines()
    ]
    return "\n".join(lines) + "\n"


def _build(kind: type[_T], raw: Mapping[str, Any], path: Path, **given: Any) -> _T:
    known = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values = dict(given)
    for name, value in raw.items():
        if name not in known:
            raise ConfigurationError(
                f'unrecognized configuration parameter "{name}" in file "{path}"',
                hint="Known parameters: " + ", ".join(sorted(known)) + ".",
            )
        values[name] = _value(name, value, known[name], path)
    return kind(**values)


def _value(name: str, value: Any, parameter: dataclasses.Field[Any], path: Path) -> Any:
    units = parameter.metadata.get("units")
    if units is not None:
        return _quantity(name, value, units, path)
    wanted: type = type(parameter.default) if parameter.default is not dataclasses.MISSING else dict
    if wanted is tuple and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return tuple(value)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise _invalid(name, value, path, f"It must be of type {wanted.__name__}.")
    return value


def _quantity(name: str, value: Any, units: Mapping[str, float], path: Path) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise _invalid(name, value, path, f"Valid units are {', '.join(units)}.")
    if not isinstance(value, str):
        return value
    match = _QUANTITY.match(value)
    if match is None or (match[2] and match[2] not in units):
        raise _invalid(name, value, path, f"Valid units for this parameter are {', '.join(units)}.")
    number = float(match[1]) * units.get(match[2], 1)
    return int(number) if units is _SIZE_UNITS else number


def _invalid(name: str, value: Any, path: Path, hint: str) -> ConfigurationError:
    return ConfigurationError(
        f'invalid value for parameter "{name}": "{value}"',
        detail=f'In file "{path}".',
        hint=hint,
        sqlstate="22023",
    )


def _show(value: Any, metadata: Mapping[str, Any]) -> str:
    units = metadata.get("units")
    if units is _SIZE_UNITS:
        return f'"{value >> 20}MB"'
    if units is _TIME_UNITS:
        return f'"{value:g}s"' if value >= 1 or not value else f'"{value * 1000:g}ms"'
    if isinstance(value, tuple):
        return json.dumps(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
