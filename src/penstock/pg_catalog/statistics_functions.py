"""Statistics by SQL functions (pgstatfuncs.c): pg_stat_reset_subscription_stats.

In: the catalog, the session that asks. Out: functions for ``pg_catalog``; their effects last,
whatever becomes of the query.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from penstock.catalog import Catalog
from penstock.errors import InsufficientPrivilege, InvalidParameterValue
from penstock.pg_catalog import PythonFunction
from penstock.pg_catalog.session_facts import SessionFacts
from penstock.sql.to_duckdb.catalog_functions import CatalogFunction

_RESET: Final = "pg_stat_reset_subscription_stats"

STATISTICS_FUNCTIONS: Final = frozenset({_RESET})


class StatisticsFunctions:
    """For one session."""

    def __init__(self, catalog: Catalog, facts: SessionFacts) -> None:
        self._catalog = catalog
        self._facts = facts

    def functions(self) -> Mapping[str, PythonFunction]:
        """By name."""
        signature = CatalogFunction(_RESET, ("oid",), "void")
        return {_RESET: PythonFunction(signature, self._reset, strict=False)}

    def _reset(self, subid: int | None) -> str:
        """NULL: of all subscriptions."""
        if not self._facts.superuser:
            raise InsufficientPrivilege(f"permission denied for function {_RESET}")
        if subid == 0:
            raise InvalidParameterValue(f"invalid subscription OID {subid}")
        known = [subscription.oid for subscription in self._catalog.subscriptions()]
        chosen = [oid for oid in known if subid in (None, oid)]
        self._catalog.statistics.reset_counts(chosen, time.time())
        return ""
