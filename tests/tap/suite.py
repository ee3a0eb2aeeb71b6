"""PostgreSQL's subscription tests, fetched once from its source package and kept in our cache.

In: a major version pinned in ``suite.toml``. Out: the folder with ``src/test/subscription/t``, as
PostgreSQL wrote it. A version that Debian has is fetched by apt as a source package, from the
mirror that the machine uses, with lists and a cache of its own, so that nothing of the system
changes; one that it has not any more, from the address of an archive. Elsewhere a source archive
that is there already is taken: the environment variable ``TAP_SOURCE`` names the file, or a folder
with one for each version. Either way the test files have the pinned sum.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from penstock import artifacts
from penstock.errors import ConfigurationError

_PINS = Path(__file__).with_name("suite.toml")
_TESTS = "src/test/subscription/t"
_APT_SECONDS = 300
_NETWORK_SECONDS = 60


@dataclass(frozen=True)
class Suite:
    """Where the test files of a release are."""

    release: str
    tests: Path

    def files(self) -> list[Path]:
        return sorted(self.tests.glob("*.pl"))


@dataclass(frozen=True)
class Pin:
    """``archive``: the address of a source archive, of a version without a package for apt."""

    version: int
    release: str
    source_package: str
    distributions: tuple[str, ...]
    archive: str | None
    suite: str


def pin(version: int) -> Pin:
    """The pin of a major version. Raises KeyError when there is none."""
    facts = tomllib.loads(_PINS.read_text("utf-8"))[str(version)]
    return Pin(
        version,
        facts["release"],
        facts.get("source_package", ""),
        tuple(facts.get("distributions", ())),
        facts.get("archive"),
        facts["suite"],
    )


def find_suite(version: int) -> Suite:
    """The tests of a major version, fetched when they are not there.

    Raises ConfigurationError when they cannot be had, or are not those that were pinned.
    """
    wanted = pin(version)
    home = artifacts.cache_home() / "postgresql-tests" / f"{version}-{wanted.suite[:12]}"
    if not home.is_dir():
        with artifacts.locked(home.parent):
            if not home.is_dir():
                _bring(wanted, home)
    return Suite(wanted.release, home / _TESTS)


def suite_sum(files: Iterable[Path]) -> str:
    """One sha256 over names and contents, in the order of the names."""
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(f"{artifacts.sha256_of(file)}  {file.name}\n".encode())
    return digest.hexdigest()


def _bring(wanted: Pin, home: Path) -> None:
    scratch = Path(tempfile.mkdtemp(prefix=".fetch-", dir=home.parent))
    try:
        archive = _given(wanted) or _downloaded(wanted, scratch) or _by_apt(wanted, scratch)
        _unpack(archive, scratch / "tree")
        found = suite_sum((scratch / "tree" / _TESTS).glob("*.pl"))
        if found != wanted.suite:
            raise ConfigurationError(
                f"the tests in {archive.name} are not those that were pinned",
                detail=f"Their sum is {found}, wanted {wanted.suite}.",
                hint=f"Take the source archive of PostgreSQL {wanted.release}, or measure again:"
                " put the release and the sum into tests/tap/suite.toml and run make tap.",
            )
        (scratch / "tree").rename(home)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _given(wanted: Pin) -> Path | None:
    place = os.environ.get("TAP_SOURCE")
    if not place:
        return None
    path = Path(place).expanduser()
    found = sorted(path.glob(f"postgresql*{wanted.version}.*.tar.*")) if path.is_dir() else [path]
    found = [file for file in found if file.is_file() and f"{wanted.version}." in file.name]
    return found[-1] if found else None


def _downloaded(wanted: Pin, scratch: Path) -> Path | None:
    if wanted.archive is None:
        return None
    target = scratch / wanted.archive.rpartition("/")[2]
    try:
        with (
            urllib.request.urlopen(wanted.archive, timeout=_NETWORK_SECONDS) as source,
            target.open("wb") as file,
        ):
            shutil.copyfileobj(source, file)
    except OSError as error:
        raise _unavailable(wanted, f"{wanted.archive}: {error}") from error
    return target


def _by_apt(wanted: Pin, scratch: Path) -> Path:
    if shutil.which("apt-get") is None:
        raise _unavailable(wanted, "There is no apt-get here.")
    mirrors = re.findall(r"\S+", _run(["apt-get", "indextargets", "--format", "$(REPO_URI)"])[1])
    complaint = "apt knows no mirror."
    for mirror in dict.fromkeys(m for m in mirrors if "security" not in m):
        for distribution in wanted.distributions:
            status, said = _fetch(mirror, distribution, wanted.source_package, scratch)
            found = list(scratch.glob("*.orig.tar.*"))
            if status == 0 and found:
                return found[0]
            complaint = "\n".join(said.strip().splitlines()[-3:])
    raise _unavailable(wanted, complaint)


def _fetch(mirror: str, distribution: str, package: str, scratch: Path) -> tuple[int, str]:
    """apt with lists and a cache below ``scratch``; signatures are looked at as always."""
    sources = scratch / "sources.list"
    sources.write_text(f"deb-src {mirror} {distribution} main\n")
    for folder in ("lists/partial", "cache/archives/partial"):
        (scratch / folder).mkdir(parents=True, exist_ok=True)
    options = [
        f"Dir::Etc::SourceList={sources}",
        "Dir::Etc::SourceParts=/dev/null",
        f"Dir::State::Lists={scratch / 'lists'}",
        f"Dir::Cache={scratch / 'cache'}",
        "APT::Sandbox::User=",
    ]
    apt = ["apt-get", *(word for option in options for word in ("-o", option))]
    status, said = _run([*apt, "update"], scratch)
    if status == 0:
        status, said = _run([*apt, "source", "--download-only", package], scratch)
    return status, said


def _run(command: list[str], folder: Path | None = None) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_APT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return 1, f"{command[0]} gave no answer within {_APT_SECONDS} seconds."
    return done.returncode, done.stdout


def _unpack(archive: Path, target: Path) -> None:
    """The test files of a source archive, without its top folder."""
    with tarfile.open(archive) as packed:
        for entry in packed:
            name = entry.name.partition("/")[2]
            if entry.isfile() and name.startswith(_TESTS) and name.endswith(".pl"):
                source = packed.extractfile(entry)
                assert source is not None
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                (target / name).write_bytes(source.read())


def _unavailable(wanted: Pin, detail: str) -> ConfigurationError:
    return ConfigurationError(
        f"the source package of PostgreSQL {wanted.release} could not be fetched",
        detail=detail,
        hint=f"Get postgresql-{wanted.release}.tar.bz2 from PostgreSQL's site, and name it or its"
        " folder: make tap TAP_SOURCE=/path/to/it",
    )
