"""SET, RESET and SHOW, in all forms (guc_funcs.c, ExecSetVariableStmt).

In: statements and set_config() of one session. Out: answers. Values are ``session_settings``'s, the
modes of a transaction are its block's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from penstock.backend.session_settings import SessionSettings
from penstock.backend.transaction_block import TransactionBlock
from penstock.errors import FeatureNotSupported
from penstock.pgtypes.pg_type import TEXT
from penstock.protocol.answers import Answer, Done, Notice, ParameterChange, Rows
from penstock.protocol.backend_messages import FieldDescription
from penstock.sql import ResetVariable, SetTransaction, SetVariable, ShowVariable
from penstock.sql.grammar.session import TransactionModes

VariableStatement = SetVariable | ResetVariable | ShowVariable | SetTransaction

_ISOLATION: Final = "transaction_isolation"
_READ_ONLY: Final = "transaction_read_only"
_DEFERRABLE: Final = "transaction_deferrable"
_APPLICATION: Final = "application_name"


class Variables:
    """Of one session. ``tell_name``: told of its application_name."""

    def __init__(
        self, settings: SessionSettings, block: TransactionBlock, tell_name: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._block = block
        self._tell_name = tell_name
        self._name = settings.show(_APPLICATION)

    def run(self, statement: VariableStatement) -> Iterator[Answer]:
        """Raises as ``set_config``."""
        match statement:
            case ShowVariable(name=name):
                yield self._show(name)
            case ResetVariable(name=None):
                self._settings.reset_all()
                yield Done("RESET")
            case ResetVariable(name=str(name)):
                self._set(name, None, local=False)
                yield Done("RESET")
            case SetVariable(name=name, local=local):
                if local:
                    yield from self._outside("SET LOCAL")
                self._set(name, None if statement.values is None else statement.text, local=local)
                yield Done("SET")
            case SetTransaction(modes=modes, session=True):
                for key, value in _as_settings(modes).items():
                    self._settings.set(f"default_{key}", value)
                yield Done("SET")
            case SetTransaction(modes=modes):
                yield from self._outside("SET TRANSACTION")
                self._block.set_modes(modes)
                yield Done("SET")

    def set_config(self, name: str, value: str | None, is_local: bool) -> str:
        """Raises PenstockError (42704, 55P02, 42501, 22023, 25001, 0A000)."""
        self._set(name, value, local=is_local)
        return self.show(name)

    def show(self, name: str) -> str:
        """Raises UndefinedObject (42704)."""
        return self._modes().get(name.lower()) or self._settings.show(name)

    def values(self) -> Mapping[str, str]:
        """Every setting by its lower-case name."""
        return {**self._settings.values(), **self._modes()}

    def fields(self, name: str | None) -> tuple[FieldDescription, ...]:
        """The columns of SHOW; None: of SHOW ALL."""
        title = ("name", "setting", "description")
        names = title if name is None else (self._settings.title(name),)
        return tuple(FieldDescription(column, TEXT) for column in names)

    def settle(self) -> list[ParameterChange]:
        """A statement has ended, well or not: others see the session's name; what its client is to
        be told of."""
        name = self._settings.show(_APPLICATION)
        if name != self._name:
            self._name = name
            self._tell_name(name)
        return self._settings.changed()

    def _set(self, name: str, value: str | None, *, local: bool) -> None:
        """A mode of a transaction is nothing outside of a block: it ends with its statement."""
        key = name.lower()
        if key not in (_ISOLATION, _READ_ONLY, _DEFERRABLE):
            self._settings.set(name, value, local=local)
            return
        if value is None:
            raise FeatureNotSupported(f'parameter "{name}" cannot be reset')
        checked = self._settings.check(name, value)
        if key == _ISOLATION:
            self._block.set_modes(TransactionModes(isolation=checked))
        elif key == _READ_ONLY:
            self._block.set_modes(TransactionModes(read_only=checked == "on"))
        else:
            self._block.set_modes(TransactionModes(deferrable=checked == "on"))

    def _outside(self, what: str) -> Iterator[Notice]:
        """WarnNoTransactionBlock"""
        if not self._block.open:
            message = f"{what} can only be used in transaction blocks"
            yield Notice("WARNING", message, sqlstate="25P01")

    def _modes(self) -> Mapping[str, str]:
        return _as_settings(self._block.modes)

    def _show(self, name: str | None) -> Rows:
        if name is not None:
            return Rows(self.fields(name), [[self.show(name).encode()]], "SHOW", counted=False)
        values = sorted(self.values().items())
        rows = [[key.encode(), value.encode(), b""] for key, value in values]
        return Rows(self.fields(None), rows, "SHOW", counted=False)


def _as_settings(modes: TransactionModes) -> dict[str, str]:
    """Of those that are said."""
    said = {
        _ISOLATION: modes.isolation,
        _READ_ONLY: None if modes.read_only is None else ("off", "on")[modes.read_only],
        _DEFERRABLE: None if modes.deferrable is None else ("off", "on")[modes.deferrable],
    }
    return {key: value for key, value in said.items() if value is not None}
