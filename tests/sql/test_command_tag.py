"""Every statement is known to change something or not: none slips into a read-only transaction."""

from __future__ import annotations

import sys

import pytest

from penstock.sql import parse
from penstock.sql.command_tag import command_tag, reads
from penstock.sql.grammar.parsenodes import Statement
from penstock.sql.grammar.raw_statements import QueryStatement
from penstock.sql.grammar.role import GrantSelect

# A dataclass with slots is made of another class of the same name, which is in no module.
_KINDS = sorted(
    {getattr(sys.modules[kind.__module__], kind.__name__) for kind in Statement.__subclasses__()},
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", _KINDS, ids=lambda kind: kind.__name__)
def test_every_statement_is_known(kind: type[Statement]) -> None:
    if kind not in (QueryStatement, GrantSelect):
        tag = command_tag(kind.__new__(kind))
        assert tag is None or tag == tag.upper()


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("SELECT 1", None),
        ("(SELECT 1)", None),
        ("TABLE a", None),
        ("VALUES (1)", None),
        ("WITH x AS (SELECT 1) SELECT * FROM x", None),
        ("COPY a TO STDOUT", None),
        ("insert INTO a VALUES (1)", "INSERT"),
        ("UPDATE a SET b = 1", "UPDATE"),
        ("DELETE FROM a", "DELETE"),
        ("TRUNCATE a", "TRUNCATE TABLE"),
        ("GRANT SELECT ON a TO b", "GRANT"),
        ("REVOKE SELECT ON a FROM b", "REVOKE"),
    ],
)
def test_tags(text: str, tag: str | None) -> None:
    statement = parse(text)
    assert (command_tag(statement), reads(statement)) == (tag, tag is None)
