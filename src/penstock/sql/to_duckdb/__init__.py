"""Expressions and queries of PostgreSQL as SQL of DuckDB that gives the same values (executor).

The typed trees of ``penstock.sql`` are compiled to SQL text, which nothing here runs. Row filters
and queries on tables of the lake share one set of rules. Anything that may differ from PostgreSQL
is refused.
"""
