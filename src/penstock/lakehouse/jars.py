"""The jars of Delta Lake for Spark, pinned (``delta.toml``), fetched once, kept in our cache.

In: nothing, or PENSTOCK_JARS, a folder with the jars for sites without a network. Out: the paths
that go into ``spark.jars``. Fetching and checksums are ``penstock.artifacts``'; the session that
loads them is ``penstock.lakehouse.session``'s. ``python -m penstock.lakehouse.jars`` fetches and
prints them (``make setup``).
"""

from __future__ import annotations

import logging
import os
import sys
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from penstock import artifacts
from penstock.artifacts import Artifact, Notice
from penstock.errors import ConfigurationError, PenstockError

logger = logging.getLogger(__name__)

JARS_VARIABLE = "PENSTOCK_JARS"

_AIR_GAPPED_HINT = (
    f"Without any network: copy the folder from another machine and name it in {JARS_VARIABLE}."
)


@cache
def delta_pins() -> tuple[Artifact, ...]:
    """The jars with their revisions and checksums."""
    return tuple(Artifact(**jar) for jar in _pins()["jar"])


def delta_version() -> str:
    """The pinned version of Delta Lake."""
    return str(_pins()["version"])


def delta_folder() -> Path:
    """Where the jars are or will be: $PENSTOCK_JARS, else a folder in our cache."""
    own = os.environ.get(JARS_VARIABLE)
    if own:
        return Path(own).expanduser().absolute()
    return artifacts.cache_home() / f"delta-{delta_version()}-spark-{_pins()['spark']}"


def delta_jars(*, notice: Notice = logger.info) -> list[Path]:
    """Paths of Delta's jars, fetched at the first call; ``notice`` is told before a fetch.

    Asks no network once they are there. From PENSTOCK_JARS all jars are taken as they are, so that
    a site may add its own; the pinned ones must be among them.

    Raises ConfigurationError when a jar is missing and cannot be fetched.
    """
    if os.environ.get(JARS_VARIABLE):
        return _given_jars(delta_folder())
    return artifacts.fetch(
        delta_pins(),
        delta_folder(),
        f"the jars of Delta Lake {delta_version()}",
        notice=notice,
        offline_hint=_AIR_GAPPED_HINT,
    )


def damaged_jars() -> list[Path]:
    """Jars that are missing from the folder or differ from their pins; empty when all is well."""
    folder = delta_folder()
    return [
        folder / pin.filename
        for pin in delta_pins()
        if not artifacts.is_intact(folder / pin.filename, pin)
    ]


def _given_jars(folder: Path) -> list[Path]:
    missing = [pin.filename for pin in delta_pins() if not (folder / pin.filename).is_file()]
    if missing:
        raise ConfigurationError(
            f"{JARS_VARIABLE} names a folder without all jars of Delta Lake {delta_version()}",
            detail=f"Missing in {folder}: {', '.join(missing)}.",
            hint=f"Copy them there, or unset {JARS_VARIABLE} to have them fetched.",
        )
    return sorted(folder.glob("*.jar"))


@cache
def _pins() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("delta.toml").read_text("utf-8"))


def main() -> int:
    """Fetches the jars when missing and prints their paths; 1 with a message when it cannot."""
    try:
        paths = delta_jars(notice=lambda line: print(line, file=sys.stderr, flush=True))
    except PenstockError as error:
        print(error.report(), file=sys.stderr)
        return 1
    print("\n".join(map(str, paths)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
