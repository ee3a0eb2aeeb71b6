"""PostgreSQL's system catalogs of this node, queried with DuckDB.

``CatalogDatabase`` describes and runs one SELECT at a time. It reads a ``CatalogSnapshot`` (the
contents of the node's catalogs, which ``node_catalogs`` collects) and ``SessionFacts`` (the session
that asks, and its version). ``reads_catalog_only`` tells which statements belong here.
"""

from penstock.pg_catalog.database import CatalogDatabase, reads_catalog_only
from penstock.pg_catalog.functions import PythonFunction
from penstock.pg_catalog.snapshot import CatalogSnapshot, CatalogTable, SessionFacts

__all__ = [
    "CatalogDatabase",
    "CatalogSnapshot",
    "CatalogTable",
    "PythonFunction",
    "SessionFacts",
    "reads_catalog_only",
]
