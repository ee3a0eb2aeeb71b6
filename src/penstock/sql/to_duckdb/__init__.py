"""Expressions and queries of PostgreSQL as SQL of DuckDB that gives the same values (executor).

In: typed trees of ``penstock.sql``. Out: SQL text. Row filters and queries on tables of the lake
share one set of rules here; anything that does not surely agree with PostgreSQL is refused. Nothing
is run.
"""
