"""Delta tables: schema, data files, deletion vectors, the log, cuts (floor 3).

This room turns relations, Arrow batches and positions to delete into versions of Delta tables, and
into cuts over them. ``pipeline`` decides which rows change, ``subscription`` when to commit.
"""
