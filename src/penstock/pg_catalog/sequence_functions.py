"""nextval, currval, lastval, setval (sequence.c), and what the views of sequences ask.

In: the node's sequences, the session that asks. Out: functions for ``pg_catalog``. A value that was
given out is so for good, whatever becomes of the query.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from penstock.catalog import Catalog, LakeTable
from penstock.catalog import Sequence as LakeSequence
from penstock.errors import InsufficientPrivilege, PenstockError, WrongObjectType
from penstock.pg_catalog import PythonFunction
from penstock.pg_catalog.session_facts import SessionFacts
from penstock.sql.to_duckdb.catalog_functions import CatalogFunction
from penstock.sqlstate import UndefinedTable

_SIGNATURES: Final = (
    CatalogFunction("nextval", ("regclass",), "int8"),
    CatalogFunction("currval", ("regclass",), "int8"),
    CatalogFunction("lastval", (), "int8"),
    CatalogFunction("setval", ("regclass", "int8", "bool"), "int8", "TRUE"),
    CatalogFunction("pg_sequence_last_value", ("regclass",), "int8"),
)
SEQUENCE_FUNCTIONS: Final = frozenset(signature.name for signature in _SIGNATURES)


class SequenceFunctions:
    """For one session."""

    def __init__(self, catalog: Catalog, facts: SessionFacts) -> None:
        self._catalog = catalog
        self._values = catalog.sequences
        self._facts = facts

    def functions(self) -> Mapping[str, PythonFunction]:
        """By name."""
        return {
            signature.name: PythonFunction(
                signature, getattr(self, signature.name), strict=bool(signature.arguments)
            )
            for signature in _SIGNATURES
        }

    def nextval(self, oid: int) -> int:
        """The next value. Raises PenstockError (25006, 42P01, 42501, 42809, 2200H)."""
        self._check(oid)
        self._check_writes("nextval()")
        (value,) = self._values.take(oid, 1, self._facts.sequences)
        return value

    def currval(self, oid: int) -> int:
        """What this session got last. Raises PenstockError (42P01, 42501, 42809, 55000)."""
        self._check(oid)
        return self._values.current(oid, self._facts.sequences)

    def lastval(self) -> int:
        """What this session got last of any. Raises NotInPrerequisiteState (55000)."""
        return self._values.last(self._facts.sequences)

    def setval(self, oid: int, value: int | None, is_called: bool | None) -> int | None:
        """Raises PenstockError (25006, 42P01, 42501, 42809, 22003)."""
        if value is None or is_called is None:
            return None
        self._check(oid)
        self._check_writes("setval()")
        return self._values.set(oid, value, self._facts.sequences, is_called=is_called)

    def pg_sequence_last_value(self, oid: int) -> int | None:
        """NULL before the first one, and for who has no right to it. Raises PenstockError (42P01,
        42809)."""
        try:
            self._check(oid)
        except InsufficientPrivilege:
            return None
        value, is_called = self._values.state(oid)
        return value if is_called else None

    def _check_writes(self, function: str) -> None:
        """PreventCommandIfReadOnly"""
        if self._facts.read_only:
            raise PenstockError(
                f"cannot execute {function} in a read-only transaction", sqlstate="25006"
            )

    def _check(self, oid: int) -> LakeSequence:
        """init_sequence, and the right of the owner."""
        with self._catalog.read() as t:
            sequence, table = t.sequences.find_oid(oid), t.tables.find_oid(oid)
            owner = None if sequence is None else t.tables.find_oid(sequence.table)
        if sequence is None or owner is None:
            raise _not_a_sequence(oid, table)
        if not self._facts.superuser and owner.owner != self._facts.role_oid:
            raise InsufficientPrivilege(f"permission denied for sequence {sequence.name}")
        return sequence


def _not_a_sequence(oid: int, table: LakeTable | None) -> WrongObjectType | UndefinedTable:
    if table is None:
        return UndefinedTable(f"could not open relation with OID {oid}")
    kind = "partitioned tables" if table.partition_key is not None else "tables"
    return WrongObjectType(
        f'cannot open relation "{table.name}"',
        detail=f"This operation is not supported for {kind}.",
    )
