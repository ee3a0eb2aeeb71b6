"""What a cancel says of a statement whose outcome is unknown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from penstock.backend.cancellation import Cancellation
from penstock.errors import PenstockError
from penstock.sqlstate import StatementCompletionUnknown


class _Jobs:
    @contextmanager
    def group(self, name: str) -> Iterator[None]:
        yield

    def interrupt(self, name: str) -> None:
        pass


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (StatementCompletionUnknown("the rows may be changed"), "40003"),
        (PenstockError("the job was stopped"), "57014"),
    ],
    ids=["unknown outcome", "stopped"],
)
def test_a_cancel_hides_no_unknown_outcome(raised: PenstockError, told: str) -> None:
    cancellation = Cancellation(_Jobs())
    with pytest.raises(PenstockError) as error, cancellation.running():
        cancellation.request()
        raise raised
    assert error.value.sqlstate == told
