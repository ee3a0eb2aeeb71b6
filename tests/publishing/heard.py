"""What a stock subscriber is told, change by change: its triggers write it down.

In: tables of a test database. Out: for each transaction that it applied, the changes of rows.
"""

from __future__ import annotations

from collections import Counter

from fix_postgres import Database

Change = tuple[str, str, str | None, str | None]
"""Table, operation, old and new row as text."""

_SET_UP = """
CREATE TABLE heard (n bigserial, xid text, relation text, op text, old text, new text);
CREATE FUNCTION hear() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO public.heard (xid, relation, op, old, new) VALUES (
    pg_current_xact_id()::text, TG_TABLE_NAME, TG_OP,
    CASE WHEN TG_OP <> 'INSERT' THEN OLD::text END,
    CASE WHEN TG_OP <> 'DELETE' THEN NEW::text END);
  RETURN NULL;
END $$
"""


def listen(database: Database, *tables: str) -> None:
    """Write down what is applied to these tables from now on."""
    database.execute(_SET_UP)
    for table in tables:
        database.execute(
            f"CREATE TRIGGER hear AFTER INSERT OR UPDATE OR DELETE ON {table}"
            f" FOR EACH ROW EXECUTE FUNCTION hear();"
            f"ALTER TABLE {table} ENABLE REPLICA TRIGGER hear"
        )


def heard(database: Database) -> list[Counter[Change]]:
    """By transaction, in order; updates that change nothing, which a node does not send, are left
    out."""
    found: dict[str, Counter[Change]] = {}
    for xid, *change in database.rows("SELECT xid, relation, op, old, new FROM heard ORDER BY n"):
        relation, operation, old, new = change
        if old != new:
            found.setdefault(xid, Counter())[relation, operation, old, new] += 1
    return list(found.values())
