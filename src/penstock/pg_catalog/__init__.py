"""PostgreSQL's system catalogs of this node, answered by DuckDB.

In: a ``CatalogSnapshot`` (the contents of the node's catalogs) and ``SessionFacts`` (the session
that asks, and its version). Out: ``CatalogDatabase``, which describes and runs one SELECT at a
time. ``node_catalogs`` fills the snapshot; ``reads_catalog_only`` tells which statements belong
here.
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
