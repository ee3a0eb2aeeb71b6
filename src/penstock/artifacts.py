"""Jars that are no Python packages: fetched once by Ivy, checked by sha256, kept in our cache.

A room keeps pins (organisation, name, revision, sha256) in a data file of its own, and gets the
folder that holds exactly these jars. Ivy comes inside PySpark's wheel, so only Java is needed; it
uses the network only while a pinned file is missing. Several processes may call at once: one
fetches, the others wait. A file gets its name only when it is complete and its checksum is right.
``penstock.lakehouse.jars`` and ``penstock.embedded`` use the jars.

Environment: ``PENSTOCK_CACHE`` moves the cache; ``PENSTOCK_IVY_SETTINGS`` names an Ivy settings
file (a mirror, a proxy); ``DEFAULT_ARTIFACT_REPOSITORY`` replaces the central repository, as in
Spark.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from penstock.errors import ConfigurationError

logger = logging.getLogger(__name__)

Notice = Callable[[str], None]
"""A function that takes one line saying why the user must wait."""

_OFFLINE_HINT = (
    "Check the network, or name a repository that can be reached in DEFAULT_ARTIFACT_REPOSITORY"
    " or an Ivy settings file in PENSTOCK_IVY_SETTINGS."
)
_IVY_TIMEOUT_SECONDS = 900
# Words that mark the important lines in Ivy's long output.
_TELLING = ("Server access", "module not found", "download failed", "Exception", "Error")


@dataclass(frozen=True)
class Artifact:
    """One jar of a Maven repository with the checksum that it must have."""

    organisation: str
    name: str
    revision: str
    sha256: str

    @property
    def filename(self) -> str:
        return f"{self.name}-{self.revision}.jar"


def cache_home() -> Path:
    """Return the folder of fetched files: $PENSTOCK_CACHE, else penstock in the user's cache."""
    own = os.environ.get("PENSTOCK_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "penstock"


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_intact(path: Path, artifact: Artifact) -> bool:
    """Tell whether the file exists and has the pinned checksum."""
    return path.is_file() and sha256_of(path) == artifact.sha256


def fetch(
    artifacts: Sequence[Artifact],
    folder: Path,
    what: str,
    *,
    notice: Notice = logger.info,
    offline_hint: str = "",
) -> list[Path]:
    """Return the paths of the artifacts in ``folder``; fetch those that are missing.

    ``what`` names them in messages ("the jars of Delta Lake 4.4.0"). An existing file is trusted,
    since it got its name only after its checksum was right (the doctor checks again by
    ``is_intact``).

    Raises ConfigurationError when Ivy, Java or the network is missing or a checksum is wrong.
    """
    paths = [folder / artifact.filename for artifact in artifacts]
    if all(path.is_file() for path in paths):
        return paths
    with locked(folder):
        missing = [a for a, path in zip(artifacts, paths, strict=True) if not path.is_file()]
        if missing:
            notice(f"fetching {what} (once; kept in {folder})")
            _fetch_missing(missing, folder, what, offline_hint)
    return paths


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a lock file in the folder, so that one process at a time changes its content."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / ".lock").open("w")
    except OSError as error:
        raise ConfigurationError(
            f"cannot write to the cache folder {folder}: {error.strerror}",
            hint="Set PENSTOCK_CACHE to a folder that can be written.",
        ) from error
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _fetch_missing(missing: Sequence[Artifact], folder: Path, what: str, offline_hint: str) -> None:
    hint = f"{_OFFLINE_HINT} {offline_hint}".strip()
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as name:
        scratch = Path(name)
        complaint = _run_ivy(missing, scratch)
        for artifact in missing:
            fetched = scratch / artifact.filename
            if not fetched.is_file():
                raise ConfigurationError(
                    f"could not fetch {what}",
                    detail=complaint or f"{artifact.filename} was not delivered.",
                    hint=hint,
                )
            found = sha256_of(fetched)
            if found != artifact.sha256:
                raise ConfigurationError(
                    f"{artifact.filename} is not the file that was pinned",
                    detail=f"sha256 is {found}, wanted {artifact.sha256}.",
                    hint="The repository or something on the way to it changed the file;"
                    " fetch from another one (DEFAULT_ARTIFACT_REPOSITORY).",
                )
            fetched.replace(folder / artifact.filename)


def _run_ivy(artifacts: Sequence[Artifact], scratch: Path) -> str:
    """Let Ivy put the jars into ``scratch``; return its error text, empty when there is none."""
    module = scratch / "ivy.xml"
    module.write_text(_ivy_module(artifacts), encoding="utf-8")
    command = [java_executable(), "-jar", str(_ivy_jar()), "-warn"]
    command += ["-cache", str(scratch / "ivy"), "-ivy", str(module), "-types", "jar", "bundle"]
    settings = _settings_file(scratch)
    if settings:
        command += ["-settings", str(settings)]
    command += ["-retrieve", f"{scratch}/[artifact]-[revision].[ext]"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_IVY_TIMEOUT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"No answer within {_IVY_TIMEOUT_SECONDS} seconds."
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    telling = [line for line in lines if any(word in line for word in _TELLING)]
    return "\n".join(list(dict.fromkeys(telling or filter(None, lines)))[:6])


def _ivy_module(artifacts: Sequence[Artifact]) -> str:
    """Return an ivy.xml of exact pins: nothing transitive, no ranges, only the jar itself."""
    dependencies = "\n".join(
        f"    <dependency org={quoteattr(a.organisation)} name={quoteattr(a.name)}"
        f' rev={quoteattr(a.revision)} transitive="false" conf="default->master"/>'
        for a in artifacts
    )
    return (
        '<ivy-module version="2.0">\n'
        '  <info organisation="penstock" module="pins"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f"  <dependencies>\n{dependencies}\n  </dependencies>\n"
        "</ivy-module>\n"
    )


def _settings_file(scratch: Path) -> Path | None:
    own = os.environ.get("PENSTOCK_IVY_SETTINGS")
    if own:
        return Path(own).expanduser()
    root = os.environ.get("DEFAULT_ARTIFACT_REPOSITORY")
    if not root:
        return None
    settings = scratch / "settings.xml"
    resolver = f'<ibiblio name="named" m2compatible="true" root={quoteattr(root)}/>'
    settings.write_text(
        "<ivysettings>\n"
        '  <settings defaultResolver="named"/>\n'
        f"  <resolvers>{resolver}</resolvers>\n"
        "</ivysettings>\n",
        encoding="utf-8",
    )
    return settings


def java_executable() -> str:
    """Return Java as Spark finds it: $JAVA_HOME/bin/java, else java on the PATH.

    Raises ConfigurationError when there is none.
    """
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").is_file():
        return str(Path(home) / "bin" / "java")
    found = shutil.which("java")
    if not found:
        raise ConfigurationError(
            "Java was not found",
            detail=f"JAVA_HOME is {home or 'not set'} and there is no java on the PATH.",
            hint="Install a Java runtime, version 17 or newer (Debian, Ubuntu: apt-get install"
            " openjdk-17-jre-headless; macOS: brew install openjdk@17), or set JAVA_HOME.",
        )
    return found


def _ivy_jar() -> Path:
    """Return the Ivy jar of PySpark's wheel, found by the package's path, without an import."""
    package = importlib.util.find_spec("pyspark")
    places = list(package.submodule_search_locations or []) if package else []
    for place in places:
        for jar in sorted(Path(place, "jars").glob("ivy-*.jar")):
            return jar
    raise ConfigurationError(
        "PySpark's jars were not found",
        detail="The jar of Ivy is looked for in the folder of the installed pyspark package.",
        hint="Install PySpark from its wheel: pip install pyspark==4.2.0",
    )
