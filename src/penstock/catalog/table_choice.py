"""The choice of a subscription's tables to which an option applies (history).

In: a text, ``true``, ``false`` or ``schema.table, table``, names at the publisher. Out: a value to
keep, and the text again. Names of tables that do not exist are no error: tables may come later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.errors import InvalidParameterValue
from penstock.guc import option_bool
from penstock.identifiers import split_identifiers
from penstock.relation import TableName, qualified, table_of_option
from penstock.sql.text.quoting import quote_identifier


@dataclass(frozen=True, slots=True)
class TableChoice:
    """A choice of ``every`` table, or of those in ``names``."""

    every: bool = False
    names: frozenset[TableName] = frozenset()

    def __contains__(self, table: TableName) -> bool:
        return self.every or table in self.names

    def __bool__(self) -> bool:
        return self.every or bool(self.names)

    def __str__(self) -> str:
        if not self.names:
            return "true" if self.every else "false"
        return ", ".join(".".join(map(quote_identifier, name)) for name in sorted(self.names))


NONE: Final = TableChoice()


def read_choice(option: str, value: object) -> TableChoice:
    """Read an option's value; None if the option is written without one. Raises
    InvalidParameterValue."""
    every = option_bool(value)
    if every is not None:
        return TableChoice(every)
    return TableChoice(names=frozenset(_names(option, str(value))))


def _names(option: str, text: str) -> list[TableName]:
    found: list[TableName] = []
    for item in _items(text):
        table = table_of_option(split_identifiers(item, "."))
        if table is None:
            raise InvalidParameterValue(
                f'invalid value for parameter "{option}": "{text}"',
                hint="It is true, false, or a list of tables: public.orders, events.",
            )
        if table in found:
            raise InvalidParameterValue(
                f'invalid value for parameter "{option}": "{text}"',
                detail=f'Table "{qualified(*table)}" is there twice.',
            )
        found.append(table)
    return found


def _items(text: str) -> list[str]:
    """Split a text at the commas that are not in quotes."""
    items, inside = [""], False
    for character in text:
        inside ^= character == '"'
        if character == "," and not inside:
            items.append("")
        else:
            items[-1] += character
    return items
