"""Values of sequences: each is given out once, by several threads, after a kill, and in order."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.catalog import Catalog, SequenceParameters, SessionSequences
from penstock.errors import NotInPrerequisiteState, PenstockError
from penstock.pgtypes.pg_type import INT2, INT8
from penstock.sqlstate import UndefinedTable

_BIG = SequenceParameters(INT8, 1, 1, 1, (1 << 63) - 1, 1, cycle=False)
_THREADS, _TAKES = 4, 25


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    found = f"sqlite:///{tmp_path / 'state.db'}"
    Catalog.create(found).close()
    yield found


def _made(catalog: Catalog, parameters: SequenceParameters = _BIG) -> int:
    with catalog.write() as t:
        return t.sequences.create("s", 1, "c", "", parameters).oid


def _logged(catalog: Catalog, oid: int) -> int:
    with catalog.read() as t:
        found = t.sequences.find_oid(oid)
    assert found is not None
    return found.last_value


def test_each_value_once_by_several_threads(url: str) -> None:
    with Catalog.open(url) as catalog:
        oid = _made(catalog)
        before = catalog.generation()

        def take(count: int) -> list[int]:
            session, found = SessionSequences(), list[int]()
            for _ in range(_TAKES):
                values = catalog.sequences.take(oid, count, session)
                assert session.values[oid] == catalog.sequences.current(oid, session) == values[-1]
                found += values
            assert found == sorted(found)
            return found

        with ThreadPoolExecutor(_THREADS) as pool:
            found = [v for values in pool.map(take, range(1, _THREADS + 1)) for v in values]
        assert sorted(found) == list(range(1, len(found) + 1))
        assert catalog.generation() - before < len(found) / 10


def test_a_process_that_ends_leaves_no_gap_and_one_that_is_killed_leaves_a_small_one(
    url: str,
) -> None:
    session = SessionSequences()
    with Catalog.open(url) as catalog:
        oid = _made(catalog)
        assert [*catalog.sequences.take(oid, 3, session)] == [1, 2, 3]
    killed = Catalog.open(url)  # it is never closed
    assert [*killed.sequences.take(oid, 1, session)] == [4]
    assert _logged(killed, oid) == 36
    with Catalog.open(url) as catalog:
        assert catalog.sequences.state(oid) == (36, True)
        assert [*catalog.sequences.take(oid, 2, session)] == [37, 38]
        # Who has gone on all the same takes none that others have.
        assert killed.sequences.take(oid, 1, session)[0] > 38


def test_set_and_bounds(url: str) -> None:
    session = SessionSequences()
    with Catalog.open(url) as catalog:
        oid = _made(catalog, SequenceParameters(INT2, 5, -2, -1, 5, 1, cycle=False))
        with pytest.raises(NotInPrerequisiteState):
            catalog.sequences.current(oid, session)
        with pytest.raises(NotInPrerequisiteState):
            catalog.sequences.last(session)
        with pytest.raises(PenstockError) as reached:
            catalog.sequences.take(oid, 5, session)
        assert reached.value.sqlstate == "2200H"
        assert [*catalog.sequences.take(oid, 4, session)] == [5, 3, 1, -1]
        assert catalog.sequences.set(oid, 4, session, is_called=True) == 4
        assert catalog.sequences.current(oid, session) == 4
        assert [*catalog.sequences.take(oid, 1, session)] == [2]
        assert catalog.sequences.set(oid, 3, session, is_called=False) == 3
        assert [*catalog.sequences.take(oid, 2, session)] == [3, 1]
        catalog.sequences.restart(oid)
        assert [*catalog.sequences.take(oid, 1, session)] == [5]
        with pytest.raises(PenstockError):
            catalog.sequences.set(oid, 6, session, is_called=True)
        with catalog.write() as t:
            t.sequences.delete_of(1, "c")
        with pytest.raises(UndefinedTable):
            catalog.sequences.take(oid, 1, session)
        with pytest.raises(NotInPrerequisiteState):
            catalog.sequences.last(session)


def test_cycles(url: str) -> None:
    with Catalog.open(url) as catalog:
        oid = _made(catalog, SequenceParameters(INT2, 2, 1, 1, 3, 1, cycle=True))
        assert catalog.sequences.take(oid, 70, SessionSequences())[:5] == [2, 3, 1, 2, 3]
        assert [*catalog.sequences.take(oid, 1, SessionSequences())] == [3]
