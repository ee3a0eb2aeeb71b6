"""Every Spark job of the node, and what its tasks do: snapshot, apply, compact, copy, publish,
query.

In: change batches or versions of tables, and a SparkSession. Out: data files staged on Delta
tables, to be committed by the caller; rows and messages that were read. What is small runs without
a job (``job``). When a job runs, and what follows it, is left to ``subscription``, ``walsender``
and ``executor``.
"""
