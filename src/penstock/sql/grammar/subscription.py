"""Statements about subscriptions (parsenodes.h, CreateSubscriptionStmt and its neighbours).

REFRESH TABLE is Penstock's own; ``parser`` makes its nodes. No statement shows a connection string
in its repr.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from penstock.sql.grammar.names import (
    Readers,
    cascades,
    def_elems,
    not_supported,
    options,
    role_spec,
)
from penstock.sql.grammar.parsenodes import DefElem, RangeVar, RoleSpec, Statement
from penstock.sql.grammar.raw_node import RawNode, string
from penstock.sql.grammar.source import Source


@dataclass(frozen=True, slots=True)
class CreateSubscription(Statement):
    """CREATE SUBSCRIPTION name CONNECTION 'conninfo' PUBLICATION p [, ...] [WITH (...)]."""

    name: str
    conninfo: str = field(repr=False)
    publications: tuple[str, ...]
    options: tuple[DefElem, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterSubscriptionConnection(Statement):
    """ALTER SUBSCRIPTION name CONNECTION 'conninfo'."""

    name: str
    conninfo: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class AlterSubscriptionEnabled(Statement):
    """ALTER SUBSCRIPTION name ENABLE | DISABLE."""

    name: str
    enabled: bool


@dataclass(frozen=True, slots=True)
class AlterSubscriptionRefresh(Statement):
    """ALTER SUBSCRIPTION name REFRESH PUBLICATION [WITH (...)]."""

    name: str
    options: tuple[DefElem, ...] = ()


@dataclass(frozen=True, slots=True)
class AlterSubscriptionSet(Statement):
    """ALTER SUBSCRIPTION name SET (...)."""

    name: str
    options: tuple[DefElem, ...]


@dataclass(frozen=True, slots=True)
class AlterSubscriptionSkip(Statement):
    """ALTER SUBSCRIPTION name SKIP (...)."""

    name: str
    options: tuple[DefElem, ...]


@dataclass(frozen=True, slots=True)
class DropSubscription(Statement):
    """DROP SUBSCRIPTION [IF EXISTS] name [CASCADE | RESTRICT]; the last has no effect."""

    name: str
    missing_ok: bool = False


@dataclass(frozen=True, slots=True)
class AlterSubscriptionRefreshTables(Statement):
    """ALTER SUBSCRIPTION name REFRESH TABLE table [, ...]; PostgreSQL does not have it."""

    name: str
    tables: tuple[RangeVar, ...]


@dataclass(frozen=True, slots=True)
class RenameSubscription(Statement):
    """ALTER SUBSCRIPTION name RENAME TO new_name."""

    name: str
    new_name: str


@dataclass(frozen=True, slots=True)
class AlterSubscriptionOwner(Statement):
    """ALTER SUBSCRIPTION name OWNER TO owner."""

    name: str
    owner: RoleSpec


@dataclass(frozen=True, slots=True)
class AlterSubscriptionPublications(Statement):
    """ALTER SUBSCRIPTION name SET | ADD | DROP PUBLICATION names [WITH (...)].

    ``verb``: in capital letters.
    """

    name: str
    verb: str
    publications: tuple[str, ...]
    options: tuple[DefElem, ...] = ()


_KIND: Final = "ALTER_SUBSCRIPTION_"
_PUBLICATION: Final = "_PUBLICATION"


def _create(raw: RawNode, _source: Source) -> CreateSubscription:
    return CreateSubscription(
        raw.take("subname"),
        raw.take("conninfo") or "",
        raw.names("publication"),
        options(raw),
    )


def _alter(raw: RawNode, _source: Source) -> Statement:
    name, kind = raw.take("subname"), raw.take("kind").removeprefix(_KIND)
    match kind:
        case "CONNECTION":
            return AlterSubscriptionConnection(name, raw.take("conninfo") or "")
        case "ENABLED":
            ((_, enabled),) = def_elems(raw)
            return AlterSubscriptionEnabled(name, enabled == {"Boolean": {"boolval": True}})
        case "REFRESH":
            return AlterSubscriptionRefresh(name, options(raw))
        case "OPTIONS":
            return AlterSubscriptionSet(name, options(raw))
        case "SKIP":
            return AlterSubscriptionSkip(name, options(raw))
        case "SET_PUBLICATION" | "ADD_PUBLICATION" | "DROP_PUBLICATION":
            verb = kind.removesuffix(_PUBLICATION)
            return AlterSubscriptionPublications(name, verb, raw.names("publication"), options(raw))
    raise not_supported(f"ALTER SUBSCRIPTION ... {kind}")


def _owner(raw: RawNode, _source: Source) -> AlterSubscriptionOwner:
    return AlterSubscriptionOwner(string(raw.take("object")), role_spec(raw.take("newowner")))


def _rename(raw: RawNode, _source: Source) -> RenameSubscription:
    raw.ignore("relationType", "behavior")
    return RenameSubscription(string(raw.take("object")), raw.take("newname"))


def _drop(raw: RawNode, _source: Source) -> DropSubscription:
    cascades(raw)
    return DropSubscription(raw.take("subname"), bool(raw.take("missing_ok")))


READERS: Final[Readers] = {
    "CreateSubscriptionStmt": _create,
    "AlterSubscriptionStmt": _alter,
    "AlterOwnerStmt OBJECT_SUBSCRIPTION": _owner,
    "RenameStmt OBJECT_SUBSCRIPTION": _rename,
    "DropSubscriptionStmt": _drop,
}
