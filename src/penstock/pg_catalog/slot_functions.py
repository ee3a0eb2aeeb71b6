"""Slots by SQL functions (slotfuncs.c): a user makes, reads, moves and drops them with SELECT.

The functions' effects last even if the query fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from penstock.errors import FeatureNotSupported
from penstock.lsn import Lsn
from penstock.pg_catalog import PythonFunction
from penstock.pg_catalog.functions import OpenRows
from penstock.pg_catalog.rows import catalogs
from penstock.pg_catalog.snapshot import SessionFacts
from penstock.sql.to_duckdb.catalog_functions import VARIADIC, CatalogFunction, TableFunction
from penstock.sqlstate import NullValueNotAllowed, QueryCanceled
from penstock.walsender.logical_reading import (
    LogicalReading,
    SlotCall,
    SlotRequest,
    slot_options,
)
from penstock.walsender.slot_checks import check_replication
from penstock.walsender.slots import Slots

_CREATE: Final = "pg_create_logical_replication_slot"
_COPY: Final = "pg_copy_logical_replication_slot"
_ADVANCE: Final = "pg_replication_slot_advance"
_DROP: Final = "pg_drop_replication_slot"
_ALL: Final = "pg_get_replication_slots"
_VIEW: Final = "pg_replication_slots"
_OMITTED: Final = "\x01"
_LEFT_OUT: Final = "chr(1)"
"""The SQL that the copy function gets for an omitted argument: no name of a plugin."""
_NAME_SIZE: Final = 63
_REFUSED: Final = {
    "pg_create_physical_replication_slot": ("name", "bool", "bool"),
    "pg_copy_physical_replication_slot": ("name", "name", "bool"),
}

_READ: Final = {
    "pg_logical_slot_get_changes": (False, True),
    "pg_logical_slot_peek_changes": (False, False),
    "pg_logical_slot_get_binary_changes": (True, True),
    "pg_logical_slot_peek_binary_changes": (True, False),
}
"""The functions that read a slot: name -> (whether it returns bytes, whether it moves the slot)."""

_POSITIONS: Final = {
    _CREATE: (("name", "name", "bool", "bool", "bool"), "lsn", "NULL"),
    _COPY: (("name", "name", "text", "text"), "lsn", _LEFT_OUT),
    _ADVANCE: (("name", "pg_lsn"), "end_lsn", "NULL"),
}
"""The functions that return a slot's name and a position: name -> (arguments, the position's name,
SQL for omitted arguments)."""

SLOT_FUNCTIONS: Final = frozenset({_CREATE, _COPY, _ADVANCE, _DROP, _ALL, *_READ, *_REFUSED})

_PARTS: Final = (
    "SELECT split_part(s.r, ' ', 1) AS o1, CAST(split_part(s.r, ' ', 2) AS UBIGINT) AS o2 "
    "FROM (SELECT {}) AS s WHERE s.r IS NULL OR s.r <> ''"
)
"""The query of a function in FROM. Its condition is always true: without a condition, DuckDB would
not call the function if the query reads none of its columns."""


class SlotFunctions:
    """Functions of slots, for one query. Functions in FROM call ``<name>_row``, which returns name
    and position in one text."""

    def __init__(
        self,
        slots: Slots,
        facts: SessionFacts,
        database_oid: int,
        reading: LogicalReading | None = None,
    ) -> None:
        """``reading`` reads slots; None if nothing decodes."""
        self._reading = reading
        self._slots = slots
        self._facts = facts
        self._database = database_oid
        self._calls: list[SlotCall] = []
        """This query's calls that return rows."""

    def functions(self) -> Mapping[str, PythonFunction]:
        """Return the functions by name."""
        found = {_DROP: PythonFunction(CatalogFunction(_DROP, ("name",), "void"), self._drop)}
        calls: dict[str, Callable[..., str | None]] = {
            _CREATE: self._create,
            _COPY: self._copy,
            _ADVANCE: self._advance,
        }
        for name, (arguments, _, left_out) in _POSITIONS.items():
            record = CatalogFunction(name, arguments, "record", left_out)
            row = CatalogFunction(f"{name}_row", arguments, "text", left_out)
            found[name] = PythonFunction(record, partial(_record, calls[name]))
            found[row.name] = PythonFunction(row, calls[name])
        for name, refused in _REFUSED.items():
            function = CatalogFunction(name, refused, "text")
            found[name] = PythonFunction(function, _refuse(name), strict=False)
        return found

    def table_functions(self) -> Mapping[str, TableFunction]:
        """Return the functions that return rows of several columns."""
        positions = [
            TableFunction(
                name,
                arguments,
                (("slot_name", "name"), (position, "pg_lsn")),
                _PARTS.format(f"pg__{name}_row({_numbered(len(arguments))}) AS r"),
                functions=(f"{name}_row",),
                left_out=left_out,
            )
            for name, (arguments, position, left_out) in _POSITIONS.items()
        ]
        read = [
            TableFunction(
                name,
                ("name", "pg_lsn", "int4", VARIADIC),
                (("lsn", "pg_lsn"), ("xid", "xid"), ("data", "bytea" if binary else "text")),
                None,
            )
            for name, (binary, _) in _READ.items()
        ]
        every = catalogs(self._facts.version)[_VIEW]
        shown = tuple(column for column in every if column[0] != "database")
        cells = ", ".join(f's."{name}" AS o{n}' for n, (name, _) in enumerate(shown, 1))
        slots = TableFunction(
            _ALL, (), shown, f'SELECT {cells} FROM cat."{_VIEW}" AS s', tables=(_VIEW,)
        )
        return {function.name: function for function in (*positions, *read, slots)}

    def open_rows(self) -> Mapping[str, OpenRows]:
        """Return the functions that return an output plugin's writes as rows."""
        return {name: partial(self._open, name) for name in _READ}

    def _open(
        self,
        function: str,
        name: str | None,
        upto_lsn: int | None,
        upto_nchanges: int | None,
        options: Sequence[str | None] | None,
    ) -> SlotCall:
        self._check()
        if name is None:
            raise NullValueNotAllowed("slot name must not be null")
        binary, confirm = _READ[function]
        if self._reading is None:
            raise FeatureNotSupported(
                f"{function} needs a running node", hint="Start it with penstock start."
            )
        request = SlotRequest(
            function,
            binary,
            confirm,
            _as_name(name),
            None if upto_lsn is None else Lsn(int(upto_lsn)),
            upto_nchanges,
            slot_options(options),
        )
        pid = self._facts.pid
        call = self._reading.open(
            request, pid, self._check_cancelled, self._facts.notify, self._calls
        )
        self._calls.append(call)
        return call

    def _check_cancelled(self) -> None:
        if self._facts.cancelled():
            raise QueryCanceled.by_user()

    def _create(
        self,
        name: str,
        plugin: str | None,
        temporary: bool | None,
        two_phase: bool | None,
        failover: bool | None,
    ) -> str | None:
        if plugin is None or temporary is None or two_phase is None or failover is None:
            return None
        self._check()
        name = _as_name(name)
        position = self._slots.create(
            name,
            _as_name(plugin),
            pid=self._facts.pid,
            database=self._database,
            temporary=temporary,
            two_phase=two_phase,
            failover=failover,
            begin=self._facts.check_no_writes,
            warn=self._facts.notify,
        )
        return f"{name} {int(position.lsn)}"

    def _copy(
        self, source: str, name: str | None, temporary: str | None, plugin: str | None
    ) -> str | None:
        if name is None or temporary is None or plugin is None:
            return None
        self._check()
        name = _as_name(name)
        lsn = self._slots.copy(
            _as_name(source),
            name,
            pid=self._facts.pid,
            temporary=None if temporary == _OMITTED else temporary == "true",
            plugin=None if plugin == _OMITTED else _as_name(plugin),
            begin=self._facts.check_no_writes,
            warn=self._facts.notify,
        )
        return f"{name} {int(lsn)}"

    def _advance(self, name: str, upto: int | None) -> str | None:
        if upto is None:
            return None
        self._check(uses=False)
        name = _as_name(name)
        facts = self._facts
        end = self._slots.advance(name, Lsn(upto), pid=facts.pid, version=facts.version)
        return f"{name} {int(end)}"

    def _drop(self, name: str) -> str:
        self._check()
        self._slots.drop(_as_name(name), pid=self._facts.pid, wait=False, cancelled=lambda: False)
        return ""

    def _check(self, *, uses: bool = True) -> None:
        check_replication(
            superuser=self._facts.superuser,
            replication=self._facts.replication,
            version=self._facts.version,
        )
        if uses:
            self._slots.check_requirements(self._facts.version)


def _record(call: Callable[..., str | None], *arguments: Any) -> str | None:
    """Print name and position as a composite value."""
    row = call(*arguments)
    if row is None:
        return None
    name, _, lsn = row.partition(" ")
    return f"({name},{Lsn(int(lsn))})"


def _numbered(count: int) -> str:
    return ",".join(f"{{{number}}}" for number in range(count))


def _as_name(text: str) -> str:
    """Cast a text to name: cut it at 63 bytes, between characters."""
    return text.encode()[:_NAME_SIZE].decode(errors="ignore")


def _refuse(name: str) -> Callable[..., str]:
    def call(*_: object) -> str:
        raise FeatureNotSupported(
            f"{name} is not supported",
            hint="Slots of the plugin pgoutput are read by START_REPLICATION.",
        )

    return call
