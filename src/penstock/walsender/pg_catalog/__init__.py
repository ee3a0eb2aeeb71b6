"""PostgreSQL's system catalogs of this node, answered by DuckDB.

In: a ``CatalogSnapshot`` (what the node's catalogs hold) and ``SessionFacts`` (who asks, at which
version). Out: ``CatalogDatabase``, which describes and runs one SELECT at a time. What is in the
snapshot is left to ``snapshot_of``; who calls whom to ``reads_catalog_only``.
"""

from penstock.walsender.pg_catalog.classification import reads_catalog_only
from penstock.walsender.pg_catalog.database import CatalogDatabase, Field
from penstock.walsender.pg_catalog.functions import PythonFunction
from penstock.walsender.pg_catalog.snapshot import (
    CatalogColumn,
    CatalogSnapshot,
    CatalogTable,
    SessionFacts,
)

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
