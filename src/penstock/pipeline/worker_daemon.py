"""The daemon process that forks Spark's Python workers on this machine. It has imported the code of
their tasks, so that a worker begins at once and shares the memory of the modules.

Spark's setting ``spark.python.daemon.module`` names this module, and its argument is the worker's
module. ``pyspark.daemon`` does all the rest. Spark ends workers that were idle for a minute, so a
table that rarely changes gets a new worker for each change.

PySpark imports after the fork, because a library may start threads when it is imported, and a fork
has none of its parent's threads. The modules imported here start no thread but one of jemalloc,
whose locks are free in a fork (``pthread_atfork``); a test checks that.
"""

from __future__ import annotations

import gc
import os
import sys

if __name__ == "__main__":
    # pyspark.daemon does this, too, but it must come before the imports: Ctrl-C in a terminal must
    # reach only the node, which may have a job that waits for this process.
    os.setpgid(0, 0)

# OpenBLAS starts threads as soon as numpy is imported, and nobody here multiplies matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pyspark.worker
from pyspark import daemon

from penstock import kernel
from penstock.pipeline import (
    compact,
    compare_tables,
    copy_to,
    publish_changes,
    table_copy_task,
    tasks,
)

IMPORTED = (
    pyspark.worker,
    compare_tables,
    compact,
    copy_to,
    publish_changes,
    table_copy_task,
    tasks,
)
"""The modules whose functions tasks run."""


def main() -> None:
    """Run until Spark ends the process; with ``--compile`` only compile what tasks run."""
    kernel.prepare()  # forks share it
    if sys.argv[1:] == ["--compile"]:
        return
    # These objects are never freed, and a collection in a fork would write to their pages.
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
