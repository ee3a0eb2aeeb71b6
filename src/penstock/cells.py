"""Cells of a column: the places of its values in a buffer, before their type is known.

A decoder finds the framing and hands the cells to the type families. Bytes are never copied here;
``penstock.pgtypes`` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """One column of ``n`` cells; cell i is ``buffer[start[i]:start[i] + length[i]]``.

    ``start`` and ``length`` have shape (n,). ``null`` has shape (n,), or is None if no cell is
    NULL. Where ``null`` is true, ``start`` and ``length`` may hold anything.
    """

    buffer: NDArray[np.uint8]
    start: NDArray[np.intp]
    length: NDArray[np.intp]
    null: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.start)

    def raw(self, index: int) -> bytes | None:
        """Return the bytes of one cell, None for NULL. Meant for messages and slow paths."""
        if self.null is not None and self.null[index]:
            return None
        begin = int(self.start[index])
        return self.buffer[begin : begin + int(self.length[index])].tobytes()


def window(buffer: NDArray[np.uint8], dtype: Any) -> NDArray[Any]:
    """Return a view in which element i is the ``dtype`` that starts at byte i, aligned or not.

    Index it with an array only: ``take`` and arithmetic on the whole would copy it many times over.
    """
    kind = np.dtype(dtype)
    return np.ndarray((max(0, len(buffer) - kind.itemsize + 1),), kind, buffer, 0, (1,))
