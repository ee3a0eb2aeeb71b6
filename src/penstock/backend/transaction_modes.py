"""Modes of a transaction: what it has, and when they may be changed (variable.c).

In: the modes that there are and those that a statement says. Out: the modes from then on, or
PostgreSQL's error (check_transaction_isolation, _read_only and _deferrable).
"""

from __future__ import annotations

from penstock.sql.grammar.session import TransactionModes
from penstock.sqlstate import ActiveSqlTransaction


def with_defaults(said: TransactionModes, defaults: TransactionModes) -> TransactionModes:
    """``said``, and ``defaults`` where nothing is."""
    return TransactionModes(
        defaults.isolation if said.isolation is None else said.isolation,
        defaults.read_only if said.read_only is None else said.read_only,
        defaults.deferrable if said.deferrable is None else said.deferrable,
    )


def changed_modes(
    now: TransactionModes, said: TransactionModes, *, queried: bool, within: bool
) -> TransactionModes:
    """``queried``: there was a query; ``within``: it is a subtransaction. Raises
    ActiveSqlTransaction (25001)."""
    if said.isolation not in (None, now.isolation):
        what = "SET TRANSACTION ISOLATION LEVEL"
        if queried:
            raise ActiveSqlTransaction(f"{what} must be called before any query")
        if within:
            raise ActiveSqlTransaction(f"{what} must not be called in a subtransaction")
    if said.read_only is False and now.read_only:
        if within:
            raise ActiveSqlTransaction(
                "cannot set transaction read-write mode inside a read-only transaction"
            )
        if queried:
            raise ActiveSqlTransaction("transaction read-write mode must be set before any query")
    if said.deferrable is not None:
        what = "SET TRANSACTION [NOT] DEFERRABLE"
        if within:
            raise ActiveSqlTransaction(f"{what} cannot be called within a subtransaction")
        if queried:
            raise ActiveSqlTransaction(f"{what} must be called before any query")
    return with_defaults(said, now)
