"""Queries and changes of rows: PostgreSQL's own grammar, and what their names and types mean.

In: the text of one SELECT, VALUES, TABLE, INSERT, UPDATE or DELETE, and what relations have which
columns. Out: typed trees with every name resolved and every coercion in its place (the Query of
parsenodes.h), or PostgreSQL's error. What is not known here whole is refused by name.
"""
