"""Input functions of columns: a text to the value that a column of a type and modifier holds.

In: the text of a value, as another type's output function or a user has written it; a type and its
modifier. Out: what the output function prints of it, or PostgreSQL's error. Literals of statements
have fewer types (``literals``), since an expression must know what to do with them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from penstock.errors import FeatureNotSupported
from penstock.pgtypes import pg_type
from penstock.pgtypes.pg_type import (
    BIT,
    BPCHAR,
    INTERVAL,
    NUMERIC,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    TIMETZ,
    VARBIT,
    VARCHAR,
)
from penstock.sql.builtin.type_cache import ENUM, types
from penstock.sql.text.array_literals import read_array
from penstock.sql.text.bit_literals import read_bit
from penstock.sql.text.network_literals import read_cidr, read_inet, read_macaddr
from penstock.sql.text.quoting import type_text
from penstock.sql.text.time_literals import read_time
from penstock.sql.typed.fitting import fitted
from penstock.sql.typed.literals import canonical

_BY_NAME: Final = pg_type.types_by_name()
_NAMES: Final = """
bool bytea char name int8 int2 int4 text oid json jsonb float4 float8 bpchar varchar date
timestamp timestamptz interval numeric uuid pg_lsn
"""
_PLAIN: Final = frozenset(_BY_NAME[name].oid for name in _NAMES.split())
"""Types whose literals are read as their values are."""
_OTHERS: Final[dict[int, Callable[[str], str]]] = {
    _BY_NAME["inet"].oid: read_inet,
    _BY_NAME["cidr"].oid: read_cidr,
    _BY_NAME["macaddr"].oid: read_macaddr,
}
_WITH_MODIFIERS: Final = frozenset({BPCHAR, VARCHAR, NUMERIC, TIMESTAMP, TIMESTAMPTZ})
_ANY_PRECISION: Final = 6


def has_input(type_oid: int, typmod: int) -> bool:
    """Whether texts of every form that PostgreSQL prints are read as values of the type."""
    type_ = types().get(type_oid)
    if type_ is None:
        return False
    if type_.element and not type_.is_vector:
        return has_input(type_.element, typmod)
    if type_oid == INTERVAL:
        return typmod < 0
    return type_.kind == ENUM or type_oid in _PLAIN | _OTHERS.keys() | {TIME, TIMETZ, BIT, VARBIT}


def input_function(type_oid: int, typmod: int) -> Callable[[str], str]:
    """What reads values of a type that ``has_input``. It raises PenstockError as PostgreSQL does,
    FeatureNotSupported for a text that PostgreSQL may read and we do not."""
    type_ = types()[type_oid]
    if type_.element and not type_.is_vector:
        element = input_function(type_.element, typmod)
        return partial(read_array, canonical=element)
    if type_oid in (BIT, VARBIT):
        return partial(read_bit, typmod=typmod, varying=type_oid == VARBIT)
    if type_oid in (TIME, TIMETZ):
        digits = _ANY_PRECISION if typmod < 0 else typmod
        return partial(read_time, zone=type_oid == TIMETZ, digits=digits)
    if type_oid in _OTHERS:
        return _OTHERS[type_oid]
    if not has_input(type_oid, typmod):
        raise FeatureNotSupported(f"values of type {type_text(type_oid, typmod)} are not read")
    if typmod < 0 or type_oid not in _WITH_MODIFIERS:
        return partial(canonical, type_oid=type_oid)
    return lambda text: fitted(canonical(text, type_oid), type_oid, typmod)
