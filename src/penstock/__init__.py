"""Penstock: PostgreSQL-compatible logical replication for Spark lakehouses."""
