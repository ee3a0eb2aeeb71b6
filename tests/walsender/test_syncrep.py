"""synchronous_standby_names: how it is read, beside a stock server's errors; who counts as what."""

from __future__ import annotations

import psycopg
import pytest

from fix_postgres import Database
from penstock.errors import PenstockError
from penstock.lsn import Lsn
from penstock.walsender.senders import Sender, Senders
from penstock.walsender.stream import SenderState
from penstock.walsender.syncrep import SyncRep
from penstock.walsender.syncrep_gram import SyncRepConfig, parse

_WRONG = [
    " ",
    "a,",
    "a b",
    "first",
    "ANY (a)",
    "ANY 1 a",
    "ANY 1 (a",
    "1 (a, )",
    "FIRST 0 (a)",
    "0(a)",
    "any 1 (a) b",
    "a.b",
    "FIRST -1 (a)",
    "2 (any)",
    '"a" "b"',
    "(a)",
]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", SyncRepConfig(1, ("a",))),
        ("*", SyncRepConfig(1, ("*",))),
        ('a, "B c""d" ,1', SyncRepConfig(1, ("a", 'B c"d', "1"))),
        ("2(a,b)", SyncRepConfig(2, ("a", "b"))),
        ("First 2 (a, b,c$)", SyncRepConfig(2, ("a", "b", "c$"))),
        ("any 3 (a, b, c, *)", SyncRepConfig(3, ("a", "b", "c", "*"), priority=False)),
        ('"any"', SyncRepConfig(1, ("any",))),
        ("é", SyncRepConfig(1, ("é",))),
        ("", None),
    ],
)
def test_names_are_read(text: str, expected: SyncRepConfig | None) -> None:
    assert parse(text) == expected


@pytest.mark.postgres
def test_wrong_names_get_a_servers_errors(database: Database) -> None:
    with psycopg.connect(database.conninfo, autocommit=True) as session:
        for text in _WRONG:
            with pytest.raises(psycopg.Error) as theirs:
                session.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{text}'")
            with pytest.raises(PenstockError) as ours:
                parse(text)
            diag = theirs.value.diag
            found = ours.value.message, ours.value.detail, ours.value.sqlstate
            assert found == (diag.message_primary, diag.message_detail, diag.sqlstate), text


class Standbys:
    """Streams with what their clients have confirmed; all three are the same unless said."""

    def __init__(self, names: str) -> None:
        self.senders = Senders()
        self.sync = SyncRep(self.senders, lambda: names)

    def heard(self, pid: int, name: str, flush: int, apply: int | None = None) -> None:
        at = Lsn(flush)
        state = SenderState(name, at, at, at, Lsn(flush if apply is None else apply))
        self.senders._running[pid] = Sender(pid, 1, name, "", 0, 0.0, state)

    def states(self) -> list[tuple[int, int, str]]:
        return [(pid, s.priority, s.state) for pid, s in sorted(self.sync.states().items())]

    def reached(self, position: int, mode: str = "on") -> bool:
        return self.sync.wait(Lsn(position), mode, lambda: True)


def test_the_first_of_a_list() -> None:
    standbys = Standbys("FIRST 2 (a, B, c)")
    standbys.heard(1, "c", 90)
    standbys.heard(2, "b", 50)
    standbys.heard(3, "other", 90)
    standbys.heard(4, "a", 0)
    assert standbys.states() == [(1, 3, "sync"), (2, 2, "sync")]
    assert standbys.reached(50)
    assert not standbys.reached(51)
    standbys.heard(4, "a", 70)
    assert standbys.states() == [(1, 3, "potential"), (2, 2, "sync"), (4, 1, "sync")]
    standbys.heard(2, "b", 80)
    assert standbys.reached(70)
    assert not standbys.reached(71)
    assert standbys.reached(1000, "local")
    assert standbys.reached(1000, "off")
    standbys.senders._running.clear()
    assert standbys.reached(70), "what was confirmed once stays so"
    assert not standbys.reached(71)


def test_any_of_a_list() -> None:
    standbys = Standbys("ANY 2 (a, b, c)")
    standbys.heard(1, "a", 30, apply=10)
    assert not standbys.reached(1)
    standbys.heard(2, "b", 20, apply=20)
    standbys.heard(3, "c", 10, apply=10)
    assert standbys.states() == [(1, 1, "quorum"), (2, 1, "quorum"), (3, 1, "quorum")]
    assert standbys.reached(20)
    assert not standbys.reached(21)
    assert standbys.reached(10, "remote_apply")
    assert not standbys.reached(11, "remote_apply")
    assert standbys.reached(20, "remote_write")


def test_nobody_is_named() -> None:
    standbys = Standbys("")
    standbys.heard(1, "a", 1)
    assert standbys.states() == []
    assert standbys.reached(1000)
