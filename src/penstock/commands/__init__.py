"""Statements to catalog changes (src/backend/commands).

In: statements of ``penstock.sql``, the catalog, and a way to the publisher. Out: changed rows, and
a ``CommandResult``. Workers are neither started nor stopped here: a node that runs follows the
catalog.
"""

from penstock.commands.publisher import Publisher, PublisherFactory
from penstock.commands.result import CommandResult, Notice
from penstock.commands.utility import execute

__all__ = ["CommandResult", "Notice", "Publisher", "PublisherFactory", "execute"]
