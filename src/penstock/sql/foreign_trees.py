"""Trees that sqlglot makes of what no grammar of PostgreSQL takes: refused, whatever they are.

In: what reads a text by sqlglot, or walks its tree. Out: PostgreSQL's kind of error. sqlglot takes
far more than PostgreSQL does (``ARRAY 'x'``, ``INSERT INTO t``), and gives trees without what the
walk relies on; each such place is one of the user's mistakes, not a defect of the session.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from penstock.errors import FeatureNotSupported
from penstock.sql.nesting import limited_depth

_MISSING: Final = (AttributeError, IndexError, KeyError, TypeError, ValueError)

log = logging.getLogger(__name__)


@contextmanager
def foreign_tree() -> Iterator[None]:
    """Raises FeatureNotSupported, PenstockError (54001)."""
    with limited_depth():
        try:
            yield
        except _MISSING as error:
            log.debug("a query's tree is not as expected", exc_info=True)
            raise FeatureNotSupported("this query is not supported") from error
