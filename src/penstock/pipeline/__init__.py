"""Every Spark job of the node, and its tasks: copies of tables, apply, compact, COPY, publish,
query.

In: change batches or versions of tables, and a SparkSession. Out: data files staged on Delta
tables, to be committed by the caller; rows and messages that were read. Small work runs without a
job (``job``). ``subscription``, ``walsender`` and ``executor`` decide when a job runs, and what
follows it.
"""
