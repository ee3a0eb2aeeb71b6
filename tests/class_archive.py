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
    """What tests do most: whatever is loaded here is in the archive."""
    spark.sql(
        f"CREATE TABLE {table} (id INT, word STRING, at TIMESTAMP, n DECIMAL(20, 2)) USING delta "
        "TBLPROPERTIES ('delta.columnMapping.mode' = 'name', 'delta.checkpointInterval' = '2', "
        "'delta.enableChangeDataFeed' = 'true', 'delta.enableDeletionVectors' = 'true')"
    )
    for statement in (
        "INSERT INTO {t} SELECT id, 'x', now(), id FROM range(10)",
        "DELETE FROM {t} WHERE id = 1",
        "UPDATE {t} SET word = 'y' WHERE id > 7",
        "MERGE INTO {t} AS t USING (SELECT 3 AS id) AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET word = 'z' WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)",
        "ALTER TABLE {t} ADD COLUMN more STRUCT<a: ARRAY<INT>>",
        "ALTER TABLE {t} RENAME COLUMN word TO text",
        "ALTER TABLE {t} ADD CONSTRAINT positive CHECK (id >= 0)",
        "INSERT INTO {t} (id) VALUES (11)",
        "OPTIMIZE {t}",
        "REORG TABLE {t} APPLY (PURGE)",
        "RESTORE TABLE {t} TO VERSION AS OF 3",
    ):
        spark.sql(statement.format(t=table))
    spark.sql(f"DESCRIBE HISTORY {table}").collect()
    spark.sql(f"SELECT count(*) FROM {table} VERSION AS OF 2 GROUP BY id ORDER BY 1").toArrow()
    frame = spark.sql(f"SELECT id FROM {table}")
    frame.mapInArrow(lambda batches: batches, "id int").toArrow()
    spark.createDataFrame(frame.toArrow()).collect()
    spark.sparkContext.parallelize([1, 2], 2).map(str).collect()


if __name__ == "__main__":
    make()
