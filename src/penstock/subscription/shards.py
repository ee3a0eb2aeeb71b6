"""Tables that several subscriptions fill, as shards of one.

In: a table that a copy is to replace. Out: nothing, or an error that names another subscription
which has rows in it. Each applies its own changes to such a table, but a copy takes the place of
all rows: those of another publisher would be gone, and nobody sends them again. So a copy replaces
a table only where no other subscription, of this node or another one, dropped or not, has ever
committed to it since this subscription's last copy.

What it costs: nothing where one subscription alone has markers; else the log since the last copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from penstock.catalog.pg_subscription import is_app_id
from penstock.errors import NotInPrerequisiteState
from penstock.lakehouse.table import DeltaTable

_WAYS_ON: Final = (
    "Move the table at {uri} away: the copy makes a new one, with rows of this subscription alone. "
    "Or keep all rows as they are: take the table out of the publication, and into it again, each "
    "time with the statement that follows."
)
_KEEP_ROWS: Final = "REFRESH PUBLICATION WITH (copy_data = false)"


def check_alone(table: DeltaTable, app_id: str, name_of: Callable[[str], str | None]) -> None:
    """Raises NotInPrerequisiteState where a copy for ``app_id`` would take rows that another
    subscription may have in the table. ``name_of``: a subscription's name by its app id."""
    others = {other for other in table.app_ids if is_app_id(other)} - {app_id}
    if not others or not table.rows:
        return
    found = sorted(map(_named(name_of), table.filled_by(app_id, others)))
    if found:
        raise NotInPrerequisiteState(
            f'target table "{table.name}" is filled by another subscription too',
            detail=f"It holds changes of {', '.join(found)}. The copy would take the place of all "
            "rows, and nobody sends the others again.",
            hint=_WAYS_ON.format(uri=table.uri),
            alter=_KEEP_ROWS,
        )


def _named(name_of: Callable[[str], str | None]) -> Callable[[str], str]:
    def named(app_id: str) -> str:
        name = name_of(app_id)
        if name is None:
            return f"a subscription that was dropped, or is another node's ({app_id})"
        return f'subscription "{name}"'

    return named
