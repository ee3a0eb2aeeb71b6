"""What the publisher's role needs to copy a table, as statements for hints (aclchk.c).

In: a table and a connection string. Out: a hint that can be followed to the letter.
"""

from __future__ import annotations

from typing import Final

from penstock.catalog.pg_subscription_rel import SubscriptionRel
from penstock.sql.quoting import quote_identifier
from penstock.walreceiver.conninfo import ConnInfo

NO_RIGHT: Final = "42501"


def missing_right(rel: SubscriptionRel, conninfo: str) -> str:
    """GRANTs for the table, and for those that its owner makes later: default privileges are those
    of the role that creates a table, so they are set for that one."""
    user = ConnInfo.parse(conninfo).parameters.get("user")
    role = "<the role of the connection>" if user is None else quote_identifier(user)
    schema, table = quote_identifier(rel.schema), quote_identifier(rel.table)
    return (
        f"On the publisher: GRANT USAGE ON SCHEMA {schema} TO {role}; GRANT SELECT ON TABLE "
        f"{schema}.{table} TO {role}; the copy is tried again by itself. For tables to come, once "
        "for each role that creates some: ALTER DEFAULT PRIVILEGES FOR ROLE <that role> IN SCHEMA "
        f"{schema} GRANT SELECT ON TABLES TO {role};"
    )
