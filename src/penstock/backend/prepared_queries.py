"""What prepared queries and changes take and give (parse_analyze_varparams).

In: the text of one statement, and the types that the client has said for its parameters. Out: a
``Description``. Queries on the catalogs are described by them; in those on tables of the lake
parameters get types from the columns beside them, and NULLs stand for their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.backend.services import SessionServices
from penstock.catalog import Role
from penstock.pg_catalog.session_facts import SessionFacts
from penstock.protocol.answers import Cells, Description
from penstock.sql.typed.parameter_types import parameter_types
from penstock.sql.typed.parameters import last_parameter, with_values
from penstock.walsender.sequencer import Position

_PUBLIC = "public"


@dataclass(frozen=True, slots=True)
class BoundValues:
    """Values in text format and the oids of their types."""

    values: Cells = ()
    types: Sequence[int] = ()


def describe_query(
    services: SessionServices,
    text: str,
    said: Sequence[int],
    at: Position,
    facts: SessionFacts,
    role: Role,
) -> Description:
    """A SELECT. Raises PostgreSQL's errors."""
    if services.catalog_queries.reads_catalog_only(text):
        return services.catalog_queries.describe(text, facts, said)
    parameters = described_parameters(services, text, said)
    nulls = with_values(text, (None,) * len(parameters), parameters)
    return Description(parameters, services.lake.describe(nulls, at, role))


def described_parameters(
    services: SessionServices, text: str, said: Sequence[int]
) -> tuple[int, ...]:
    """Types of the parameters of a statement on tables of the lake."""
    count = max(last_parameter(text), len(said))

    def columns(schema: str | None, table: str) -> Mapping[str, int]:
        return services.catalog_queries.column_types(schema or _PUBLIC, table)

    return parameter_types(text, count, said, columns)
