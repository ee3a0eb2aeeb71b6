"""Every error has one decision."""

import pytest

from penstock.errors import (
    AuthenticationFailure,
    ConnectionFailure,
    ObjectInUse,
    PublisherError,
    RelationChanged,
    StorageError,
    ValueNotRepresentable,
)
from penstock.subscription.retry import Verdict, decide


def test_connection_trouble_is_retried_for_ever_with_growing_pauses() -> None:
    pauses = [decide(ConnectionFailure("x"), n, 5.0, draw=1.0).pause for n in range(1, 100)]
    assert pauses[:3] == [0.2, 0.4, 0.8]
    assert pauses[-1] == 5.0
    assert decide(ConnectionFailure("x"), 1, 5.0, draw=0.0).pause == 0.1


@pytest.mark.parametrize(
    "error",
    [
        AuthenticationFailure("x"),
        RelationChanged("x"),
        ValueNotRepresentable("x"),
        PublisherError("x", sqlstate="42704"),
    ],
)
def test_what_a_retry_cannot_heal_stops_at_once(error: Exception) -> None:
    assert decide(error, 1, 5.0).verdict is Verdict.STOP


@pytest.mark.parametrize("error", [ObjectInUse("x"), StorageError("x"), RuntimeError("x")])
def test_some_errors_are_retried_but_not_for_ever(error: Exception) -> None:
    assert decide(error, 1, 5.0).verdict is Verdict.RETRY
    assert decide(error, 50, 5.0).verdict is Verdict.STOP


def test_a_server_that_starts_up_is_waited_for() -> None:
    assert (
        decide(PublisherError("starting up", sqlstate="57P03"), 500, 5.0).verdict is Verdict.RETRY
    )
