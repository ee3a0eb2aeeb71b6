"""PostgreSQL's system catalogs of this node, answered by DuckDB.

In: a ``CatalogSnapshot`` (what the node's catalogs hold) and ``SessionFacts`` (who asks, at which
version). Out: ``CatalogDatabase``, which describes and runs one SELECT at a time. What is in the
snapshot is left to ``snapshot_of``; who calls whom to ``reads_catalog_only``.
"""

from penstock.pg_catalog.database import CatalogDatabase, Field, reads_catalog_only
from penstock.pg_catalog.functions import PythonFunction
from penstock.pg_catalog.session_facts import SessionFacts
from penstock.pg_catalog.snapshot import CatalogColumn, CatalogSnapshot, CatalogTable

__all__ = [
    "CatalogColumn",
    "CatalogDatabase",
    "CatalogSnapshot",
    "CatalogTable",
    "Field",
    "PythonFunction",
    "SessionFacts",
    "reads_catalog_only",
]
