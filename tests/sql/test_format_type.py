"""Names of all types with all kinds of modifiers, beside a real server."""

from __future__ import annotations

import psycopg

from penstock.embedded import EmbeddedPostgres
from penstock.sql.builtin import types
from penstock.sql.text.quoting import type_text

TYPMODS = [None, -1, 0, 3, 4, 5, 6, 24, 655366, 0x7FFFFFFF, ((10 << 16) | (-2 & 0x7FF)) + 4]
INTERVALS = {1186, 1187}
FIELDS = (1 << 2, 1 << 1, 6, 1 << 3, 1 << 10, 1 << 11, 1 << 12, 0x408, 0xC08, 0x1C08, 0xC00, 0x1C00,
          0x1800, 0x7FFF)  # fmt: skip


def test_types_are_printed_as_the_server_prints_them(postgres: EmbeddedPostgres) -> None:
    fields = [None, -1, *(field << 16 | end for field in FIELDS for end in (3, 0xFFFF))]
    asked = [
        (oid, typmod) for oid in types() for typmod in (fields if oid in INTERVALS else TYPMODS)
    ]
    with psycopg.connect(postgres.conninfo()) as connection:
        wanted = connection.execute(
            "SELECT format_type(o, m) FROM unnest(%s::oid[], %s::int4[])"
            " WITH ORDINALITY AS t(o, m, n) ORDER BY n",
            ([oid for oid, _ in asked], [typmod for _, typmod in asked]),
        ).fetchall()
    found = {(oid, typmod): type_text(oid, typmod) for oid, typmod in asked}
    assert found == dict(zip(asked, (name for (name,) in wanted), strict=True))
