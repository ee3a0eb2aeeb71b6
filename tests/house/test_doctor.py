"""The doctor: versions are read right, mismatches are told with a remedy, a node fails early."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from fix_postgres import Database
from penstock.embedded import EmbeddedPostgres
from penstock.errors import ConfigurationError
from penstock.lakehouse import jars
from penstock.node import doctor
from penstock.node.doctor import Finding

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("17.0.15+6", (17, 0, 15)),
        ("21-ea", (21,)),
        ("4.2.0", (4, 2, 0)),
        ("4.2.0.dev1", (4, 2, 0)),
        ("", ()),
        ("unknown", ()),
    ],
)
def test_versions_are_parsed(text: str, version: tuple[int, ...]) -> None:
    assert doctor.parse_version(text) == version


@pytest.mark.parametrize(
    ("text", "version"), [("1.8.0_292", (8, 0)), ("17.0.15", (17, 0, 15)), ("25", (25,))]
)
def test_java_versions_are_parsed(text: str, version: tuple[int, ...]) -> None:
    assert doctor.parse_java_version(text) == version


def finding(component: str, found: list[Finding]) -> Finding:
    (one,) = [f for f in found if f.component == component]
    return one


def test_this_machine_fits() -> None:
    jars.delta_jars()
    found = doctor.check()
    assert [f for f in found if f.status == "fail"] == []
    assert all(bool(f.remedy) == (f.status != "ok") for f in found)
    doctor.require(found)


def fake_java(home: Path, version: str, release: bool) -> Path:
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026' >&2\n")
    java.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.mark.parametrize("release", [True, False])
@pytest.mark.parametrize(
    ("version", "status"),
    [("1.8.0_292", "fail"), ("11.0.2", "fail"), ("17.0.1", "ok"), ("21", "ok"), ("25", "warn")],
)
def test_java_versions_are_judged(
    version: str, status: str, release: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "java", version, release)))
    one = finding("Java", doctor.check())
    assert (one.status, version in one.found) == (status, True)


def test_wrong_pyspark_stops_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "4.3.0" if name == "pyspark" else real(name)
    )
    with pytest.raises(ConfigurationError) as caught:
        doctor.require()
    assert "pyspark: 4.3.0" in (caught.value.detail or "")
    assert "pip install pyspark==4.2.0" in (caught.value.hint or "")


def test_changed_jars_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = jars.delta_jars()
    monkeypatch.setenv("PENSTOCK_JARS", str(tmp_path))
    assert finding("Delta Lake", doctor.check()).status == "fail"
    for path in theirs:
        (tmp_path / path.name).symlink_to(path)
    assert finding("Delta Lake", doctor.check()).status == "ok"
    (tmp_path / theirs[1].name).unlink()
    (tmp_path / theirs[1].name).write_bytes(b"something else")
    one = finding("Delta Lake", doctor.check())
    assert (one.status, one.found) == ("fail", f"changed: {theirs[1].name}")


def test_jars_not_fetched_yet_are_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    assert finding("Delta Lake", doctor.check()).status == "warn"


@pytest.mark.parametrize("version", [14, 18])
def test_a_publisher_fits(
    version: int, postgres_version: Callable[[int], EmbeddedPostgres]
) -> None:
    found = doctor.check(postgres_version(version).conninfo())
    assert finding("publisher", found).found.startswith(f"PostgreSQL {version}.")
    assert {f.status for f in found if f.component.startswith("publisher")} == {"ok"}


@pytest.mark.postgres
def test_a_publisher_that_does_not_fit() -> None:
    settings: dict[str, str | int | bool] = {
        "wal_level": "replica",
        "max_replication_slots": 0,
    }
    with EmbeddedPostgres(18, settings=settings) as server:
        server.psql("CREATE ROLE plain LOGIN")
        found = doctor.check(server.conninfo(user="plain"))
        stopped = server.conninfo()
    assert finding("publisher wal_level", found).status == "fail"
    assert finding("publisher role", found).status == "warn"
    assert finding("publisher slots", found).status == "warn"
    assert finding("publisher replication", found).status == "fail"
    assert finding("publisher", doctor.check(stopped)).found == "no connection"


@pytest.mark.postgres
def test_it_does_what_a_subscription_will_do(database: Database) -> None:
    database.execute(
        "CREATE TABLE open (id int); CREATE TABLE closed (id int);"
        "CREATE TABLE part (id int, b int);"
        'CREATE PUBLICATION p FOR TABLE open, closed, part (id); CREATE PUBLICATION "q\'";'
        "DROP ROLE IF EXISTS doctor; CREATE ROLE doctor LOGIN REPLICATION;"
        "GRANT SELECT ON open TO doctor; GRANT SELECT (id) ON part TO doctor"
    )
    conninfo = database.conninfo + " user=doctor"
    found = doctor.check(conninfo, ["p"])
    assert [f.component for f in found if f.status == "fail"] == ["table public.closed"]
    assert "permission denied for table closed" in finding("table public.closed", found).remedy
    assert finding("publisher slot", found).status == "ok"
    assert finding("publication", doctor.check(conninfo, ["p", "gone"])).found == "missing: gone"
    assert finding("publisher tables", doctor.check(conninfo, ["q'"])).status == "warn"
    database.execute("GRANT SELECT ON closed TO doctor")
    assert finding("publisher tables", doctor.check(conninfo, ["p"])).found == "3 readable"
    left = "SELECT count(*) FROM pg_replication_slots WHERE slot_name ~ 'doctor'"
    assert database.value(left) == 0
    with database.connect(autocommit=False) as writer:  # slots wait for its end
        writer.execute("INSERT INTO open VALUES (1)")
        waited = finding("publisher slot", doctor.check(conninfo))
    assert "has not made a slot within 10 s" in waited.remedy
    database.execute("DROP OWNED BY doctor; DROP ROLE doctor")


def test_a_malformed_conninfo_shows_no_password() -> None:
    found = doctor.check("host=somewhere password=secret word hush")
    assert finding("publisher", found).status == "fail"
    assert "secret" not in repr(found)
    assert "hush" not in repr(found)


def test_the_matrix_is_what_pyproject_says() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["requires-python"] == doctor.PYTHON.specifier()
    told = {}
    for line in project["dependencies"] + project["optional-dependencies"]["demo"]:
        name, ranges = re.fullmatch(r"([\w-]+)(?:\[\w+\])?(.*)", line).groups()  # type: ignore[union-attr]
        told[name] = ranges
    for name, wanted in (doctor.PACKAGES | doctor.OPTIONAL_PACKAGES).items():
        if name != "pandas":
            assert told[name] == wanted.specifier(), name
    assert told["pyspark"] == "==" + doctor.PYSPARK.text()
