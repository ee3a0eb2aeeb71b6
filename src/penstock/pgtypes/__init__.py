"""PostgreSQL's types as Arrow columns: one family per file, registered in ``registry``.

In: cells of a column in text or binary format. Out: Arrow arrays of the type that ``arrow_type``
names. A value that this type cannot hold raises ValueNotRepresentable, malformed bytes raise
ProtocolViolation; whoever knows table and column adds them. ``penstock.lakehouse`` maps Arrow types
to Delta's.
"""

from penstock.cells import Cells
from penstock.pgtypes.family import Family
from penstock.pgtypes.registry import FAMILIES, arrow_type, binary_supported, find

__all__ = ["FAMILIES", "Cells", "Family", "arrow_type", "binary_supported", "find"]
