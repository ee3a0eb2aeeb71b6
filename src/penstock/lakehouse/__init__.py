"""Delta tables: schema, data files, deletion vectors, the log, cuts (floor 3).

In: relations, Arrow batches, positions to delete. Out: versions of Delta tables and cuts over them.
``pipeline`` decides which rows change, ``subscription`` when to commit.
"""
