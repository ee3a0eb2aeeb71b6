"""COPY, TRUNCATE and queries (parsenodes.h, CopyStmt, TruncateStmt, PreparableStmt).

Only COPY TO STDOUT is supported; COPY FROM, files and programs are refused by name (0A000).
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
from penstock.sql.grammar.parsenodes import (
    DeleteStmt,
    InsertStmt,
    PreparableStmt,
    SelectStmt,
    UpdateStmt,
)
from penstock.sql.grammar.raw_node import RawNode
from penstock.sql.grammar.raw_statements import read_query, read_select
from penstock.sql.grammar.source import Source
from penstock.sql.grammar.statements import DefElem, Statement
from penstock.sql.text.object_names import RangeVar

_TAGS: Final = {
    SelectStmt: "SELECT",
    InsertStmt: "INSERT",
    UpdateStmt: "UPDATE",
    DeleteStmt: "DELETE",
}


@dataclass(frozen=True, slots=True)
class Copy(Statement):
    """COPY relation [(columns)] TO STDOUT, COPY (query) TO STDOUT, with options as DefElems.

    ``options``: old forms too, such as ``BINARY`` as ``format = binary``. A list (force_quote) is a
    text of names with commas between them.
    """

    relation: RangeVar | None
    columns: tuple[str, ...] | None = None
    query: SelectStmt | None = None
    options: tuple[DefElem, ...] = ()


@dataclass(frozen=True, slots=True)
class Truncate(Statement):
    """TRUNCATE [TABLE] relations."""

    relations: tuple[RangeVar, ...]
    cascade: bool = False
    restart_identity: bool = False


@dataclass(frozen=True, slots=True)
class QueryStatement(Statement):
    """SELECT, VALUES, TABLE, INSERT, UPDATE or DELETE."""

    query: PreparableStmt

    @property
    def tag(self) -> str:
        """The statement's command tag, without numbers (CreateCommandTag)."""
        return _TAGS[type(self.query)]


def _copy(raw: RawNode, _source: Source) -> Copy:
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
        None if query is None else read_select(query),
        options(raw),
    )


def _truncate(raw: RawNode, _source: Source) -> Truncate:
    return Truncate(relations(raw, "relations"), cascades(raw), bool(raw.take("restart_seqs")))


def _query(raw: RawNode, _source: Source) -> QueryStatement:
    return QueryStatement(read_query(raw))


READERS: Final[Readers] = {
    "CopyStmt": _copy,
    "TruncateStmt": _truncate,
    **dict.fromkeys(("SelectStmt", "InsertStmt", "UpdateStmt", "DeleteStmt"), _query),
}
