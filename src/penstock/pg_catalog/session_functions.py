"""Functions about the session and its server (misc.c, varlena.c, guc_funcs.c).

In: who asks. Out: what PostgreSQL would tell. ``set_config`` goes to the session.
"""

from __future__ import annotations

import datetime
import decimal
from typing import Final

from penstock.errors import UndefinedObject
from penstock.lsn import Lsn
from penstock.pg_catalog.privileges import role_named
from penstock.pg_catalog.relations import schema_oids
from penstock.pg_catalog.session_facts import SessionFacts
from penstock.pg_catalog.snapshot import CatalogSnapshot
from penstock.sql.text.quoting import quote_identifier
from penstock.sqlstate import NullValueNotAllowed

_ENCODINGS: Final = {0: "SQL_ASCII", 6: "UTF8", 8: "LATIN1"}


class SessionFunctions:
    """For one session."""

    def __init__(self, snapshot: CatalogSnapshot, facts: SessionFacts) -> None:
        self._snapshot = snapshot
        self._facts = facts
        self._changed: dict[str, str] = {}

    def version(self) -> str:
        number = self._facts.settings.get("server_version", f"{self._facts.version}.0")
        return f"PostgreSQL {number} (Penstock)"

    def current_database(self) -> str:
        return self._facts.database

    current_catalog = current_database

    def current_schema(self) -> str | None:
        known = schema_oids(self._snapshot)
        return next((name for name in self._facts.search_path if name in known), None)

    def current_schemas(self, implicit: bool) -> list[str]:
        known = schema_oids(self._snapshot)
        named = [name for name in self._facts.search_path if name in known]
        if implicit and "pg_catalog" not in named:
            return ["pg_catalog", *named]
        return named

    def current_user(self) -> str:
        if not self._facts.user:
            raise UndefinedObject(f"invalid role OID: {self._facts.role_oid}")
        return self._facts.user

    session_user = current_user
    user = current_user
    current_role = current_user

    def pg_backend_pid(self) -> int:
        return self._facts.pid

    def pg_is_in_recovery(self) -> bool:
        return False

    def pg_advisory_unlock_all(self) -> str:
        return ""  # there are no such locks

    def pg_my_temp_schema(self) -> int:
        return 0

    def pg_is_other_temp_schema(self, _: int) -> bool:
        return False

    def current_setting(self, name: str, missing_ok: bool | None) -> str | None:
        key = name.lower()
        if key in self._changed:
            return self._changed[key]
        value = self._facts.settings.get(key)
        if value is None and not missing_ok:
            raise UndefinedObject(f'unrecognized configuration parameter "{name}"')
        return value

    def set_config(self, name: str | None, value: str | None, is_local: bool | None) -> str:
        if name is None:
            raise NullValueNotAllowed("SET requires parameter name")
        set_config = self._facts.set_config
        now = value or "" if set_config is None else set_config(name, value, bool(is_local))
        self._changed[name.lower()] = now
        return now

    def pg_encoding_to_char(self, encoding: int) -> str:
        return _ENCODINGS.get(encoding, "")

    def pg_char_to_encoding(self, name: str) -> int:
        return next((n for n, known in _ENCODINGS.items() if known == name.upper()), -1)

    def pg_client_encoding(self) -> str:
        return self._facts.settings.get("client_encoding", "UTF8")

    def getdatabaseencoding(self) -> str:
        return "UTF8"

    def quote_ident(self, name: str) -> str:
        return quote_identifier(name)

    def now(self) -> datetime.datetime:
        return self._facts.started.replace(tzinfo=None)

    transaction_timestamp = now

    def statement_timestamp(self) -> datetime.datetime:
        return self._facts.statement_started.replace(tzinfo=None)

    def clock_timestamp(self) -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)

    def pg_tablespace_location(self, _: int) -> str:
        return ""

    # Positions

    def pg_lsnin(self, text: str) -> int:
        return int(Lsn.parse(text.strip()))

    def pg_lsnout(self, position: int) -> str:
        return str(Lsn(position))

    def pg_current_wal_lsn(self) -> int:
        return int(self._snapshot.current_lsn)

    pg_current_wal_flush_lsn = pg_current_wal_lsn
    pg_current_wal_insert_lsn = pg_current_wal_lsn

    def pg_last_wal_receive_lsn(self) -> int | None:
        return None  # no standby

    pg_last_wal_replay_lsn = pg_last_wal_receive_lsn

    def pg_wal_lsn_diff(self, left: int, right: int | None) -> decimal.Decimal | None:
        return None if right is None else decimal.Decimal(left - right)

    # Rights, as far as a lake has them

    def has_schema_privilege(self, *_: object) -> bool:
        return True

    def has_database_privilege(self, *_: object) -> bool:
        return True

    def pg_has_role(self, first: str, second: str, third: str | None) -> bool:
        """(member, role, privilege) or (role, privilege); no role is a member of another."""
        member, name = (self._facts.user, first) if third is None else (first, second)
        found, role = role_named(self._snapshot, member), role_named(self._snapshot, name)
        return found is not None and (found.superuser or found == role)
