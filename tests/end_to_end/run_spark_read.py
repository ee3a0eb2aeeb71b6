"""A program beside the node: Spark as a user has it reads tables of an object store, row by row.

In: the warehouse's URI, as Spark spells it, and the tables' names. Out: their rows as JSON, a line
for each table.
"""

from __future__ import annotations

import json
import sys

from penstock.lakehouse.session import build_session

if __name__ == "__main__":
    warehouse, *tables = sys.argv[1:]
    session = build_session(
        master="local[1]",
        driver_memory="512m",
        conf={"spark.sql.session.timeZone": "UTC"},
        app_name="beside",
        warehouse=warehouse,
    )
    for table in tables:
        rows = session.read.format("delta").load(f"{warehouse}/{table}").collect()
        print(json.dumps(sorted(list(row) for row in rows)), flush=True)
    session.stop()
