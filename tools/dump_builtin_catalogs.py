"""Writes the built-in types, operators, functions and casts of PostgreSQL 18 into the sql room.

In: an embedded server of version 18. Out: src/penstock/sql/builtin/pg_*.tsv, one line per row in
the order of oids. Run it again when a new major version is to be known.
"""

from __future__ import annotations

from pathlib import Path

import psycopg

from penstock.embedded import EmbeddedPostgres

TARGET = Path(__file__).parents[1] / "src" / "penstock" / "sql" / "builtin"
QUERIES = {
    "pg_type": """
        SELECT oid, typname, format_type(oid, NULL) AS name, typcategory, typispreferred::int,
               typtype,
               CASE typsubscript WHEN 'array_subscript_handler'::regproc THEN typelem ELSE 0 END,
               typarray, typcollation
          FROM pg_type
         WHERE oid < 16384 AND typtype IN ('b', 'p', 'r', 'm')
           AND typname !~ '^_?pg_.*(mcv|depend|stat)' ORDER BY oid""",
    "pg_operator": """
        SELECT oid, oprname, oprleft, oprright, oprresult, oprcode::oid
          FROM pg_operator WHERE oid < 16384 AND oprcode <> 0 ORDER BY oid""",
    "pg_proc": """
        SELECT oid, proname, prokind, proretset::int, provolatile, proisstrict::int, prorettype,
               provariadic, pronargdefaults, array_to_string(proargtypes::oid[], ' ')
          FROM pg_proc
         WHERE oid < 16384 AND pronamespace = 'pg_catalog'::regnamespace
           AND NOT (proargtypes::oid[] && '{2275,2281}'::oid[] AND prokind <> 'w')
           AND prorettype NOT IN (2279, 3838, 325, 3115, 269, 3310) ORDER BY oid""",
    "pg_cast": """
        SELECT castsource, casttarget, castfunc, castcontext, castmethod
          FROM pg_cast WHERE oid < 16384 ORDER BY castsource, casttarget""",
}


def main() -> None:
    """Writes the four files."""
    with EmbeddedPostgres(18) as server, psycopg.connect(server.conninfo()) as connection:
        for name, query in QUERIES.items():
            rows = connection.execute(query).fetchall()
            lines = ["\t".join(str(value) for value in row) for row in rows]
            (TARGET / f"{name}.tsv").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
