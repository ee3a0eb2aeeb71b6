"""A node of the raw parse tree; every field of it is read or refused.

Readers take the fields of the node's JSON one by one. A field that nobody has read is a clause that
would be lost, so ``done`` refuses it by name. Locations in the text are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from penstock.errors import FeatureNotSupported

Json = Mapping[str, Any]

_PLACES: Final = frozenset(
    {
        "location",
        "list_start",
        "list_end",
        "rexpr_list_start",
        "rexpr_list_end",
        "stmt_location",
        "stmt_len",
    }
)


class RawNode:
    """A node. ``kind``: its type in parsenodes.h, such as ``SelectStmt``; ``place``: location."""

    def __init__(self, kind: str, fields: Json) -> None:
        self.kind = kind
        self.place: int = fields.get("location", 0)
        self._fields = {name: value for name, value in fields.items() if name not in _PLACES}

    @classmethod
    def of(cls, node: Json) -> RawNode:
        """Make a node from a dict whose only key is the node's kind."""
        ((kind, fields),) = node.items()
        return cls(kind, fields)

    def take(self, name: str) -> Any:
        """Take a field; None if it is missing, which is PostgreSQL's zero."""
        return self._fields.pop(name, None)

    def node(self, name: str) -> Json | None:
        """Take a field that holds a node."""
        found: Json | None = self._fields.pop(name, None)
        return found

    def nodes(self, name: str) -> Sequence[Json]:
        """Take a field that holds a list of nodes."""
        found: Sequence[Json] = self._fields.pop(name, ())
        return found

    def names(self, name: str) -> tuple[str, ...]:
        """Take a field that holds a list of String."""
        return tuple(string(item) for item in self.nodes(name))

    def ignore(self, *names: str) -> None:
        """Ignore fields that other fields determine."""
        for name in names:
            self._fields.pop(name, None)

    def expect(self, name: str, *values: object) -> None:
        """Take a field, which must have one of these values. Raises FeatureNotSupported."""
        value = self.take(name)
        if value not in values:
            raise FeatureNotSupported(f"{self.kind} with {name} {value} is not supported")

    def done(self) -> None:
        """Check that every field was taken. Raises FeatureNotSupported."""
        for name in self._fields:
            raise FeatureNotSupported(f"{_shown(name)} is not supported here")


def string(node: Json) -> str:
    """Return the value of a String."""
    ((kind, fields),) = node.items()
    if kind != "String":
        raise FeatureNotSupported(f"{kind} in place of a name is not supported")
    return str(fields.get("sval", ""))


_CLAUSES: Final = {
    "accessMethod": "USING",
    "agg_within_group": "WITHIN GROUP",
    "collClause": "COLLATE",
    "compression": "COMPRESSION",
    "cycle_clause": "CYCLE",
    "deferrable": "DEFERRABLE",
    "fromClause": "FROM",
    "inhRelations": "INHERITS",
    "initdeferred": "INITIALLY DEFERRED",
    "intoClause": "SELECT ... INTO",
    "lockingClause": "FOR UPDATE and FOR SHARE",
    "ofTypename": "OF",
    "onConflictClause": "ON CONFLICT",
    "returningClause": "RETURNING",
    "returningList": "RETURNING",
    "schemaElts": "a schema with elements",
    "search_clause": "SEARCH",
    "setof": "SETOF",
    "storage_name": "STORAGE",
    "tableSpace": "TABLESPACE",
    "tablespacename": "TABLESPACE",
    "usingClause": "USING",
    "whereClause": "WHERE",
    "withClause": "WITH",
}


def _shown(name: str) -> str:
    return _CLAUSES.get(name, name)
