"""CREATE, ALTER and DROP SUBSCRIPTION (gram.y, CreateSubscriptionStmt and its neighbours).

In: a cursor behind the word SUBSCRIPTION. Out: a statement. REFRESH TABLE is ours; all forms of
PostgreSQL 18 are read to their end, so that a mistake in them is a syntax error; those that
Penstock does not have yet raise FeatureNotSupported by name, and become a statement of their own
later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.sql.cursor import Cursor, not_supported
from penstock.sql.object_names import qualified_name
from penstock.sql.statements import (
    AlterSubscriptionConnection,
    AlterSubscriptionEnabled,
    AlterSubscriptionRefresh,
    AlterSubscriptionSet,
    CreateSubscription,
    DropSubscription,
    Statement,
)
from penstock.sql.subscription_statements import (
    AlterSubscriptionPublications,
    AlterSubscriptionRefreshTables,
    RenameSubscription,
)

_ALTER: Final = "ALTER SUBSCRIPTION ..."


def create_subscription(cursor: Cursor) -> CreateSubscription:
    """name CONNECTION Sconst PUBLICATION name_list opt_definition"""
    name = cursor.name()
    cursor.expect("connection")
    conninfo = cursor.string()
    cursor.expect("publication")
    publications = cursor.name_list()
    options = cursor.opt_definition()
    cursor.expect_end()
    return CreateSubscription(name, conninfo, publications, options, notices=cursor.notices)


def drop_subscription(cursor: Cursor) -> DropSubscription:
    """[IF EXISTS] name opt_drop_behavior"""
    missing_ok = cursor.accept("if", "exists")
    name = cursor.name()
    if not cursor.accept("cascade"):
        cursor.accept("restrict")
    cursor.expect_end()
    return DropSubscription(name, missing_ok, notices=cursor.notices)


def alter_subscription(cursor: Cursor) -> Statement:
    """name, and what to do with it"""
    name = cursor.name()
    form = _FORMS.get(cursor.word() or "")
    if form is None:
        raise cursor.syntax_error()
    cursor.take()
    return form(cursor, name)


def _enable(cursor: Cursor, name: str) -> Statement:
    cursor.expect_end()
    return AlterSubscriptionEnabled(name, True, notices=cursor.notices)


def _disable(cursor: Cursor, name: str) -> Statement:
    cursor.expect_end()
    return AlterSubscriptionEnabled(name, False, notices=cursor.notices)


def _connection(cursor: Cursor, name: str) -> Statement:
    conninfo = cursor.string()
    cursor.expect_end()
    return AlterSubscriptionConnection(name, conninfo, notices=cursor.notices)


def _refresh(cursor: Cursor, name: str) -> Statement:
    if cursor.accept("table"):
        return _refresh_tables(cursor, name)
    cursor.expect("publication")
    options = cursor.opt_definition()
    cursor.expect_end()
    return AlterSubscriptionRefresh(name, options, notices=cursor.notices)


def _refresh_tables(cursor: Cursor, name: str) -> Statement:
    """qualified_name_list; ours"""
    tables = [qualified_name(cursor)]
    while cursor.accept_symbol(","):
        tables.append(qualified_name(cursor))
    cursor.expect_end()
    return AlterSubscriptionRefreshTables(name, tuple(tables), notices=cursor.notices)


def _set(cursor: Cursor, name: str) -> Statement:
    if cursor.word() == "publication":
        return _change_publications(cursor, name, "SET")
    options = cursor.definition()
    cursor.expect_end()
    return AlterSubscriptionSet(name, options, notices=cursor.notices)


def _add(cursor: Cursor, name: str) -> Statement:
    return _change_publications(cursor, name, "ADD")


def _drop(cursor: Cursor, name: str) -> Statement:
    return _change_publications(cursor, name, "DROP")


def _change_publications(cursor: Cursor, name: str, verb: str) -> Statement:
    cursor.expect("publication")
    publications = cursor.name_list()
    options = cursor.opt_definition()
    cursor.expect_end()
    return AlterSubscriptionPublications(name, verb, publications, options, notices=cursor.notices)


def _skip(cursor: Cursor, _name: str) -> Statement:
    cursor.definition()
    cursor.expect_end()
    raise not_supported(f"{_ALTER} SKIP")


def _owner(cursor: Cursor, _name: str) -> Statement:
    cursor.expect("to")
    if cursor.word() in ("current_role", "current_user", "session_user"):
        cursor.take()
    else:
        cursor.name()
    cursor.expect_end()
    raise not_supported(f"{_ALTER} OWNER TO")


def _rename(cursor: Cursor, name: str) -> Statement:
    cursor.expect("to")
    new_name = cursor.name()
    cursor.expect_end()
    return RenameSubscription(name, new_name, notices=cursor.notices)


_FORMS: Final[dict[str, Callable[[Cursor, str], Statement]]] = {
    "enable": _enable,
    "disable": _disable,
    "connection": _connection,
    "refresh": _refresh,
    "set": _set,
    "add": _add,
    "drop": _drop,
    "skip": _skip,
    "owner": _owner,
    "rename": _rename,
}
