"""Every Spark job of the node, and its tasks: copies of tables, apply, compact, COPY, publish,
query.

Jobs read change batches or versions of tables. They return rows and messages, or stage data files
on Delta tables for the caller to commit. Small work runs without a job (``job``). ``subscription``,
``walsender`` and ``executor`` decide when a job runs, and use its results.
"""
