"""Delta tables: schema, data files, deletion vectors, the log, cuts (floor 3).

In: relations, Arrow batches, positions to delete. Out: versions of Delta tables and cuts over them.
Which rows change is decided in ``pipeline``; when to commit in ``subscription``.
"""
