"""Statistics by SQL functions (pgstatfuncs.c): of subscriptions, which are all that the node has.

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

_HAVE: Final = "pg_stat_have_stats"
_SUBSCRIPTION: Final = "subscription"
_KINDS: Final = frozenset(
    {"database", "relation", "function", "replslot", _SUBSCRIPTION}
    | {"archiver", "bgwriter", "checkpointer", "slru", "wal"}
)
"""Of every version since 15; ``io`` came with 16, ``backend`` with 18."""
_KINDS_SINCE: Final = {"io": 16, "backend": 18}

STATISTICS_FUNCTIONS: Final = frozenset({_RESET, _HAVE})


class StatisticsFunctions:
    """For one session."""

    def __init__(self, catalog: Catalog, facts: SessionFacts) -> None:
        self._catalog = catalog
        self._facts = facts

    def functions(self) -> Mapping[str, PythonFunction]:
        """By name."""
        signature = CatalogFunction(_RESET, ("oid",), "void")
        have = CatalogFunction(_HAVE, ("text", "oid", "int8"), "bool")
        return {
            _RESET: PythonFunction(signature, self._reset, strict=False),
            _HAVE: PythonFunction(have, self._have),
        }

    def _have(self, kind: str, database: int | None, subid: int | None) -> bool | None:
        """Whether there are statistics of an object; of other kinds a node has none."""
        if database is None or subid is None:
            return None
        name = kind.lower()
        if name not in _KINDS and self._facts.version < _KINDS_SINCE.get(
            name, self._facts.version + 1
        ):
            raise InvalidParameterValue(f'invalid statistics kind: "{kind}"')
        known = {subscription.oid for subscription in self._catalog.subscriptions()}
        return name == _SUBSCRIPTION and database == 0 and subid in known

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
