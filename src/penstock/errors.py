"""Errors of Penstock, as one tree with PostgreSQL's fields (elog.c, ErrorData).

Message, detail, hint and SQLSTATE are separate fields. The exceptions pickle, so they cross from
Spark's executors to the driver whole. ``penstock.subscription.retry``, not this module, decides
whether to retry, stop or disable. No message may hold a password (law 9).

::

    PenstockError                     XX000
    ├── SqlSyntaxError                42601
    ├── InvalidParameterValue         22023
    ├── FeatureNotSupported           0A000
    │   └── HistoryMismatch           0A000   a column that its history cannot hold
    ├── UndefinedObject               42704
    ├── DuplicateObject               42710
    ├── WrongObjectType               42809
    ├── InsufficientPrivilege         42501
    ├── ObjectInUse                   55006
    ├── NotInPrerequisiteState        55000
    │   ├── RelationChanged           55000   a change that is not followed
    │   ├── StateMismatch             55000   publisher, slot, cuts, tables disagree
    │   │   └── AnotherTable          55000   another Delta table in a target's place
    │   └── RequiredChangesRemoved    55000   a slot lost what it has to send
    ├── ConfigurationError            F0000
    ├── ConfigurationLimitExceeded    53400   a limit of the node's
    ├── ValueNotRepresentable         22003   a value that the target type cannot hold
    │   └── UnknownLabel              22P02   a label that the target's enum does not have
    ├── ConnectionFailure             08006   publisher out of reach, connection broken
    │   └── AuthenticationFailure     28P01   a retry cannot heal it
    ├── PublisherError                (the server's own SQLSTATE)
    ├── ProtocolViolation             08P01
    ├── ReplicationConflict           40001   rows of the target and the stream disagree
    │   └── KeyExists                 23505
    │       ├── InsertExists          23505   an inserted key exists already
    │       └── UpdateExists          23505   a key that an UPDATE sets exists already
    ├── CommitConflict                40001   another writer took a table's next version
    ├── ApplierReplaced               55P03   another applier is ahead of us
    └── StorageError                  58030   warehouse refuses (disk full: 53100)
        └── VersionGone               58P01   VACUUM or retention has removed it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self


class PenstockError(Exception):
    """An error with PostgreSQL's fields: message, detail, hint, SQLSTATE (five characters).

    ``alter``: the rest of the statement that helps, after ALTER SUBSCRIPTION and the name; for
    errors raised where the subscription is not known (``with_statement``). ``context``: the action
    that failed, for the server log. ``objects``: names of the objects concerned, by "schema",
    "table", "column" and "constraint" (errtable, errtablecol, errtableconstraint). ``column``: the
    publisher's column whose value caused the error.
    """

    default_sqlstate: ClassVar[str] = "XX000"

    def __init__(
        self,
        message: str,
        *,
        detail: str | None = None,
        hint: str | None = None,
        sqlstate: str | None = None,
        alter: str | None = None,
        context: str | None = None,
        objects: Mapping[str, str] | None = None,
        column: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.hint = hint
        self.sqlstate = sqlstate or self.default_sqlstate
        self.alter = alter
        self.context = context
        self.objects = objects
        self.column = column

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._fields())

    def _fields(self) -> dict[str, Any]:
        return {
            "message": self.message,
            "detail": self.detail,
            "hint": self.hint,
            "sqlstate": self.sqlstate,
            "alter": self.alter,
            "context": self.context,
            "objects": self.objects,
            "column": self.column,
        }

    def changed(self, **fields: str | None) -> Self:
        """Return the same error with other fields."""
        return type(self)(**{**self._fields(), **fields})

    def with_statement(self, begun: str) -> Self:
        """Return the error with its statement in the hint.

        ``begun``: the begin of the statement, with the subscription's name.
        """
        if self.alter is None:
            return self
        statement = f"Run {begun} {self.alter}."
        hint = statement if self.hint is None else f"{self.hint} {statement}"
        return self.changed(hint=hint, alter=None)

    def report(self) -> str:
        """Return the error as psql prints it."""
        return report("ERROR", self.message, self.detail, self.hint, self.context)


def report(
    severity: str,
    message: str,
    detail: str | None,
    hint: str | None,
    context: str | None = None,
) -> str:
    """Return an error or a notice as psql prints it: ``ERROR:``, ``DETAIL:``, ``HINT:`` and
    ``CONTEXT:`` lines."""
    lines = [f"{severity}:  {message}"]
    if detail:
        lines.append(f"DETAIL:  {detail}")
    if hint:
        lines.append(f"HINT:  {hint}")
    if context:
        lines.append(f"CONTEXT:  {context}")
    return "\n".join(lines)


def _rebuild(kind: type[PenstockError], fields: dict[str, Any]) -> PenstockError:
    return kind(**fields)


class SqlSyntaxError(PenstockError):
    """A statement that the grammar does not allow."""

    default_sqlstate = "42601"


class InvalidParameterValue(PenstockError):
    """A parameter or option with a value that it cannot have."""

    default_sqlstate = "22023"


class FeatureNotSupported(PenstockError):
    """A feature that this version of Penstock lacks, even if PostgreSQL has it."""

    default_sqlstate = "0A000"


class UndefinedObject(PenstockError):
    """A named object that does not exist."""

    default_sqlstate = "42704"


class UndefinedPublication(UndefinedObject):
    """A publication that did not exist at the publisher at the time of a change to be sent."""


class DuplicateObject(PenstockError):
    """A named object that exists already."""

    default_sqlstate = "42710"


class WrongObjectType(PenstockError):
    """An object of a kind that cannot be replicated."""

    default_sqlstate = "42809"


class InsufficientPrivilege(PenstockError):
    """An action that the role may not do."""

    default_sqlstate = "42501"


class ObjectInUse(PenstockError):
    """An object that somebody else holds, such as an active replication slot."""

    default_sqlstate = "55006"


class NotInPrerequisiteState(PenstockError):
    """An object that is not in the state that the operation needs."""

    default_sqlstate = "55000"


class RelationChanged(NotInPrerequisiteState):
    """A change of a published relation that the target table cannot follow by itself."""


class SchemaChanged(RelationChanged):
    """A change of a relation at the publisher that a new copy of the table can follow."""


class StateMismatch(NotInPrerequisiteState):
    """Publisher, slot, cuts or tables were exchanged, or one of them went back."""


class AnotherTable(StateMismatch):
    """Another Delta table lies in the place of the one that was copied. No copy replaces it."""


class ConfigurationError(PenstockError):
    """The node's files, versions or environment do not fit."""

    default_sqlstate = "F0000"


class SparkUnavailable(PenstockError):
    """Spark cannot be started now; another attempt may succeed."""

    default_sqlstate = "58000"


class SparkLost(SparkUnavailable):
    """Spark has ended, and could not be started again for minutes; another process may do it."""


class ConfigurationLimitExceeded(PenstockError):
    """A limit that a parameter sets is exceeded."""

    default_sqlstate = "53400"


class HistoryMismatch(FeatureNotSupported):
    """A table's column does not fit into its history, however often the table is copied."""


class ValueNotRepresentable(PenstockError):
    """A value that the target type cannot hold (infinity, NaN in a decimal, year 10000)."""

    default_sqlstate = "22003"


class UnknownLabel(ValueNotRepresentable):
    """A value for which the enum of the target column has no label yet."""

    default_sqlstate = "22P02"


class ConnectionFailure(PenstockError):
    """The publisher cannot be reached or the connection broke; a retry may heal it."""

    default_sqlstate = "08006"


class AuthenticationFailure(ConnectionFailure):
    """The publisher refused the login; a retry with the same connection string cannot heal it."""

    default_sqlstate = "28P01"


class PublisherError(PenstockError):
    """An error that the publisher reported, with its own SQLSTATE, detail and hint."""


class ProtocolViolation(PenstockError):
    """Bytes that the protocol does not allow where they came."""

    default_sqlstate = "08P01"


class ReplicationConflict(PenstockError):
    """Rows of the target do not match the stream."""

    default_sqlstate = "40001"


class KeyExists(ReplicationConflict):
    """A row gets a key that another row has.

    ``met``: the known facts about the rows, for the first handler only: these facts do not cross
    processes, and ``changed`` drops them.
    """

    default_sqlstate = "23505"
    met: object = None


class InsertExists(KeyExists):
    """A row is inserted whose key another row has (conflict.c, CT_INSERT_EXISTS)."""


class UpdateExists(KeyExists):
    """A row is given a key that another row has (conflict.c, CT_UPDATE_EXISTS)."""


class CommitConflict(PenstockError):
    """Another writer put the next version of a Delta table first (compare-and-swap lost)."""

    default_sqlstate = "40001"


class ApplierReplaced(PenstockError):
    """Another applier of the same subscription has committed beyond us; this one must stop."""

    default_sqlstate = "55P03"


class StorageError(PenstockError):
    """The warehouse refuses reads or writes; SQLSTATE 53100 if its disk is full."""

    default_sqlstate = "58030"


class VersionGone(StorageError):
    """A version of a table, or a file of it, was removed by retention or VACUUM."""

    default_sqlstate = "58P01"


class RequiredChangesRemoved(NotInPrerequisiteState):
    """A replication slot has lost changes that it still has to send."""
