"""Settings of one session: SET, RESET, SHOW (guc.c).

In: the node's values, what the client asked for at the start, and SET. Out: values by name, and
which of them the client is to be told. Nothing here changes what the node does: dates, numbers and
bytea are always printed as a subscriber asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from penstock.errors import FeatureNotSupported, PenstockError, UndefinedObject
from penstock.protocol.encoding import find_encoding
from penstock.walsender.answers import ParameterChange

_READ_ONLY: Final = frozenset(
    """
    server_version server_version_num server_encoding integer_datetimes wal_level
    is_superuser max_replication_slots max_wal_senders data_directory_mode block_size
    wal_segment_size lc_collate lc_ctype segment_size in_hot_standby
    """.split()  # noqa: SIM905
)
_ONLY: Final[Mapping[str, tuple[str, ...]]] = {
    "datestyle": ("iso", "iso, mdy", "iso, dmy", "iso, ymd", "iso,mdy", "default"),
    "intervalstyle": ("postgres",),
    "bytea_output": ("hex",),
    "standard_conforming_strings": ("on", "true", "yes", "1"),
    "timezone": ("utc", "gmt", "etc/utc", "+00:00", "0", "default"),
    "role": ("none",),
    "session_authorization": (),
}
"""Settings with effects, and the only values that there are here."""
_ROLES: Final = frozenset({"role", "session_authorization"})
_ACCEPTED: Final = frozenset(
    """
    application_name client_encoding client_min_messages statement_timeout lock_timeout
    idle_in_transaction_session_timeout idle_session_timeout transaction_timeout
    search_path extra_float_digits row_security synchronous_commit
    default_transaction_read_only default_transaction_isolation transaction_read_only
    transaction_isolation default_transaction_deferrable quote_all_identifiers
    synchronize_seqscans jit
    parallel_setup_cost work_mem check_function_bodies xmloption xmlbinary
    array_nulls transform_null_equals gin_fuzzy_search_limit
    default_table_access_method default_tablespace restrict_nonsystem_relation_kind
    log_min_messages log_min_duration_statement options enable_seqscan enable_indexscan
    timezone_abbreviations
    """.split()  # noqa: SIM905
)
_TOLD: Final[Mapping[str, str]] = {
    "application_name": "application_name",
    "client_encoding": "client_encoding",
    "datestyle": "DateStyle",
    "intervalstyle": "IntervalStyle",
    "timezone": "TimeZone",
    "standard_conforming_strings": "standard_conforming_strings",
    "search_path": "search_path",
}
_SHOWN_AS: Final[Mapping[str, str]] = {"datestyle": "ISO, MDY", "timezone": "UTC"}
_DEFAULTS: Final[Mapping[str, str]] = {
    "application_name": "",
    "client_encoding": "UTF8",
    "datestyle": "ISO, MDY",
    "intervalstyle": "postgres",
    "timezone": "UTC",
    "bytea_output": "hex",
    "standard_conforming_strings": "on",
    "extra_float_digits": "1",
    "search_path": '"$user", public',
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "transaction_isolation": "read committed",
    "default_transaction_isolation": "read committed",
    "transaction_read_only": "off",
    "default_transaction_read_only": "off",
    "synchronous_commit": "on",
    "client_min_messages": "notice",
    "row_security": "on",
    "in_hot_standby": "off",
    "data_directory_mode": "0700",
    "integer_datetimes": "on",
    "server_encoding": "UTF8",
    "wal_level": "logical",
    "wal_segment_size": "16MB",
    "block_size": "8192",
}


class SessionSettings:
    """``given``: from the startup packet, in order."""

    def __init__(self, node: Mapping[str, str], given: Iterable[tuple[str, str]]) -> None:
        """Raises as ``set``."""
        self._base = {**_DEFAULTS, **node}
        self._own: dict[str, str] = {}
        for name, value in given:
            self.set(name, value)
        self._at_start = dict(self._own)

    def values(self) -> Mapping[str, str]:
        """Every setting by its lower-case name."""
        return {**self._base, **self._own}

    def show(self, name: str) -> str:
        """The value of a setting. Raises UndefinedObject (42704)."""
        values = self.values()
        key = name.lower()
        if key in values:
            return values[key]
        if key in _ACCEPTED:
            return ""
        raise _unknown(name)

    def set(self, name: str, value: str | None) -> Iterator[ParameterChange]:
        """SET; None is DEFAULT. What the client is to be told of.

        Raises UndefinedObject (42704), PenstockError (55P02, 22023), FeatureNotSupported.
        """
        key = name.lower()
        if key in _READ_ONLY:
            raise PenstockError(f'parameter "{name}" cannot be changed now', sqlstate="55P02")
        if "." not in key and key not in _ACCEPTED and key not in _ONLY:
            raise _unknown(name)
        if value is None:
            self._own.pop(key, None)
        else:
            self._own[key] = _checked(key, name, value)
        return iter(self._told(key))

    def reset(self, name: str | None) -> Iterator[ParameterChange]:
        """RESET name, or ALL (None): back to what the client began with."""
        names = list(self._own) if name is None else [name.lower()]
        told: list[ParameterChange] = []
        for key in names:
            if key in self._at_start:
                self._own[key] = self._at_start[key]
            else:
                self._own.pop(key, None)
            told += self._told(key)
        return iter(told)

    def _told(self, key: str) -> list[ParameterChange]:
        name = _TOLD.get(key)
        return [] if name is None else [ParameterChange(name, self.values().get(key, ""))]


def _checked(key: str, name: str, value: str) -> str:
    allowed = _ONLY.get(key)
    if allowed is not None:
        if key in _ROLES and value.lower() not in allowed:
            raise FeatureNotSupported(
                f'parameter "{name}" is not supported: a session has one role'
            )
        if value.lower() not in allowed:
            raise FeatureNotSupported(
                f'parameter "{name}" cannot be set to "{value}"',
                hint=f'Values are always sent in the format that "{allowed[0]}" stands for.',
            )
        return _SHOWN_AS.get(key, value)
    if key == "client_encoding":
        return find_encoding(value).name
    return value


def _unknown(name: str) -> UndefinedObject:
    return UndefinedObject(f'unrecognized configuration parameter "{name}"')
