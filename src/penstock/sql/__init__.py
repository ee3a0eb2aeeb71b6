"""SQL text in, frozen statements out (parser.c, gram.y). The only importer of sqlglot.

In: what a user wrote. Out: ``Statement`` values, or PostgreSQL's syntax error. Nothing is looked up
and nothing is executed here: options are kept as written, names are only folded. What a statement
means is left to ``penstock.commands``.
"""

from penstock.sql.parser import parse, parse_script
from penstock.sql.statements import (
    AlterSubscriptionConnection,
    AlterSubscriptionEnabled,
    AlterSubscriptionRefresh,
    AlterSubscriptionSet,
    CreateSubscription,
    DefElem,
    DropSubscription,
    Select,
    Statement,
)

__all__ = [
    "AlterSubscriptionConnection",
    "AlterSubscriptionEnabled",
    "AlterSubscriptionRefresh",
    "AlterSubscriptionSet",
    "CreateSubscription",
    "DefElem",
    "DropSubscription",
    "Select",
    "Statement",
    "parse",
    "parse_script",
]
