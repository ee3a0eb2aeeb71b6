"""A node's parameters, with PostgreSQL's names, units and limits (guc_tables.c, postgresql.conf).

The parameters are read from ``penstock.toml`` in the node's folder into one frozen ``Parameters``.
Defaults and limits stand in this file only. Once read, times are seconds and sizes are bytes.
``penstock.guc`` parses numbers and units, and raises PostgreSQL's errors for invalid values.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import signal
import threading
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, TypeVar

from penstock.backend.hba import DEFAULT, parse_rules
from penstock.catalog.pg_subscription import UNSENT_CHANGES
from penstock.decoding.registry import BUNDLED
from penstock.errors import (
    ConfigurationError,
    InvalidParameterValue,
    PenstockError,
    SqlSyntaxError,
)
from penstock.guc import (
    INT_MAX,
    TIMES,
    check_range,
    in_seconds_or_bytes,
    invalid,
    read_bool,
    read_integer,
    read_real,
    shown,
)
from penstock.node.claims import running_process
from penstock.walsender import syncrep_gram

log = logging.getLogger(__name__)


FILE_NAME: Final = "penstock.toml"

_T = TypeVar("_T")

_MAX_BACKENDS: Final = 0x3FFFF
"""MAX_BACKENDS (postmaster.h), the limit of connections and slots."""
_MAX_PORT: Final = 65535
_NAMEDATALEN: Final = 64


# Kinds of parameters, which read values of the TOML file (guc.c, parse_and_validate_value).
#
# A number has the base unit of PostgreSQL's parameter of the same name. A value without a unit is
# in the base unit, and errors print the range in this unit. Once read, times are seconds and sizes
# are bytes.


class ParameterKind:
    """A kind of parameter; it reads and shows values."""

    def read(self, name: str, value: Any) -> Any:
        """Read a value. Raises InvalidParameterValue with PostgreSQL's message."""
        raise NotImplementedError

    def show(self, value: Any) -> str:
        """Return the value as the parameter file has it."""
        return json.dumps(value)


@dataclass(frozen=True, slots=True)
class Integer(ParameterKind):
    """An integer (config_int). ``unit``: ms, s, kB or nothing; the limits are in this unit."""

    minimum: int
    maximum: int = INT_MAX
    unit: str = ""

    def read(self, name: str, value: Any) -> Any:
        """Read seconds (float), bytes (int) or a plain number."""
        number = read_integer(name, _text(value), self.unit)
        check_range(name, number, self.minimum, self.maximum, self.unit)
        exact = in_seconds_or_bytes(number, self.unit)
        return float(exact) if self.unit in TIMES else int(exact)

    def show(self, value: Any) -> str:
        """Show the number in the largest unit that leaves it whole."""
        if not self.unit:
            return str(value)
        return f'"{shown(int(Decimal(str(value)) / in_seconds_or_bytes(1, self.unit)), self.unit)}"'


@dataclass(frozen=True, slots=True)
class Real(ParameterKind):
    """A real number without a unit (config_real)."""

    minimum: float
    maximum: float

    def read(self, name: str, value: Any) -> float:
        """Read a number within the limits."""
        number = read_real(name, _text(value), "")
        check_range(name, number, self.minimum, self.maximum, "")
        return number


@dataclass(frozen=True, slots=True)
class Boolean(ParameterKind):
    """A boolean (config_bool)."""

    def read(self, name: str, value: Any) -> bool:
        """Read a boolean in any of PostgreSQL's words."""
        return read_bool(name, _text(value))


@dataclass(frozen=True, slots=True)
class String(ParameterKind):
    """A text (config_string). ``pattern`` must match the whole text; ``hint`` says how to write it.
    ``check`` raises PostgreSQL's error."""

    pattern: str = r".*"
    hint: str | None = None
    check: Callable[[str], object] = lambda _: None

    def read(self, name: str, value: Any) -> str:
        """Read a text. Numbers and booleans must be quoted: unquoted, they may be meant for another
        parameter."""
        if not isinstance(value, str):
            raise _invalid(name, value, f'Put it in quotes: {name} = "{_text(value)}".')
        if "\0" in value or not re.fullmatch(self.pattern, value, re.DOTALL):
            raise _invalid(name, value, self.hint)
        self.check(value)
        return value


@dataclass(frozen=True, slots=True)
class Strings(ParameterKind):
    """A list of texts."""

    def read(self, name: str, value: Any) -> tuple[str, ...]:
        """Read a list of texts."""
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise _invalid(name, value, f'Write a list of texts: {name} = ["...", "..."].')
        return tuple(value)


@dataclass(frozen=True, slots=True)
class Settings(ParameterKind):
    """A table of settings for Spark, which checks the values itself."""

    def read(self, name: str, value: Any) -> dict[str, str]:
        """Read a table; each value becomes text."""
        if not isinstance(value, dict):
            raise _invalid(name, value, f"Write a table: [spark.{name}].")
        found = {}
        for key, item in value.items():
            if isinstance(item, (dict, list)):
                raise _invalid(key, item, f'Write "{key}" = "..." with the whole name in quotes.')
            found[key] = _text(item)
        return found


def _invalid(name: str, value: Any, hint: str | None = None) -> InvalidParameterValue:
    return invalid(name, _text(value), hint)


def _text(value: Any) -> str:
    """Return the value as postgresql.conf would have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


_ON_OFF: Final = Boolean()
_NOT_EMPTY: Final = String(r".+")
_LIST: Final = String(
    r"\s*[^,\s]+\s*(,\s*[^,\s]+\s*)*", 'Write them with commas: "127.0.0.1, ::1".'
)


def parameter(default: Any, kind: ParameterKind) -> Any:
    """Declare a parameter with its kind and its default, in the form that ``kind.read`` returns."""
    return field(default=default, metadata={"kind": kind})


def milliseconds(default: float, minimum: int = 0) -> Any:
    """Declare a time in seconds; a value without a unit is in milliseconds (GUC_UNIT_MS)."""
    return parameter(default, Integer(minimum, INT_MAX, "ms"))


def size(default: int, minimum: int) -> Any:
    """Declare a size in bytes; a value without a unit is in kilobytes (GUC_UNIT_KB)."""
    return parameter(default, Integer(minimum, INT_MAX, "kB"))


def number(default: int, minimum: int, maximum: int = INT_MAX) -> Any:
    """Declare an integer."""
    return parameter(default, Integer(minimum, maximum))


@dataclass(frozen=True, slots=True)
class SparkParameters:
    """Section ``[spark]``: the session that a node builds if none is given."""

    master: str = parameter("local[*]", _NOT_EMPTY)
    driver_memory: str = parameter(
        "2g", String(r"[1-9][0-9]*[kKmMgGtT][bB]?", 'Write a number and a unit: "512m", "2g".')
    )
    conf: Mapping[str, str] = field(default_factory=dict, metadata={"kind": Settings()})


@dataclass(frozen=True, slots=True)
class Parameters:
    """All parameters of a node."""

    warehouse: str = parameter("warehouse", _NOT_EMPTY)
    """Folder (relative to the node) or URI of the Delta tables."""
    state: str = parameter("", String())
    """SQLAlchemy URL of the state store; empty: SQLite in the node's folder."""
    fsync: bool = parameter(True, _ON_OFF)
    """Force data to disk before a cut. Off loses data in a power failure."""
    wal_receiver_timeout: float = milliseconds(60.0)
    wal_receiver_status_interval: float = parameter(10.0, Integer(0, INT_MAX // 1000, "s"))
    wal_retrieve_retry_interval: float = milliseconds(5.0, 1)
    max_logical_replication_workers: int = number(4, 0, _MAX_BACKENDS)
    """Subscriptions with a worker at the same time. Each counts once, whether it streams, copies or
    both."""
    max_sync_workers_per_subscription: int = number(2, 0, _MAX_BACKENDS)
    """Tables that a subscription copies at once beside its stream; 0: none."""
    max_active_replication_origins: int = number(10, 0, _MAX_BACKENDS)
    """Subscriptions that can have an origin, whether they run or not."""
    logical_decoding_work_mem: int = size(64 << 20, 64)
    """Changes decoded at once; a transaction larger than this is applied in pieces."""
    apply_queue_mem: int = size(256 << 20, 64)
    """Changes received and not applied yet; more than this spills or waits at the publisher."""
    apply_batch_rows: int = number(1_000_000, 1)
    """Messages in one batch."""
    apply_batch_delay: float = milliseconds(0.1)
    """Seconds for which a finished transaction waits for further ones."""
    apply_batch_idle: float = milliseconds(0.01)
    """A batch is closed when nothing has come for this long."""
    apply_backlog_delay: float = milliseconds(5.0)
    """Replaces apply_batch_delay while megabytes arrive at once."""
    backlog_copy_threshold: int = size(16 << 20, -1)
    """A backlog of this many bytes is fetched by a slot function, not streamed; -1: never."""
    copy_unit_size: int = size(64 << 20, 8)
    """Bytes of a table's heap that one Spark task of an initial copy reads."""
    copy_snapshot_timeout: float = milliseconds(0.0)
    """A snapshot held for longer than this gets no further table to copy; 0: no limit."""
    maintenance_work_mem: int = size(64 << 20, 64)
    """Bytes of rows that a task of compaction holds: rows it has read, and rows still to write."""
    key_index_size: int = size(4 << 30, 0)
    """Bytes of key indexes in the node's folder; 0: large files are searched instead."""
    track_commit_timestamp: bool = parameter(False, _ON_OFF)
    """Report changes to rows whose last writer is not the subscription."""
    default_unsent_changes: str = parameter(
        UNSENT_CHANGES[0],
        String("|".join(UNSENT_CHANGES), f"Available values: {', '.join(UNSENT_CHANGES)}."),
    )
    """The default of the subscription option unsent_changes."""
    compact_small_files: int = number(32, 2)
    compact_dead_ratio: float = parameter(0.3, Real(0.01, 1.0))
    checkpoint_commits: int = number(100, 1)
    cuts_kept: int = number(1000, 1)
    cuts_kept_for: float = parameter(0.0, Integer(0, INT_MAX, "s"))
    """Cuts younger than this stay, too, with the tables' versions that they name."""
    verifications_kept_for: float = parameter(90 * 86400.0, Integer(0, INT_MAX, "s"))
    """Older rows of ``_penstock/verifications`` are removed; 0: never."""
    port: int = number(0, 0, _MAX_PORT)
    """The port to which clients of PostgreSQL connect; 0: the node publishes nothing."""
    listen_addresses: str = parameter("127.0.0.1", _LIST)
    """The addresses to listen on, with commas between them, or ``*``; beyond loopback ``hba`` must
    allow clients, too."""
    hba: tuple[str, ...] = parameter(DEFAULT, Strings())
    """Lines as in pg_hba.conf; the first that matches a connection decides."""
    ssl_cert_file: str = parameter("", String())
    ssl_key_file: str = parameter("", String())
    """Certificate and private key, relative to the node's folder; empty: no TLS."""
    database: str = parameter(
        "lake",
        String(rf".{{1,{_NAMEDATALEN - 1}}}", f"A name has 1 to {_NAMEDATALEN - 1} characters."),
    )
    """The name of the only database."""
    server_version: int = number(18, 14, 18)
    """The major version of PostgreSQL that the node imitates, 14 to 18."""
    max_connections: int = number(100, 1, _MAX_BACKENDS)
    superuser_reserved_connections: int = number(3, 0, _MAX_BACKENDS)
    """The last of max_connections, which only superusers get."""
    max_wal_senders: int = number(10, 0, _MAX_BACKENDS)
    max_replication_slots: int = number(10, 0, _MAX_BACKENDS)
    max_prepared_transactions: int = number(0, 0, _MAX_BACKENDS)
    """Transactions of sessions that can be prepared at once; 0: none."""
    max_slot_keep_age: float = parameter(0.0, Integer(0, INT_MAX, "s"))
    """A slot that nobody reads is invalidated if its oldest needed commit is older; 0: never."""
    output_plugin_libraries: tuple[str, ...] = parameter(tuple(BUNDLED), Strings())
    """Output plugins that slots may use, by the names of their entry points."""
    wal_sender_timeout: float = milliseconds(60.0)
    synchronous_standby_names: str = parameter("", String(check=syncrep_gram.parse))
    """Subscribers that must confirm a session's commit before it continues; empty: none."""
    authentication_timeout: float = parameter(60.0, Integer(1, 600, "s"))
    idle_session_timeout: float = milliseconds(0.0)
    statement_timeout: float = milliseconds(0.0)
    """A statement that takes longer is cancelled; sessions may set it, too; 0: never."""
    max_running_statements: int = number(-1, -1)
    """Statements of a role that run at once, beside a guest; superusers' are not counted. -1: one
    fewer than the node's cores, at least 1; 0: no limit."""
    query_mem: int = size(1 << 30, 64 << 10)
    """Bytes that the statements of all sessions may take together."""
    sequencer_interval: float = milliseconds(0.1, 1)
    """Seconds between two checks of the published tables' Delta logs."""
    metrics_port: int = number(0, 0, _MAX_PORT)
    """The port on which Prometheus scrapes /metrics; 0: none."""
    metrics_address: str = parameter("127.0.0.1", _NOT_EMPTY)
    """The address of that port. There is no login: whoever reaches it can read the metrics."""
    spark: SparkParameters = field(default_factory=SparkParameters)


_RESTARTED: Final = """
    warehouse state fsync track_commit_timestamp default_unsent_changes port listen_addresses
    database server_version max_connections superuser_reserved_connections max_wal_senders
    max_replication_slots max_prepared_transactions metrics_port metrics_address spark
    """
"""Parameters that need a restart (PGC_POSTMASTER)."""
RELOADED: Final = frozenset(f.name for f in dataclasses.fields(Parameters)).difference(
    _RESTARTED.split()
)
"""Parameters that a reload changes (PGC_SIGHUP)."""


def load(folder: Path) -> Parameters:
    """Read ``penstock.toml``. Raises ConfigurationError if there is no node, a name is unknown, or
    a value is invalid."""
    path = folder / FILE_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigurationError(
            f'"{folder}" is not a Penstock node',
            detail=f'There is no file "{path}".',
            hint=f"Make one with: penstock init {folder}. If only the file is lost: penstock init "
            f"--recover {folder}",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f'could not read "{path}": {error}') from error
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _syntax_error(path, text.splitlines(), str(error)) from None
    spark = raw.pop("spark", {})
    if not isinstance(spark, dict):
        raise _in_file(
            InvalidParameterValue(f'"spark" is not a parameter: "{spark}"'),
            path,
            "It is a section: write [spark], and its parameters below.",
        )
    _check_names(SparkParameters, spark, path, "spark")
    _check_names(Parameters, raw, path)
    return _build(Parameters, raw, path, spark=_build(SparkParameters, spark, path))


def _syntax_error(path: Path, lines: Sequence[str], told: str) -> ConfigurationError:
    """Return the error of a file that is no TOML. ``told``: what tomllib says."""
    what, _, place = told.rpartition(" (at ")
    found = re.match(r"line (\d+)", place)
    number = int(found[1]) if found else len(lines)
    line = lines[number - 1].strip() if lines else ""
    name = line.partition("=")[0].strip()
    names = [each.partition("=")[0].strip() for each in lines[: number - 1]]
    above = [n for n, each in enumerate(names, 1) if each == name]
    if what == "Cannot overwrite a value" and above:
        return ConfigurationError(
            f'parameter "{name}" is set twice in file "{path}", lines {above[-1]} and {number}',
            hint="Remove one of the lines.",
            sqlstate=SqlSyntaxError.default_sqlstate,
        )
    return ConfigurationError(
        f'syntax error in file "{path}" line {number}: {what}',
        detail=f"The line is: {line}",
        hint='Write names and values as in: listen_addresses = "127.0.0.1" (texts have quotes).',
        sqlstate=SqlSyntaxError.default_sqlstate,
    )


def default_text() -> str:
    """Return the file that ``penstock init`` writes: every parameter with its default, as a
    comment."""
    lines = [
        "# Penstock node. Names and units are PostgreSQL's (without a unit: ms and kB, some s);",
        "# SIGHUP and SELECT pg_reload_conf() make a running node read them again; those for which",
        "# that is not enough are named in docs/parameters.md.",
        "",
    ]
    for known in dataclasses.fields(Parameters):
        if known.name == "spark":
            continue
        prefix = "" if known.name == "warehouse" else "# "
        lines.append(f"{prefix}{known.name} = {shown_default(known)}")
    lines += ["", "[spark]"]
    defaults = SparkParameters()
    lines.append(f'# master = "{defaults.master}"')
    lines.append(f'# driver_memory = "{defaults.driver_memory}"')
    lines += ["", "# [spark.conf]", '# "spark.executor.memory" = "2g"', ""]
    return "\n".join(lines)


def with_value(text: str, name: str, value: str) -> str:
    """Return a parameter file's text with one parameter set to a string."""
    written = f"{name} = {json.dumps(value)}"
    lines = [
        written if line.removeprefix("# ").partition(" = ")[0] == name else line
        for line in text.splitlines()
    ]
    return "\n".join(lines) + "\n"


def shown_default(known: dataclasses.Field[Any]) -> str:
    """Return a parameter's default as the file has it."""
    kind: ParameterKind = known.metadata["kind"]
    return kind.show({} if known.default is dataclasses.MISSING else known.default)


def plain(parameters: Parameters, *, texts: bool = True) -> Iterator[tuple[str, str]]:
    """Yield names and values of the parameters that are a number or a boolean, and of ``texts``, as
    the file has them."""
    for known in dataclasses.fields(parameters):
        kind = known.metadata.get("kind")
        if isinstance(kind, Integer | Real | Boolean) or (texts and isinstance(kind, String)):
            text = kind.show(getattr(parameters, known.name))
            yield known.name, json.loads(text) if text.startswith('"') else text


def _check_names(kind: type[Any], raw: Iterable[str], path: Path, section: str = "") -> None:
    """Raise ConfigurationError if a name is no parameter of ``kind``."""
    known = {field.name for field in dataclasses.fields(kind)}
    for name in raw:
        if name in known:
            continue
        error = f'unrecognized configuration parameter "{name}" in file "{path}"'
        where = f" in section [{section}]" if section else ""
        hint = f"Known parameters{where}: {', '.join(sorted(known - {'spark'}))}."
        if section and name in (each.name for each in dataclasses.fields(Parameters)):
            hint = f"Write it above the line [{section}]: below, it is a parameter of that section."
        raise ConfigurationError(error + where, hint=hint)


def _build(kind: type[_T], raw: Mapping[str, Any], path: Path, **given: Any) -> _T:
    known = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values = dict(given)
    for name, value in raw.items():
        try:
            values[name] = known[name].metadata["kind"].read(name, value)
        except InvalidParameterValue as error:
            raise _in_file(error, path, error.hint) from None
    return kind(**values)


def _in_file(error: InvalidParameterValue, path: Path, hint: str | None) -> ConfigurationError:
    detail = f'In file "{path}".'
    if error.detail is not None:
        detail = f"{error.detail} {detail}"
    return ConfigurationError(error.message, detail=detail, hint=hint, sqlstate=error.sqlstate)


def state_url(folder: Path, parameters: Parameters) -> str:
    """Return the URL of the state store of a node in ``folder``."""
    return parameters.state or f"sqlite:///{folder / 'state.db'}"


def warehouse_uri(folder: Path, parameters: Parameters) -> str:
    """Return the URI or the path of the warehouse of a node in ``folder``."""
    uri = parameters.warehouse
    return uri if ":" in uri else str(folder / uri)


# The present parameters, and reloading them (guc-file.l, ProcessConfigFile). A file with a mistake
# changes nothing. A parameter that needs a restart (not in ``RELOADED``) is logged and keeps its
# value; the others take effect at once.


RECEIVED: Final = "received SIGHUP, reloading configuration files"


class LiveParameters:
    """The parameters of a node; ``now`` holds the present ones. Raises ConfigurationError if the
    folder does not belong to a node."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self.now: Parameters = load(folder)

    def reload(self) -> None:
        """Read the file again. Raises PenstockError if it has a mistake; then nothing has
        changed."""
        with self._lock:
            wanted = load(self._folder)
            parse_rules(wanted.hba)
            changed = dict(_differences(self.now, wanted))
            fixed = [name for name in changed if name not in RELOADED]
            taken = {name: getattr(wanted, name) for name in changed if name in RELOADED}
            self.now = replace(self.now, **taken)
            for name in taken:
                log.info('parameter "%s" changed to "%s"', name, changed[name])
            for name in fixed:
                log.warning('parameter "%s" cannot be changed without restarting the server', name)
            if fixed:
                log.warning(
                    'configuration file "%s" contains errors; unaffected changes were applied',
                    self._folder / FILE_NAME,
                )


def reload_told(folder: Path, reload: Callable[[], None]) -> None:
    """Reload as a server does on SIGHUP: log errors instead of raising them."""
    log.info("%s", RECEIVED)
    try:
        reload()
    except PenstockError as error:
        log.error("%s", error.report())
        log.error(
            'configuration file "%s" contains errors; no changes were applied',
            folder / FILE_NAME,
        )


def signal_running(folder: Path) -> None:
    """Make the process that runs the node reload (pg_reload_conf). Raises OSError if there is none,
    or if the signal would end it."""
    process = running_process(folder)
    if process is None:
        raise ProcessLookupError("No such process")
    if not process.hears_sighup:
        raise OSError(f"process {process.pid} does not handle SIGHUP, use Node.reload() in it")
    os.kill(process.pid, signal.SIGHUP)


def _differences(now: Parameters, wanted: Parameters) -> Iterator[tuple[str, str]]:
    """Yield names and new values; names in ``[spark]`` look like ``spark.master``."""
    yield from _of(now, wanted, "")
    yield from _of(now.spark, wanted.spark, "spark.")


def _of(now: Any, wanted: Any, prefix: str) -> Iterator[tuple[str, str]]:
    for known in dataclasses.fields(now):
        value = getattr(wanted, known.name)
        if "kind" in known.metadata and value != getattr(now, known.name):
            yield f"{prefix}{known.name}", known.metadata["kind"].show(value).strip('"')
