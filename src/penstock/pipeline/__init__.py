"""Every Spark job of the node, one file each: snapshot, apply, compaction.

In: change batches, tables and a SparkSession. Out: data files staged on Delta tables, to be
committed by the caller. When a job runs, and what follows it, is ``penstock.subscription``'s.
"""
