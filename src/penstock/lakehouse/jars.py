"""The jars of Delta Lake for Spark: pinned (``delta.toml``), fetched once, and kept in our cache.

A warehouse in an object store also needs Hadoop's client for it (``s3.toml``, ``azure.toml``). The
functions return paths for ``spark.jars``. Sites without a network put the jars into the folder
PENSTOCK_JARS. ``penstock.artifacts`` fetches the jars and checks their sums, ``session`` loads
them. ``python -m penstock.lakehouse.jars`` fetches them and prints their paths (``make setup``).
"""

from __future__ import annotations

import logging
import os
import sys
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from penstock import artifacts
from penstock.artifacts import Artifact, Notice
from penstock.errors import ConfigurationError, PenstockError
from penstock.lakehouse.object_store import AZURE_SCHEMES, S3_SCHEMES, scheme_of

logger = logging.getLogger(__name__)

JARS_VARIABLE = "PENSTOCK_JARS"

_DELTA = "delta.toml"
_CLIENTS = {
    **dict.fromkeys(S3_SCHEMES, "s3.toml"),
    **dict.fromkeys(AZURE_SCHEMES, "azure.toml"),
}
"""The files with the pins of object stores' clients, by scheme."""

_AIR_GAPPED_HINT = (
    f"Without any network: copy the folder from another machine and name it in {JARS_VARIABLE}."
)


@cache
def delta_pins() -> tuple[Artifact, ...]:
    """Return Delta's jars with their revisions and checksums."""
    return tuple(Artifact(**jar) for jar in _pins(_DELTA)["jar"])


def delta_version() -> str:
    """Return the pinned version of Delta Lake."""
    return str(_pins(_DELTA)["version"])


def delta_folder() -> Path:
    """Return the folder of the jars, which may not exist yet: $PENSTOCK_JARS, else in our cache."""
    own = os.environ.get(JARS_VARIABLE)
    if own:
        return Path(own).expanduser().absolute()
    return artifacts.cache_home() / f"delta-{delta_version()}-spark-{_pins(_DELTA)['spark']}"


def delta_jars(*, notice: Notice = logger.info) -> list[Path]:
    """Return the paths of Delta's jars; fetch them at the first call, after calling ``notice``.

    Once they are there no network is needed. All jars in PENSTOCK_JARS are taken as they are, so
    that a site may add its own; the pinned ones must be among them.

    Raises ConfigurationError if a jar is missing and cannot be fetched.
    """
    if os.environ.get(JARS_VARIABLE):
        return _given_jars(delta_folder(), delta_pins(), f"Delta Lake {delta_version()}")
    return artifacts.fetch(
        delta_pins(),
        delta_folder(),
        f"the jars of Delta Lake {delta_version()}",
        notice=notice,
        offline_hint=_AIR_GAPPED_HINT,
    )


def client_jars(warehouse: str, *, notice: Notice = logger.info) -> list[Path]:
    """Return the paths of the jars by which Spark reaches a warehouse's object store; none for
    other places. Missing jars are fetched as in ``delta_jars``. Raises ConfigurationError.
    """
    file = _CLIENTS.get(scheme_of(warehouse))
    if file is None:
        return []
    pins = tuple(Artifact(**jar) for jar in _pins(file)["jar"])
    what = f"Hadoop's client for {_pins(file)['store']}"
    if os.environ.get(JARS_VARIABLE):
        _given_jars(delta_folder(), pins, what)
        return []  # they are among those that ``delta_jars`` returns
    folder = artifacts.cache_home() / f"{Path(file).stem}-hadoop-{_pins(file)['version']}"
    return artifacts.fetch(
        pins, folder, f"the jars of {what}", notice=notice, offline_hint=_AIR_GAPPED_HINT
    )


def damaged_jars() -> list[Path]:
    """Return the jars that are missing from the folder or differ from their pins."""
    folder = delta_folder()
    return [
        folder / pin.filename
        for pin in delta_pins()
        if not artifacts.is_intact(folder / pin.filename, pin)
    ]


def _given_jars(folder: Path, pins: Sequence[Artifact], what: str) -> list[Path]:
    missing = [pin.filename for pin in pins if not (folder / pin.filename).is_file()]
    if missing:
        raise ConfigurationError(
            f"{JARS_VARIABLE} names a folder without all jars of {what}",
            detail=f"Missing in {folder}: {', '.join(missing)}.",
            hint=f"Copy them there, or unset {JARS_VARIABLE} to have them fetched.",
        )
    return sorted(folder.glob("*.jar"))


@cache
def _pins(file: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(file).read_text("utf-8"))


def main() -> int:
    """Fetch missing jars and print the paths of all; return 1 with a message if that fails.

    An argument names a warehouse, whose client's jars are fetched too.
    """
    warehouse = sys.argv[1] if len(sys.argv) > 1 else ""
    try:
        paths = delta_jars(notice=_tell) + client_jars(warehouse, notice=_tell)
    except PenstockError as error:
        print(error.report(), file=sys.stderr)
        return 1
    print("\n".join(map(str, paths)))
    return 0


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
