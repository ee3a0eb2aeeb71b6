"""Turn PostgreSQL's raw parse tree into Penstock's statements, one file for each group of them.

``libpg_query`` parses the text; the other files read the nodes of its tree into frozen values.
Every field of a node is read, or is refused with an error that names the field.
"""
