"""The rules of publications: row filters, column lists, several publications of one table, updates.

In: publications as the catalog has them, and tables with their columns. Out: decisions, as frozen
values and as predicates in DuckDB's SQL. This room reads and writes nothing.
"""
