"""Where a subscription goes on whose replication origin was put elsewhere, as values."""

from __future__ import annotations

import pytest

from penstock.errors import NotInPrerequisiteState
from penstock.lsn import Lsn
from penstock.subscription.origin import TableProgress, advance_to

AT_100 = TableProgress(True, Lsn(100))


@pytest.mark.parametrize(
    ("wanted", "cut", "tables", "lsn"),
    [
        (150, 100, [AT_100], 150),
        (100, 100, [AT_100], None),
        (50, 100, [AT_100], None),
        (150, None, [TableProgress(True, None)], 150),
        # a copied table joins there, or later
        (150, 100, [AT_100, TableProgress(False, Lsn(120))], 150),
        (150, 100, [AT_100, TableProgress(False, Lsn(170))], 150),
    ],
)
def test_a_cut_is_made_there(
    wanted: int, cut: int | None, tables: list[TableProgress], lsn: int | None
) -> None:
    last = None if cut is None else Lsn(cut)
    found = advance_to("s", Lsn(wanted), last, tables, prepared=False)
    assert found == (None if lsn is None else Lsn(lsn))


@pytest.mark.parametrize(
    ("tables", "prepared"),
    [
        ([AT_100, TableProgress(True, Lsn(120))], False),
        ([TableProgress(True, Lsn(100), half_applied=Lsn(120))], False),
        ([AT_100], True),
    ],
)
def test_nothing_is_passed_by_that_some_tables_have(
    tables: list[TableProgress], prepared: bool
) -> None:
    with pytest.raises(NotInPrerequisiteState) as caught:
        advance_to("s", Lsn(150), Lsn(100), tables, prepared=prepared)
    assert "pg_replication_origin_advance" in str(caught.value.hint)
