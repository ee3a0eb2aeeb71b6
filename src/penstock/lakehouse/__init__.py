"""Delta tables: schema, data files, deletion vectors, the Delta log, cuts (floor 3).

This room turns relations, Arrow batches and row positions to delete into versions of Delta tables,
and into cuts over them. ``pipeline`` decides which rows change, ``subscription`` when to commit.
"""
