"""What is published of a table: row filters, column lists, combining publications, updates.

In: publications as the catalog has them, tables with their columns. Out: decisions as frozen values
and predicates in DuckDB's SQL. Nothing is read and nothing is written here.
"""
