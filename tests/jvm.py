"""How JVMs of tests are started: nodes that tests start inherit it in SPARK_SUBMIT_OPTS."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

# Most live for seconds: what the optimizing compiler spends is never earned again. Without it a
# JVM has a fifth of the room for compiled code, too little for the session of a whole run, which
# would throw methods away and compile them again; and the room for classes and for young objects
# would grow from little, by a full collection at each step.
SHORT_LIFE: Final = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    " -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=512m -XX:NewSize=256m"
)
ARCHIVE: Final = Path(sys.prefix) / "spark-classes.jsa"
"""Made by ``class_archive``. A JVM that cannot use it starts as ever."""


def options() -> str:
    """Spark splits them at blanks."""
    if not ARCHIVE.exists() or " " in str(ARCHIVE):
        return SHORT_LIFE
    return f"{SHORT_LIFE} -XX:SharedArchiveFile={ARCHIVE} -Xlog:cds*=off"
