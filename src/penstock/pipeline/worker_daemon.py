"""The process of which Spark's Python workers on this machine are forks: it has imported what their
tasks run, so that a worker begins at once and shares the memory of its modules with the others.

In: Spark's setting ``spark.python.daemon.module``, with the worker's module as argument. Out: as
``pyspark.daemon``, which does all the rest. Spark ends workers that had nothing to do for a minute,
so that a table with a change now and then has a new one for each of them.

PySpark imports after the fork, because a library may start threads when it is imported, and a fork
has none of its parent's. What is imported here starts none but one of jemalloc's, whose locks are
free in a fork (``pthread_atfork``); a test holds that.
"""

from __future__ import annotations

import gc
import os

if __name__ == "__main__":
    # As pyspark.daemon does, before the imports: Ctrl-C in a terminal is for the node, which may
    # have a job that waits for this process.
    os.setpgid(0, 0)

# OpenBLAS starts its threads as soon as numpy is there, and nobody here multiplies matrices.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pyspark.worker
from pyspark import daemon

from penstock.pipeline import (
    compact,
    compare_tables,
    copy_to,
    publish_changes,
    snapshot_task,
    tasks,
)

IMPORTED = (pyspark.worker, compare_tables, compact, copy_to, publish_changes, snapshot_task, tasks)
"""Modules whose functions tasks run."""


def main() -> None:
    """Until Spark ends it."""
    # Objects that nobody ever frees: a collection in a fork would write to their pages.
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
