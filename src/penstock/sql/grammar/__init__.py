"""PostgreSQL's raw parse tree to Penstock's statements, with one file for each group of them.

``libpg_query`` parses the text; the other files read its nodes into frozen values. Every field of a
node is read, or is refused with an error that names it.
"""
