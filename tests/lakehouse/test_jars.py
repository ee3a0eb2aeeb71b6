"""Delta's jars: pinned, fetched once, checked, clear when they cannot be had."""

from __future__ import annotations

import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock import artifacts
from penstock.artifacts import Artifact
from penstock.errors import ConfigurationError
from penstock.lakehouse import jars

SMALL = next(pin for pin in jars.delta_pins() if pin.name == "delta-kernel-unitycatalog")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Maven repository on disk with one small jar of Delta, used instead of the central one."""
    root = tmp_path / "repository"
    place = root / SMALL.organisation.replace(".", "/") / SMALL.name / SMALL.revision
    place.mkdir(parents=True)
    (source,) = [path for path in jars.delta_jars() if path.name == SMALL.filename]
    shutil.copy(source, place)
    (place / f"{SMALL.name}-{SMALL.revision}.pom").write_text(
        "<project><modelVersion>4.0.0</modelVersion>"
        f"<groupId>{SMALL.organisation}</groupId><artifactId>{SMALL.name}</artifactId>"
        f"<version>{SMALL.revision}</version></project>"
    )
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", root.as_uri() + "/")
    return root


def test_all_pinned_jars_are_there_and_intact() -> None:
    paths = jars.delta_jars()
    assert [path.name for path in paths] == [pin.filename for pin in jars.delta_pins()]
    assert jars.damaged_jars() == []


def test_present_jars_ask_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    jars.delta_jars()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a process was started"))
    told: list[str] = []
    jars.delta_jars(notice=told.append)
    assert told == []


def test_several_at_once_fetch_once(repository: Path, tmp_path: Path) -> None:
    target = tmp_path / "cache"
    told: list[str] = []

    def one(_: int) -> list[Path]:
        return artifacts.fetch([SMALL], target, "a jar", notice=told.append)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(one, range(4)))
    assert all(result == [target / SMALL.filename] for result in results)
    assert told == [f"fetching a jar (once; kept in {target})"]
    assert sorted(path.name for path in target.iterdir()) == [".lock", SMALL.filename]


def test_wrong_checksum_is_refused_and_not_kept(repository: Path, tmp_path: Path) -> None:
    wrong = Artifact(SMALL.organisation, SMALL.name, SMALL.revision, "0" * 64)
    with pytest.raises(ConfigurationError, match="is not the file that was pinned"):
        artifacts.fetch([wrong], tmp_path / "cache", "a jar")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_missing_network_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", (tmp_path / "nothing").as_uri() + "/")
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ConfigurationError, match="could not fetch the jars of Delta") as caught:
        jars.delta_jars()
    assert "PENSTOCK_JARS" in (caught.value.hint or "")
    assert "module not found" in (caught.value.detail or "")


def test_missing_java_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ConfigurationError, match="Java was not found") as caught:
        jars.delta_jars()
    assert "openjdk-17-jre-headless" in (caught.value.hint or "")


def test_a_folder_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = jars.delta_jars()
    monkeypatch.setenv("PENSTOCK_JARS", str(tmp_path))
    with pytest.raises(ConfigurationError, match="without all jars") as caught:
        jars.delta_jars()
    assert "delta-storage-4.4.0.jar" in (caught.value.detail or "")
    for path in theirs:
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "more.jar").touch()
    assert {path.name for path in jars.delta_jars()} == {"more.jar", *(p.name for p in theirs)}


def test_command_line_prints_the_paths() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.lakehouse.jars"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(path) for path in jars.delta_jars()]
    assert done.stderr == ""
