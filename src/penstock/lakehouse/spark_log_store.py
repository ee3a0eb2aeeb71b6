"""A log store for Spark's own commits to S3 that puts if absent (``ConditionalLogStore.java``).

In: a session whose settings name the class. Out: the class, where Delta looks for it: compiled by
the Janino that every Spark has, once for each version of its source, and kept in our cache.

Statements of the port that change tables are run by Delta in Spark. Its own log store for S3 looks
whether an entry is there and then puts it, which is safe within one process only: it could replace
an entry of ours, and a JVM that outlives a killed node one of the next.
"""

from __future__ import annotations

import hashlib
import uuid
from importlib import resources
from pathlib import Path
from typing import Any, Final

from pyspark.sql import SparkSession

from penstock import artifacts
from penstock.lakehouse.object_store import LOG_STORE_CLASS

_SOURCE: Final = "ConditionalLogStore.java"


def add_log_store(spark: SparkSession) -> None:
    """Make the class known to the session's JVM. Raises ConfigurationError."""
    source = resources.files(__package__).joinpath(_SOURCE).read_text("utf-8")
    sum_of_source = hashlib.sha256(source.encode()).hexdigest()
    folder = artifacts.cache_home() / f"log-store-{sum_of_source[:16]}"
    jvm: Any = spark._jvm
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    file = folder / f"{LOG_STORE_CLASS.replace('.', '/')}.class"
    if not file.is_file():
        with artifacts.locked(folder):
            _compile(jvm, loader, source, file)
    loader.addURL(jvm.java.io.File(str(folder)).toURI().toURL())


def _compile(jvm: Any, loader: Any, source: str, file: Path) -> None:
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(loader)
    compiler.cook(source)
    file.parent.mkdir(parents=True, exist_ok=True)
    whole = file.with_name(f"{uuid.uuid4().hex}.tmp")
    whole.write_bytes(bytes(compiler.getBytecodes()[LOG_STORE_CLASS]))
    whole.replace(file)
