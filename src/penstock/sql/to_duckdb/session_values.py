"""Values that a query takes from its session: user, database, time (ExecEvalSQLValueFunction).

During a statement they are constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from penstock.errors import UndefinedObject
from penstock.sql.to_duckdb.duckdb_values import Value, constant, refused
from penstock.sql.typed.query_nodes import SessionValue


@dataclass(frozen=True, slots=True)
class SessionValues:
    """Facts about the session. ``user``: "" if the role ``role_oid`` no longer exists.

    ``started``: the transaction's start, in UTC, which is the time zone of every session.
    """

    user: str
    role_oid: int
    database: str
    started: datetime

    def value(self, node: SessionValue) -> Value:
        """Return a constant. Raises FeatureNotSupported, UndefinedObject."""
        return constant(self._text(node.name), node.type)

    def _text(self, name: str) -> str:
        match name:
            case "current_date":
                return self.started.date().isoformat()
            case "localtimestamp":
                return self.started.replace(tzinfo=None).isoformat(" ")
            case "current_timestamp" | "now" | "transaction_timestamp":
                return self.started.isoformat(" ")
            case "current_catalog" | "current_database":
                return self.database
            case "current_user" | "session_user" | "user" | "current_role":
                if not self.user:
                    raise UndefinedObject(f"invalid role OID: {self.role_oid}")
                return self.user
        raise refused(name.upper())
