"""COPY, TRUNCATE and queries (parsenodes.h, CopyStmt, TruncateStmt, PreparableStmt).

In: raw nodes. Out: frozen values. Only COPY TO STDOUT is supported; COPY FROM, files and programs
are refused by name (0A000). Queries are kept as text, for whoever runs them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.sql.grammar.names import (
    Readers,
    cascades,
    not_supported,
    options,
    range_var,
    relations,
)
from penstock.sql.grammar.raw_node import RawNode
from penstock.sql.grammar.source import Source
from penstock.sql.grammar.statements import DefElem, Statement
from penstock.sql.text.object_names import RangeVar


@dataclass(frozen=True, slots=True)
class Copy(Statement):
    """COPY relation [(columns)] TO STDOUT, COPY (query) TO STDOUT, with options as DefElems.

    ``options``: old forms too, such as ``BINARY`` as ``format = binary``. A list (force_quote) is a
    text of names with commas between them.
    """

    relation: RangeVar | None
    columns: tuple[str, ...] | None = None
    query: str | None = None
    options: tuple[DefElem, ...] = ()


@dataclass(frozen=True, slots=True)
class Truncate(Statement):
    """TRUNCATE [TABLE] relations."""

    relations: tuple[RangeVar, ...]
    cascade: bool = False
    restart_identity: bool = False


@dataclass(frozen=True, slots=True)
class QueryStatement(Statement):
    """A statement kept as ``text``. ``kind``: its first word, such as ``select`` or ``insert``."""

    text: str
    kind: str


def _copy(raw: RawNode, source: Source) -> Copy:
    verb = "COPY FROM" if raw.take("is_from") else "COPY TO"
    if raw.take("is_program"):
        raise not_supported(f"{verb} PROGRAM")
    if raw.take("filename"):
        raise not_supported(f"{verb} a file")
    if verb == "COPY FROM":
        raise not_supported(verb)
    fields, query = raw.node("relation"), raw.node("query")
    return Copy(
        None if fields is None else range_var(fields),
        raw.names("attlist") or None,
        None if query is None else source.parenthesized(),
        options(raw),
    )


def _truncate(raw: RawNode, _source: Source) -> Truncate:
    return Truncate(relations(raw, "relations"), cascades(raw), bool(raw.take("restart_seqs")))


def _query(raw: RawNode, source: Source) -> QueryStatement:
    raw.clear()  # whoever runs the text parses it again
    word = source.word(0)
    return QueryStatement(source.text, "select" if word in ("(", "table") else word)


READERS: Final[Readers] = {
    "CopyStmt": _copy,
    "TruncateStmt": _truncate,
    **dict.fromkeys(
        ("SelectStmt", "InsertStmt", "UpdateStmt", "DeleteStmt", "MergeStmt", "ExplainStmt"), _query
    ),
}
