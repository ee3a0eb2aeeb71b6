"""PostgreSQL's raw parse tree to the statements that Penstock has, one file for each group of them.

In: texts, by way of ``libpg_query``. Out: frozen values. Every field of a node is read, or is
refused by name.
"""
