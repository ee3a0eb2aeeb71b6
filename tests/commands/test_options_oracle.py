"""The same statements to PostgreSQL 18 and to our commands: same error, or the same notices.

With ``connect = false``, or a publisher that cannot be reached, so that only checks are at work.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.errors import Diagnostic

from fix_postgres import Database
from penstock.catalog import Catalog
from penstock.commands import execute
from penstock.errors import PenstockError
from penstock.sql import parse
from penstock.walreceiver.publisher import Publisher

Message = tuple[str, str, str, str | None]
Outcome = tuple[Message, ...]
NOWHERE = "host=127.0.0.1 port=1 dbname=x"


@pytest.fixture(scope="module")
def module_database(postgres: Any) -> Iterator[Database]:
    """A database of the module's own: subscriptions belong to one."""
    with psycopg.connect(postgres.conninfo(), autocommit=True) as admin:
        admin.execute("CREATE DATABASE options_oracle")
        yield Database(postgres, "options_oracle")
        admin.execute("DROP DATABASE options_oracle WITH (FORCE)")


class Both:
    """PostgreSQL and a catalog of ours, both without subscriptions at first."""

    def __init__(self, database: Database, catalog: Catalog) -> None:
        self._session = psycopg.connect(database.conninfo, autocommit=True)
        self._session.add_notice_handler(self._noticed)
        self._notices: list[Message] = []
        self._catalog = catalog

    def close(self) -> None:
        self._session.close()

    def _noticed(self, diagnostic: Diagnostic) -> None:
        self._notices.append(_message(diagnostic))

    def clear(self) -> None:
        for (name,) in self._session.execute("SELECT quote_ident(subname) FROM pg_subscription"):
            for what in ("ALTER {} DISABLE", "ALTER {} SET (slot_name = NONE)", "DROP {}"):
                self._session.execute(what.format(f"SUBSCRIPTION {name}"))
        with self._catalog.write() as t:
            for subscription in t.subscriptions.all():
                t.subscriptions.delete(subscription.oid)

    def theirs(self, text: str) -> Outcome:
        self._notices.clear()
        try:
            self._session.execute(text)
        except psycopg.Error as error:
            return (_message(error.diag),)
        return tuple(self._notices)

    def ours(self, text: str) -> Outcome:
        try:
            result = execute(parse(text), self._catalog, Publisher.connect)
        except PenstockError as error:
            return (("ERROR", error.sqlstate, error.message, error.hint),)
        return tuple((n.severity, n.sqlstate, n.message, n.hint) for n in result.notices)


def _message(diagnostic: Diagnostic) -> Message:
    return (
        str(diagnostic.severity),
        str(diagnostic.sqlstate),
        str(diagnostic.message_primary).strip(),
        diagnostic.message_hint,
    )


@pytest.fixture(scope="module")
def pair(module_database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    path: Path = tmp_path_factory.mktemp("catalog") / "state.db"
    with Catalog.create(f"sqlite:///{path}") as catalog:
        both = Both(module_database, catalog)
        yield both
        both.clear()
        both.close()


@pytest.fixture
def both(pair: Both) -> Both:
    pair.clear()
    return pair


def create(options: str, *, name: str = "s", conninfo: str = NOWHERE, p: str = "p") -> str:
    return f"CREATE SUBSCRIPTION {name} CONNECTION '{conninfo}' PUBLICATION {p} WITH ({options})"


OPTIONS = [
    "connect = false",
    "connect = false, enabled = true", "connect = false, enabled = false",
    "connect = false, create_slot", "connect = false, create_slot = off",
    "connect = false, copy_data = on", "connect = false, copy_data = 0",
    "enabled = true, create_slot = true, copy_data = true, connect = false",
    "slot_name = NONE", "slot_name = 'none'", "slot_name = NONE, connect = false",
    "slot_name = NONE, enabled = false", "slot_name = NONE, create_slot = false",
    "slot_name = NONE, enabled = true", "slot_name = NONE, enabled = false, create_slot = true",
    "slot_name = NONE, enabled, create_slot", "slot_name = NONE, connect = false, enabled = false",
    "slot_name = ''", "slot_name = A", "slot_name = 'A'", "slot_name = 'a-b'", "slot_name = é",
    f"slot_name = '{'a' * 63}', connect = false", f"slot_name = '{'a' * 64}'", "slot_name = 1",
    "slot_name = 1.5", "slot_name = -1", "slot_name = a.b", "slot_name = int", "slot_name",
    "slot_name = 'NONE'", "slot_name = NONE, slot_name = a",
    "connect = 2", "connect = yes", "connect = 't'", "connect = TRUE, connect = false",
    "connect = 'FALSE'", "connect = Off", "connect = 1.0", "connect = none", "connect = -0",
    "synchronous_commit", "synchronous_commit = sometimes", "synchronous_commit = 2",
    "binary = maybe", "binary, connect = false", "binary = 1, connect = false",
    "streaming = maybe", "streaming = 2", "streaming = off, connect = false",
    "streaming = 0, connect = false", "two_phase = x", "two_phase = false, connect = false",
    "disable_on_error = x", "disable_on_error = 0, connect = false",
    "disable_on_error, connect = false", "disable_on_error = on, connect = false",
    "password_required = x", "password_required, connect = false",
    "password_required = false, connect = false", "run_as_owner = x",
    "run_as_owner = false, connect = false", "failover = x", "failover = off, connect = false",
    "run_as_owner, connect = false", "failover, connect = false", "failover = 2",
    "failover, connect = false, slot_name = NONE", "failover, failover", "origin = any, origin = x",
    "origin", "origin = some", "origin = any, connect = false", "origin = 'ANY', connect = false",
    "origin = none, connect = false", "origin = 'None', connect = false", "origin = ''",
    "lsn = '0/1'", "refresh = true", "foo", "foo = bar", '"Connect" = false', "CONNECT = false",
    "connect = false, foo", "connect = 3, foo", "foo, connect = 3", "enabled = 2, slot_name = A",
]  # fmt: skip


SKIPS = [
    "(lsn = '0/12345')", "(lsn = NONE)", "(lsn = 'none')", "(lsn = none)", "(lsn = 'NONE')",
    "(lsn = '0/0')", "(lsn = '00/0')", "(lsn = 'x')", "(lsn = '')", "(lsn = 1)", "(lsn = ' 0/1')",
    "(lsn)", "(lsn = '0/1', lsn = '0/1')", "(foo = 1)", "(lsn = '0/1', foo = 1)", "()", "",
    "(lsn = '1/100000000')", "(enabled = false)", "(disable_on_error = true)",
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS)
def test_create_options(options: str, both: Both) -> None:
    text = create(options)
    assert _comparable(both.ours(text)) == _comparable(both.theirs(text))


_PIECES = st.sampled_from(
    [
        *("connect = false", "connect", "enabled = false", "enabled", "create_slot = false"),
        *("create_slot", "copy_data = false", "copy_data", "slot_name = NONE", "slot_name = a"),
        *("slot_name = 'A b'", "binary = 2", "origin = any", "streaming = off", "foo = 1"),
    ]
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(_PIECES, min_size=1, max_size=5))
def test_combinations(both: Both, pieces: list[str]) -> None:
    both.clear()
    text = create(", ".join(pieces))
    assert _comparable(both.ours(text)) == _comparable(both.theirs(text))


@pytest.mark.parametrize(
    "script",
    [
        [create("connect = false"), create("connect = false")],
        [create("connect = false"), create("connect = false", conninfo="foo")],
        [create("connect = false", conninfo="foo", p="p, p")],
        [create("connect = false", conninfo="foo bar=1")],
        [create("connect = false", conninfo="nonsense=1")],
        [create("connect = false", conninfo="")],
        [create("connect = false", p="p, q, p")],
        [create("connect = false", p='p, "P"')],
        [create("connect = false", name='"Odd name"')],
        [create("connect = false", name="x" * 70)],
        [create("create_slot = false")],
        ["ALTER SUBSCRIPTION s ENABLE"],
        ["ALTER SUBSCRIPTION s CONNECTION 'foo'"],
        ["ALTER SUBSCRIPTION s SET (foo = 1)"],
        ["ALTER SUBSCRIPTION s SKIP (lsn = 'x')"],
        ["ALTER SUBSCRIPTION s REFRESH PUBLICATION WITH (foo = 1)"],
        ["DROP SUBSCRIPTION s"],
        ["DROP SUBSCRIPTION IF EXISTS s"],
        *(
            [create("connect = false"), *statements]
            for statements in (
                ["ALTER SUBSCRIPTION s ENABLE", "ALTER SUBSCRIPTION s ENABLE"],
                ["ALTER SUBSCRIPTION s DISABLE", "ALTER SUBSCRIPTION s DISABLE"],
                ["ALTER SUBSCRIPTION s SET (slot_name = NONE)", "ALTER SUBSCRIPTION s ENABLE"],
                ["ALTER SUBSCRIPTION s ENABLE", "ALTER SUBSCRIPTION s SET (slot_name = NONE)"],
                ["ALTER SUBSCRIPTION s ENABLE", "ALTER SUBSCRIPTION s SET (slot_name = b)"],
                ["ALTER SUBSCRIPTION s SET (slot_name = 'A')"],
                ["ALTER SUBSCRIPTION s SET (slot_name = a, slot_name = a)"],
                ["ALTER SUBSCRIPTION s SET (connect = false)"],
                ["ALTER SUBSCRIPTION s SET (enabled = false)"],
                ["ALTER SUBSCRIPTION s SET (copy_data = false)"],
                ["ALTER SUBSCRIPTION s SET (binary = on, origin = any)"],
                ["ALTER SUBSCRIPTION s SET (binary = x)"],
                ["ALTER SUBSCRIPTION s SET (disable_on_error)"],
                ["ALTER SUBSCRIPTION s SET (disable_on_error = 2)"],
                ["ALTER SUBSCRIPTION s SET (lsn = '0/1')"],
                *([f"ALTER SUBSCRIPTION s SKIP {options}"] for options in SKIPS),
                ["ALTER SUBSCRIPTION s SET (origin = none, password_required = false)"],
                ["ALTER SUBSCRIPTION s SET (origin = some)"],
                ["ALTER SUBSCRIPTION s SET (run_as_owner, run_as_owner)"],
                ["ALTER SUBSCRIPTION s SET (run_as_owner)"],
                ["ALTER SUBSCRIPTION s SET (failover = 2)"],
                ["ALTER SUBSCRIPTION s SET (failover)"],
                ["ALTER SUBSCRIPTION s SET (failover = false)"],
                ["ALTER SUBSCRIPTION s SET (failover, two_phase = false)"],
                ["ALTER SUBSCRIPTION s ENABLE", "ALTER SUBSCRIPTION s SET (failover)"],
                ["ALTER SUBSCRIPTION s ENABLE", "ALTER SUBSCRIPTION s SET (failover = false)"],
                [
                    "ALTER SUBSCRIPTION s ENABLE",
                    "ALTER SUBSCRIPTION s SET (slot_name = NONE, failover)",
                ],
                [
                    "ALTER SUBSCRIPTION s SET (slot_name = NONE)",
                    "ALTER SUBSCRIPTION s SET (failover)",
                    "ALTER SUBSCRIPTION s SET (failover = false)",
                    "ALTER SUBSCRIPTION s SET (slot_name = t, failover)",
                    "ALTER SUBSCRIPTION s SET (slot_name = t, two_phase, failover)",
                ],
                [
                    "ALTER SUBSCRIPTION s SET (two_phase)",
                    "ALTER SUBSCRIPTION s SET (two_phase = 2)",
                ],
                ["ALTER SUBSCRIPTION s SET (slot_name = 'x', two_phase = true)"],
                ["ALTER SUBSCRIPTION s SET (slot_name = 'x', two_phase = false)"],
                ["ALTER SUBSCRIPTION s ENABLE", "ALTER SUBSCRIPTION s SET (two_phase)"],
                [
                    "ALTER SUBSCRIPTION s SET (slot_name = NONE)",
                    "ALTER SUBSCRIPTION s SET (two_phase = true)",
                    "ALTER SUBSCRIPTION s SET (two_phase = false)",
                ],
                ["ALTER SUBSCRIPTION s CONNECTION 'foo'"],
                ["ALTER SUBSCRIPTION s CONNECTION 'dbname=y'"],
                ["ALTER SUBSCRIPTION s REFRESH PUBLICATION"],
                ["ALTER SUBSCRIPTION s REFRESH PUBLICATION WITH (foo = 1)"],
                [
                    "ALTER SUBSCRIPTION s ENABLE",
                    "ALTER SUBSCRIPTION s REFRESH PUBLICATION WITH (foo = 1)",
                    "ALTER SUBSCRIPTION s REFRESH PUBLICATION WITH (copy_data = 2)",
                    "ALTER SUBSCRIPTION s REFRESH PUBLICATION WITH (copy_data = false)",
                ],
                ["DROP SUBSCRIPTION s", "DROP SUBSCRIPTION s"],
                ["ALTER SUBSCRIPTION s SET (slot_name = NONE)", "DROP SUBSCRIPTION s CASCADE"],
            )
        ),
    ],
    ids=itertools.count(),
)
def test_scripts(script: list[str], both: Both) -> None:
    for text in script:
        assert _comparable(both.ours(text)) == _comparable(both.theirs(text)), text


def _comparable(outcome: Outcome) -> list[tuple[str, str, str, str | None]]:
    """Without what differs on purpose: hints where PostgreSQL has none, a nearer SQLSTATE.

    libpq's words on a refused connection are the same up to the address family's order.
    """
    result = []
    for severity, sqlstate, message, hint in outcome:
        message = message.split(": connection to server")[0]
        sqlstate = "08" if sqlstate.startswith("08") else sqlstate
        result.append((severity, sqlstate, message, hint if hint in _HINTS else None))
    return result


_HINTS = {
    "Replication slot names may only contain lower case letters, numbers, and the underscore "
    "character.",
    "Available values: local, remote_write, remote_apply, on, off.",
    "To initiate replication, you must manually create the replication slot, enable the "
    "subscription, and refresh the subscription.",
    "Use ALTER SUBSCRIPTION ... DISABLE to disable the subscription, and then use "
    "ALTER SUBSCRIPTION ... SET (slot_name = NONE) to disassociate it from the slot.",
}


def test_all_postgresqls_hints_are_compared(both: Both) -> None:
    """A hint of PostgreSQL that is not in _HINTS would be dropped from the comparison."""
    texts = [create(options) for options in OPTIONS]
    hints: set[str] = set()
    for text in texts:
        both.clear()
        hints |= {hint for *_, hint in both.theirs(text) if hint}
    assert hints <= _HINTS


@pytest.mark.parametrize(
    ("option", "told"),
    [("synchronous_commit = on", "synchronous_commit has no")],
)
def test_what_changes_nothing_is_taken_and_told(option: str, told: str, tmp_path: Path) -> None:
    with Catalog.create(f"sqlite:///{tmp_path / 'state.db'}") as catalog:
        done = execute(parse(create(f"connect = false, {option}")), catalog, Publisher.connect)
        assert done.notices[0].message.startswith(told)
        assert len(catalog.subscriptions()) == 1
