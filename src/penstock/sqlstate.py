"""Errors by their SQLSTATE, with the names that psycopg has for them (errcodes.txt).

Only errors that Penstock raises are here. Errors that are caught by their class are in ``errors``.
"""

from __future__ import annotations

from typing import Self

from penstock.errors import (
    DuplicateObject,
    InvalidParameterValue,
    NotInPrerequisiteState,
    PenstockError,
    UndefinedObject,
)


class StringDataRightTruncation(PenstockError):
    default_sqlstate = "22001"


class NumericValueOutOfRange(PenstockError):
    default_sqlstate = "22003"


class NullValueNotAllowed(PenstockError):
    default_sqlstate = "22004"


class InvalidDatetimeFormat(InvalidParameterValue):
    default_sqlstate = "22007"


class DatetimeFieldOverflow(PenstockError):
    default_sqlstate = "22008"


class InvalidTimeZoneDisplacementValue(PenstockError):
    default_sqlstate = "22009"


class InvalidPrecedingOrFollowingSize(PenstockError):
    default_sqlstate = "22013"


class CharacterNotInRepertoire(PenstockError):
    default_sqlstate = "22021"


class SequenceGeneratorLimitExceeded(PenstockError):
    default_sqlstate = "2200H"


class InvalidEscapeSequence(InvalidParameterValue):
    default_sqlstate = "22025"


class StringDataLengthMismatch(PenstockError):
    default_sqlstate = "22026"


class InvalidTextRepresentation(InvalidParameterValue):
    default_sqlstate = "22P02"


class UntranslatableCharacter(PenstockError):
    default_sqlstate = "22P05"


class NotNullViolation(PenstockError):
    default_sqlstate = "23502"


class UniqueViolation(PenstockError):
    default_sqlstate = "23505"


class ActiveSqlTransaction(PenstockError):
    default_sqlstate = "25001"


class ReadOnlySqlTransaction(PenstockError):
    default_sqlstate = "25006"


class InFailedSqlTransaction(PenstockError):
    default_sqlstate = "25P02"


class InvalidSqlStatementName(PenstockError):
    default_sqlstate = "26000"


class DependentObjectsStillExist(NotInPrerequisiteState):
    default_sqlstate = "2BP01"


class ProhibitedSqlStatementAttempted(PenstockError):
    default_sqlstate = "2F003"


class InvalidCursorName(PenstockError):
    default_sqlstate = "34000"


class InvalidCatalogName(PenstockError):
    default_sqlstate = "3D000"


class InvalidSchemaName(UndefinedObject):
    default_sqlstate = "3F000"


class SerializationFailure(PenstockError):
    default_sqlstate = "40001"


class StatementCompletionUnknown(PenstockError):
    default_sqlstate = "40003"


class InvalidName(InvalidParameterValue):
    default_sqlstate = "42602"


class NameTooLong(InvalidParameterValue):
    default_sqlstate = "42622"


class DuplicateColumn(DuplicateObject):
    default_sqlstate = "42701"


class AmbiguousColumn(PenstockError):
    default_sqlstate = "42702"


class UndefinedColumn(UndefinedObject):
    default_sqlstate = "42703"


class DuplicateAlias(DuplicateObject):
    default_sqlstate = "42712"


class AmbiguousFunction(PenstockError):
    default_sqlstate = "42725"


class GroupingError(PenstockError):
    default_sqlstate = "42803"


class DatatypeMismatch(PenstockError):
    default_sqlstate = "42804"


class CannotCoerce(PenstockError):
    default_sqlstate = "42846"


class UndefinedFunction(PenstockError):
    default_sqlstate = "42883"


class GeneratedAlways(PenstockError):
    default_sqlstate = "428C9"


class ReservedName(InvalidParameterValue):
    default_sqlstate = "42939"


class UndefinedTable(UndefinedObject):
    default_sqlstate = "42P01"


class UndefinedParameter(PenstockError):
    default_sqlstate = "42P02"


class DuplicateCursor(PenstockError):
    default_sqlstate = "42P03"


class DuplicatePreparedStatement(PenstockError):
    default_sqlstate = "42P05"


class DuplicateSchema(DuplicateObject):
    default_sqlstate = "42P06"


class DuplicateTable(DuplicateObject):
    default_sqlstate = "42P07"


class AmbiguousParameter(PenstockError):
    default_sqlstate = "42P08"


class AmbiguousAlias(PenstockError):
    default_sqlstate = "42P09"


class InvalidColumnReference(PenstockError):
    default_sqlstate = "42P10"


class InvalidTableDefinition(InvalidParameterValue):
    default_sqlstate = "42P16"


class InvalidObjectDefinition(PenstockError):
    default_sqlstate = "42P17"


class IndeterminateDatatype(PenstockError):
    default_sqlstate = "42P18"


class InvalidRecursion(PenstockError):
    default_sqlstate = "42P19"


class WindowingError(PenstockError):
    default_sqlstate = "42P20"


class OutOfMemory(PenstockError):
    default_sqlstate = "53200"


class TooManyConnections(PenstockError):
    default_sqlstate = "53300"


class ProgramLimitExceeded(PenstockError):
    default_sqlstate = "54000"


class StatementTooComplex(PenstockError):
    default_sqlstate = "54001"


class TooManyColumns(PenstockError):
    default_sqlstate = "54011"


class CantChangeRuntimeParam(PenstockError):
    default_sqlstate = "55P02"


class QueryCanceled(PenstockError):
    default_sqlstate = "57014"

    @classmethod
    def by_user(cls) -> Self:
        """Return the error of a statement that its user cancelled (ProcessInterrupts)."""
        return cls("canceling statement due to user request")

    @classmethod
    def by_timeout(cls, detail: str | None = None) -> Self:
        """Return the error of a statement that took too long (ProcessInterrupts)."""
        return cls("canceling statement due to statement timeout", detail=detail)


class UndefinedFile(PenstockError):
    default_sqlstate = "58P01"
