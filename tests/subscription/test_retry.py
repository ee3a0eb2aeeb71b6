"""Every error has one decision."""

import pytest

from penstock.errors import (
    ApplierReplaced,
    AuthenticationFailure,
    CommitConflict,
    ConnectionFailure,
    ObjectInUse,
    ProtocolViolation,
    PublisherError,
    RelationChanged,
    ReplicationConflict,
    SparkUnavailable,
    StorageError,
    UndefinedObject,
    UndefinedPublication,
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
        ApplierReplaced("x"),
        RelationChanged("x"),
        ReplicationConflict("x"),
        ValueNotRepresentable("x"),
        PublisherError("x", sqlstate="42704"),
        UndefinedObject("a slot"),
        PublisherError("requested WAL segment has been removed", sqlstate="58P01"),
        PublisherError("the database was dropped", sqlstate="57P04"),
    ],
)
def test_what_a_retry_cannot_heal_stops_at_once(error: Exception) -> None:
    assert decide(error, 1, 5.0).verdict is Verdict.STOP


@pytest.mark.parametrize(
    "error",
    [
        ProtocolViolation("x"),
        PublisherError("got sequence entry 3 for toast chunk 1", sqlstate="XX000"),
        StorageError("a file is gone", sqlstate="58P01"),
        KeyError(1),
    ],
)
def test_some_errors_are_retried_but_not_for_ever(error: Exception) -> None:
    assert decide(error, 1, 5.0).verdict is Verdict.RETRY
    assert decide(error, 50, 5.0).verdict is Verdict.STOP


@pytest.mark.parametrize(
    "error",
    [
        AuthenticationFailure("x"),
        CommitConflict("x"),
        ObjectInUse("x"),
        SparkUnavailable("x"),
        UndefinedPublication("x"),
        OSError(28, "no space for a shuffle"),
        StorageError("an object store does not answer"),
        StorageError("disk full", sqlstate="53100"),
        StorageError("too many open files", sqlstate="53000"),
        StorageError("read-only", sqlstate="42501"),
        PublisherError("starting up", sqlstate="57P03"),
        PublisherError("too many clients", sqlstate="53300"),
        PublisherError("canceled", sqlstate="57014"),
        PublisherError("permission denied for schema s", sqlstate="42501"),
    ],
)
def test_what_others_can_heal_is_waited_for(error: Exception) -> None:
    assert decide(error, 500, 5.0).verdict is Verdict.RETRY


def test_refused_connections_are_tried_again_ever_more_slowly() -> None:
    pauses = [decide(AuthenticationFailure("x"), tries, 5.0, 1.0).pause for tries in range(1, 12)]
    assert pauses[:3] == [0.2, 0.4, 0.8] and pauses[-1] == 60.0
    refused = AuthenticationFailure("x")
    assert decide(refused, 1, 5.0, disable_on_error=True).verdict is Verdict.STOP
    no_right = PublisherError("permission denied for table t", sqlstate="42501")
    assert decide(no_right, 1, 5.0, disable_on_error=True).verdict is Verdict.STOP
