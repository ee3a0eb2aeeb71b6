"""Compile PostgreSQL's expressions and queries to DuckDB's SQL, which gives the same values.

The typed trees of ``penstock.sql`` become SQL text; nothing here runs it. Row filters and queries
on tables of the lake share one set of rules. Anything that may differ from PostgreSQL is refused.
"""
