"""The classes of Spark and Delta as an archive of the JVM's (class data sharing, JDK 13 and newer).

In: the virtual environment's PySpark and the fetched jars. Out: a file in the environment with the
classes that a node's first steps load, already parsed. A JVM that starts with it needs about two
thirds of the time, and tests start many. A JVM that cannot use it starts as ever.

``python tests/class_archive.py`` makes it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from jvm import ARCHIVE, SHORT_LIFE
from penstock.lakehouse.session import build_session


def make() -> None:
    """A JVM writes the archive when it ends."""
    with tempfile.TemporaryDirectory(dir=ARCHIVE.parent) as scratch:
        made = Path(scratch) / ARCHIVE.name
        os.environ["SPARK_SUBMIT_OPTS"] = (
            f"{SHORT_LIFE} -XX:ArchiveClassesAtExit={made} -Xlog:cds*=off"
        )
        spark = build_session(
            master="local[2]",
            driver_memory="1500m",
            conf={"spark.sql.warehouse.dir": scratch},
            app_name="penstock-classes",
        )
        _use(spark, f"delta.`{scratch}/table`")
        spark.stop()
        gateway = SparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        if made.exists():
            made.replace(ARCHIVE)


def _use(spark: SparkSession, table: str) -> None:
    spark.sql(f"CREATE TABLE {table} (id INT, word STRING) USING delta")
    spark.sql(f"INSERT INTO {table} SELECT id, 'x' FROM range(10)")
    spark.sql(f"DELETE FROM {table} WHERE id = 1")
    spark.sql(f"SELECT count(*) FROM {table} GROUP BY word ORDER BY 1").collect()
    spark.sparkContext.parallelize([1, 2], 2).map(str).collect()


if __name__ == "__main__":
    make()
