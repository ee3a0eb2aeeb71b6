"""What holds at every transaction boundary of the bank, for PostgreSQL and for a cut alike.

In: one row of numbers per table, by SQL that PostgreSQL and DataFusion (delta-rs' QueryBuilder)
both understand. Out: the list of what does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from faults.bank import BALANCE

Digest = Mapping[str, int]

_ACCOUNTS: Final = ("checking", "savings", "loans")
_KEYED: Final = "count(*) AS n, count(DISTINCT {key}) AS keys"
_MONEY: Final = "CAST(coalesce(sum(balance), 0) AS bigint) AS money"
_KEYS: Final = {
    "checking": "id",
    "savings": "iban",
    "loans": "CAST(branch AS text) || '/' || CAST(number AS text)",
    "transfers": "id",
    "scratch": "id",
    "scratch_more": "id",
}


def digest_sql(table: str) -> str:
    """The query for one table's numbers; for ``totals`` it gives rows (name, value) instead."""
    if table == "totals":
        return "SELECT name, value FROM totals"
    if table == "journal":
        return (
            "SELECT count(*) AS n, CAST(coalesce(sum(amount), 0) AS bigint) AS amount FROM journal"
        )
    columns = [_KEYED.format(key=_KEYS.get(table, "id"))]
    if table in _ACCOUNTS or table.startswith("late_"):
        columns.append(_MONEY)
    if table == "checking":
        # A large value that was lost, doubled or taken from another row has another md5.
        columns.append(
            "CAST(coalesce(sum(CASE WHEN md5(note) IS DISTINCT FROM note_md5 THEN 1 ELSE 0 END), 0)"
            " AS bigint) AS wrong_notes"
        )
    return f"SELECT {', '.join(columns)} FROM {table}"


def as_digest(table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Digest:
    """The numbers from the rows of ``digest_sql``."""
    if table == "totals":
        named = {str(name): int(str(value)) for name, value in rows}
        return {**named, "n": len(rows), "keys": len(named)}
    return {name: int(str(value)) for name, value in zip(columns, rows[0], strict=True)}


def violations(digests: Mapping[str, Digest]) -> list[str]:
    """What is wrong with tables that should show one transaction boundary; [] when all is well.

    Sums over several tables are looked at when all of them are there: the first cuts after a crash
    in the first copy may hold some tables only.
    """
    totals = digests.get("totals")
    wrong = []
    if all(name in digests for name in _ACCOUNTS):
        money = sum(digests[name]["money"] for name in _ACCOUNTS)
        if money != BALANCE:
            wrong.append(f"balances sum up to {money}, not {BALANCE}")
    for name, digest in digests.items():
        if digest.get("keys", digest["n"]) != digest["n"]:
            wrong.append(f"{name} has {digest['n']} rows, but {digest['keys']} keys")
        if name.startswith("late_") and digest["money"] != 0:
            wrong.append(f"balances of {name} sum up to {digest['money']}, not 0")
        if digest.get("wrong_notes"):
            wrong.append(f"{digest['wrong_notes']} notes are not those of their rows")
        if totals is None or name == "totals":
            continue
        if digest["n"] != totals.get(name):
            wrong.append(f"{name} has {digest['n']} rows, its total is {totals.get(name)}")
        if "amount" in digest and digest["amount"] != totals[f"{name}_amount"]:
            wrong.append(
                f"{name} amounts to {digest['amount']}, its total is {totals[f'{name}_amount']}"
            )
    return wrong
