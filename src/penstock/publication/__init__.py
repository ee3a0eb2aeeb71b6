"""Rules of publications: row filters, column lists, several publications of a table, updates.

The rules take publications from the catalog, and tables with their columns. They return decisions
as frozen values, and predicates in DuckDB's SQL. This room reads and writes nothing.
"""
