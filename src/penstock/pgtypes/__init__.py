"""PostgreSQL's types as Arrow columns: one family per file, registered in ``registry``.

Cells of a column in text or binary format become Arrow arrays of the type that ``arrow_type``
returns. A value that this type cannot hold raises ValueNotRepresentable, malformed bytes raise
ProtocolViolation; the caller adds table and column. ``penstock.lakehouse`` maps Arrow types to
Delta's.
"""

from penstock.cells import Cells
from penstock.pgtypes.family import Family
from penstock.pgtypes.registry import FAMILIES, arrow_type, binary_supported, find

__all__ = ["FAMILIES", "Cells", "Family", "arrow_type", "binary_supported", "find"]
