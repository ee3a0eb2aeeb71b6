"""Streamed transactions come out whole, in the order of their commits, without what was aborted."""

from __future__ import annotations

import shutil
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.attribute import Attribute
from penstock.catalog import Catalog
from penstock.errors import ObjectInUse, ProtocolViolation, UndefinedObject
from penstock.lakehouse.storage import Storage
from penstock.lsn import Lsn
from penstock.pgoutput.columnar import XLOGDATA_HEADER, MessageChunk
from penstock.pgoutput.decoder import Decoder
from penstock.pgoutput.encoder import encode
from penstock.pgoutput.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    RelationMessage,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Text,
    Truncate,
)
from penstock.relation import Relation, ReplicaIdentity
from penstock.subscription.inbox import Inbox
from penstock.subscription.prepared import PreparedStore, PreparedTransactions
from penstock.subscription.streamed import StreamedTransactions
from subscription.test_inbox import frames_of

HEADER = b"w" + bytes(24)
FIRST_XID = 700


def insert(number: int, size: int = 1) -> Insert:
    return Insert(16384, (Text(f"{number}".encode() * size),))


@dataclass
class Transaction:
    """One at the publisher. ``open``: subtransactions that are open, the innermost last, each with
    those inside it that were released."""

    xid: int
    changes: list[tuple[int, Message]] = field(default_factory=list)
    sent: int = 0
    streamed: bool = False
    open: list[list[int]] = field(default_factory=list)
    with_changes_sent: set[int] = field(default_factory=set)


class Server:
    """What reorderbuffer.c and pgoutput.c make of transactions that are open at the same time."""

    def __init__(self) -> None:
        self.out: list[Message] = []
        self.committed: list[list[Message]] = []
        self.open: dict[int, Transaction] = {}
        self.prepared: list[tuple[Transaction, Lsn, str]] = []
        self.lsn = 1000
        self.xid = FIRST_XID
        self.number = 0

    def begin(self) -> None:
        self.xid += 1
        self.open[self.xid] = Transaction(self.xid)

    def change(self, transaction: Transaction, kind: int) -> None:
        self.number += 1
        xid = transaction.open[-1][0] if transaction.open else transaction.xid
        message: Message = insert(self.number, 1 + self.number % 5)
        if kind == 1:
            message = Truncate((16384, self.number))
        elif kind == 2:
            message = LogicalMessage(True, Lsn(5), "p", b"x" * self.number)
        transaction.changes.append((xid, message))

    def savepoint(self, transaction: Transaction) -> None:
        self.xid += 1
        transaction.open.append([self.xid])

    def release(self, transaction: Transaction) -> None:
        if transaction.open:
            released = transaction.open.pop()
            if transaction.open:
                transaction.open[-1] += released

    def rollback_to(self, transaction: Transaction) -> None:
        if not transaction.open:
            return
        parent, *children = transaction.open.pop()
        for subxid in [*children, parent]:
            if subxid in transaction.with_changes_sent:
                self.out.append(StreamAbort(transaction.xid, subxid))
        gone = {parent, *children}
        before = [each for each in transaction.changes[: transaction.sent] if each[0] not in gone]
        after = [each for each in transaction.changes[transaction.sent :] if each[0] not in gone]
        transaction.changes, transaction.sent = before + after, len(before)

    def stream(self, transaction: Transaction) -> None:
        waiting = transaction.changes[transaction.sent :]
        self.out.append(StreamStart(transaction.xid, not transaction.streamed))
        for xid, message in waiting:
            self.out.append(replace(message, xid=xid))  # type: ignore[arg-type]
            transaction.with_changes_sent.add(xid)
        self.out.append(StreamStop())
        transaction.streamed, transaction.sent = True, len(transaction.changes)

    def commit(self, transaction: Transaction) -> None:
        self.lsn += 100
        at, end = Lsn(self.lsn), Lsn(self.lsn + 10)
        begin, commit = Begin(at, 7, transaction.xid), Commit(at, end, 7)
        changes = [message for _, message in transaction.changes]
        if transaction.streamed:
            self.stream(transaction)
            self.out.append(StreamCommit(transaction.xid, at, end, 7))
        else:
            self.out += [begin, *changes, commit]
        self.committed.append([begin, *changes, commit])
        del self.open[transaction.xid]

    def prepare(self, transaction: Transaction) -> None:
        self.lsn += 100
        fields = (Lsn(self.lsn), Lsn(self.lsn + 10), 7, transaction.xid, f"gid {self.xid}")
        if transaction.streamed:
            self.stream(transaction)
            self.out.append(StreamPrepare(*fields))
        else:
            changes = [message for _, message in transaction.changes]
            self.out += [BeginPrepare(*fields), *changes, Prepare(*fields)]
        del self.open[transaction.xid]
        self.prepared.append((transaction, fields[1], fields[4]))

    def finish_prepared(self, which: int, *, commit: bool) -> None:
        transaction, prepare_end, gid = self.prepared.pop(which % len(self.prepared))
        self.lsn += 100
        at, end, xid = Lsn(self.lsn), Lsn(self.lsn + 10), transaction.xid
        if commit:
            self.out.append(CommitPrepared(at, end, 7, xid, gid))
            changes = [message for _, message in transaction.changes]
            self.committed.append([Begin(at, 7, xid), *changes, Commit(at, end, 7)])
        else:
            self.out.append(RollbackPrepared(prepare_end, end, 7, 7, xid, gid))

    def abort(self, transaction: Transaction) -> None:
        if transaction.streamed:
            self.out.append(StreamAbort(transaction.xid, transaction.xid))
        del self.open[transaction.xid]


Steps = list[tuple[str, int, int]]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "begin",
                "change",
                "change",
                "change",
                "stream",
                "stream",
                "savepoint",
                "release",
                "rollback",
                "commit",
                "abort",
                "prepare",
                "commit prepared",
                "rollback prepared",
            ]
        ),
        st.integers(0, 2),
        st.integers(0, 3),
    ),
    max_size=80,
)


def story(steps: Steps) -> Server:
    """Carry out steps on at most three open transactions."""
    server = Server()
    for step, which, kind in steps:
        if step == "begin" and len(server.open) < 3:
            server.begin()
        if step.endswith(" prepared") and server.prepared:
            server.finish_prepared(which, commit=step == "commit prepared")
        if not server.open:
            continue
        transaction = list(server.open.values())[which % len(server.open)]
        match step:
            case "change":
                server.change(transaction, kind)
            case "stream":
                server.stream(transaction)
            case "savepoint":
                server.savepoint(transaction)
            case "release":
                server.release(transaction)
            case "rollback":
                server.rollback_to(transaction)
            case "commit":
                server.commit(transaction)
            case "abort":
                server.abort(transaction)
            case "prepare":
                server.prepare(transaction)
    return server


def frame(message: Message) -> bytes:
    return HEADER + encode(message)


class Receiving:
    """What a node has between its stream and its tables; ``again``: after a restart."""

    def __init__(self, folder: Path, piece_bytes: int = 10_000, piece_frames: int = 1000) -> None:
        self.spool = folder / "spool"
        self.kept = folder / "prepared"
        self.catalog = Catalog.create(f"sqlite:///{folder / f'{uuid.uuid4()}.db'}")
        self._piece_bytes, self._piece_frames = piece_bytes, piece_frames
        self.again(None)

    def again(self, last_cut: Lsn | None) -> None:
        storage = Storage(str(self.kept), fsync=False)
        store = PreparedStore(self.catalog, 5, storage, str(self.kept), self.spool)
        self.prepared = PreparedTransactions(store)
        self.prepared.begin(last_cut)
        self.inbox = Inbox(
            self.spool,
            piece_bytes=self._piece_bytes,
            piece_frames=self._piece_frames,
            memory_bytes=10_000,
        )
        self.streamed = StreamedTransactions(
            self.inbox,
            self.spool,
            self.prepared,
            piece_bytes=self._piece_bytes,
            piece_frames=self._piece_frames,
        )

    def add(self, *messages: Message) -> None:
        self.streamed.add([frame(message) for message in messages], 0.0)

    def xids(self) -> list[int]:
        with self.catalog.read() as t:
            return sorted(xact.xid for xact in t.prepared_xacts.all(5))

    def litter(self) -> list[Path]:
        return [path for path in (*self.spool.rglob("*"), *self.kept.rglob("*")) if path.is_file()]


@pytest.fixture
def receiving(tmp_path: Path) -> Receiving:
    return Receiving(tmp_path)


def taken(inbox: Inbox) -> list[Message]:
    """Everything that has committed, decoded as version 1."""
    found: list[Message] = []
    while (batch := inbox.take(0.0)) is not None:
        decoder = Decoder(1)
        found += [decoder.decode(each[XLOGDATA_HEADER:]) for each in frames_of(batch)]
        batch.forget()
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    steps=STEPS,
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    piece_bytes=st.integers(100, 1500),
    piece_frames=st.integers(2, 20),
)
def test_what_has_committed_comes_out_as_if_nothing_were_streamed(
    tmp_path: Path, steps: Steps, sizes: list[int], piece_bytes: int, piece_frames: int
) -> None:
    server = story(steps)
    node = Receiving(tmp_path, piece_bytes, piece_frames)
    inbox, streamed = node.inbox, node.streamed
    frames = [frame(message) for message in server.out]
    out: list[Message] = []
    at = number = 0
    while at < len(frames):
        size = sizes[number % len(sizes)]
        streamed.add(frames[at : at + size], 0.0)
        at, number = at + size, number + 1
        if number % 3 == 0:
            out += taken(inbox)
    out += taken(inbox)
    wanted = [message for transaction in server.committed for message in transaction]
    assert out == wanted
    assert streamed.surplus == len(wanted) - len(frames)
    streamed.clear()
    assert node.xids() == sorted(
        [each.xid for each, _, _ in server.prepared]
        + [message.xid for message in server.out if isinstance(message, CommitPrepared)]
    )
    node.prepared.forget(Lsn(server.lsn + 10))
    assert node.xids() == sorted(each.xid for each, _, _ in server.prepared)
    assert len(node.litter()) >= len([each for each, _, _ in server.prepared if each.changes])
    for which in range(len(server.prepared)):
        node.prepared.roll_back(
            RollbackPrepared(
                server.prepared[which][1], Lsn(1), 7, 7, server.prepared[which][0].xid, ""
            )
        )
    assert not node.litter()


def test_open_transactions_share_one_bound_of_memory(tmp_path: Path) -> None:
    node = Receiving(tmp_path, piece_bytes=4000, piece_frames=100_000)
    inbox, streamed = node.inbox, node.streamed
    server = Server()
    for _ in range(3):
        server.begin()
    for number in range(300):
        transaction = server.open[FIRST_XID + 1 + number % 3]
        server.change(transaction, 0)
        server.stream(transaction)
    for message in server.out:
        streamed.add([frame(message)], 0.0)
        assert sum(each.tail.size for each in streamed._open.values()) < 4000
    assert len(list(tmp_path.rglob("spill-*"))) > 3
    for transaction in list(server.open.values())[:2]:
        server.commit(transaction)
    (last,) = server.open.values()
    server.abort(last)
    streamed.add([frame(each) for each in server.out[900:]], 0.0)
    assert taken(inbox) == [each for transaction in server.committed for each in transaction]
    assert not node.litter()


def relation(oid: int, *names: str) -> RelationMessage:
    attributes = tuple(Attribute(name, 25, -1) for name in names)
    return RelationMessage(Relation(oid, "public", "t", ReplicaIdentity.DEFAULT, attributes))


def test_the_newest_definition_that_came_holds_after_a_commit(tmp_path: Path) -> None:
    """As it does for the publisher, which sends it no more: it is no matter when the transaction
    commits in which it came."""
    node = Receiving(tmp_path)
    inbox, streamed = node.inbox, node.streamed
    old, new = relation(1, "a", "b"), relation(1, "a", "c")
    other = relation(2, "x")
    messages: list[Message] = [
        StreamStart(5, True), replace(old, xid=5), replace(other, xid=5), replace(insert(1), xid=5),
        StreamStop(),
        Begin(Lsn(10), 7, 6), new, insert(2), Commit(Lsn(10), Lsn(11), 7),
        StreamCommit(5, Lsn(20), Lsn(21), 7),
    ]  # fmt: skip
    streamed.add([frame(message) for message in messages], 0.0)
    assert taken(inbox) == [
        Begin(Lsn(10), 7, 6), new, insert(2), Commit(Lsn(10), Lsn(11), 7),
        Begin(Lsn(20), 7, 5), old, other, insert(1), new, Commit(Lsn(20), Lsn(21), 7),
    ]  # fmt: skip
    assert streamed.surplus == 0


def test_each_definition_is_checked_before_it_goes_on(tmp_path: Path) -> None:
    """In ordinary transactions, in blocks, in prepared ones, and in a backlog."""
    node, seen = Receiving(tmp_path), list[bytes]()
    streamed = StreamedTransactions(
        *(node.inbox, node.spool, node.prepared),
        piece_bytes=1000,
        piece_frames=10,
        check=seen.append,
    )
    definitions = [relation(oid, "a") for oid in range(4)]
    messages: list[Message] = [
        Begin(Lsn(10), 7, 6), definitions[0], insert(1), Commit(Lsn(10), Lsn(11), 7),
        StreamStart(5, True), replace(definitions[1], xid=5), replace(insert(1), xid=5),
        StreamStop(),
        BeginPrepare(*PREPARED), definitions[2], insert(1), Prepare(*PREPARED),
    ]  # fmt: skip
    streamed.add([frame(message) for message in messages], 0.0)
    backlog: list[Message] = [
        Begin(Lsn(50), 7, 7),
        definitions[3],
        insert(1),
        Commit(Lsn(50), Lsn(51), 7),
    ]
    streamed.clear()
    streamed.add(MessageChunk.of_messages([encode(message) for message in backlog]), 0.0)
    assert seen == [encode(definition) for definition in definitions]


def test_a_definition_goes_with_the_subtransaction_that_it_came_in(tmp_path: Path) -> None:
    node = Receiving(tmp_path)
    inbox, streamed = node.inbox, node.streamed
    first, second = relation(1, "a"), relation(1, "b")
    messages: list[Message] = [
        Begin(Lsn(10), 7, 6), first, insert(1), Commit(Lsn(10), Lsn(11), 7),
        StreamStart(5, True), Origin(Lsn(3), "elsewhere"), replace(second, xid=8),
        replace(insert(2), xid=8), StreamStop(),
        StreamAbort(5, 8),
        Begin(Lsn(12), 7, 9), second, insert(3), Commit(Lsn(12), Lsn(13), 7),
        StreamCommit(5, Lsn(20), Lsn(21), 7),
    ]  # fmt: skip
    streamed.add([frame(message) for message in messages], 0.0)
    assert taken(inbox)[8:] == [
        Begin(Lsn(20), 7, 5), Origin(Lsn(3), "elsewhere"), Commit(Lsn(20), Lsn(21), 7)
    ]  # fmt: skip


def test_a_node_that_was_replaced_removes_no_prepared_transaction(tmp_path: Path) -> None:
    """Its files are those of the node that runs now."""
    node = Receiving(tmp_path)
    node.add(BeginPrepare(*PREPARED), relation(1, "a"), insert(1), Prepare(*PREPARED))
    kept = node.litter()
    assert kept

    def refuse() -> None:
        raise ObjectInUse("another node")

    store = replace(node.prepared._store, check=refuse)
    replaced = PreparedTransactions(store)
    replaced.begin(None)
    prepare = Prepare(*PREPARED)
    rollback = RollbackPrepared(prepare.end_lsn, Lsn(99), 7, 7, prepare.xid, "")
    with pytest.raises(ObjectInUse):
        replaced.roll_back(rollback)
    with Catalog.create(f"sqlite:///{tmp_path / 'other.db'}") as lost, pytest.raises(ObjectInUse):
        PreparedTransactions(replace(store, catalog=lost)).begin(None)
    assert node.litter() == kept and node.xids() == [prepare.xid]
    node.prepared.roll_back(rollback)
    assert not node.litter()


START, STOP = StreamStart(5, True), StreamStop()
COMMIT = StreamCommit(5, Lsn(20), Lsn(21), 7)


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([START, START], "duplicate STREAM START message"),
        ([STOP], "STREAM STOP message without STREAM START"),
        ([START, STOP, STOP], "STREAM STOP message without STREAM START"),
        ([START, COMMIT], "STREAM COMMIT message without STREAM STOP"),
        ([START, StreamAbort(5, 5)], "STREAM ABORT message without STREAM STOP"),
        ([StreamStart(0, True)], "invalid transaction ID in streamed replication transaction"),
        ([COMMIT], "STREAM COMMIT of unknown transaction 5"),
        ([StreamStart(5, False)], "transaction 5 is not in its place"),
        ([START, STOP, START], "transaction 5 is not in its place"),
        ([START, Begin(Lsn(1), 7, 6)], 'message type "B" inside of a streamed block'),
        ([START, Commit(Lsn(1), Lsn(2), 7)], 'message type "C" inside of a streamed block'),
    ],
)
def test_violations_of_the_protocol(tmp_path: Path, messages: list[Message], error: str) -> None:
    streamed = Receiving(tmp_path).streamed
    with pytest.raises(ProtocolViolation, match=error):
        streamed.add([frame(message) for message in messages], 0.0)


@pytest.mark.parametrize("message", [START, STOP, COMMIT, StreamAbort(5, 6), relation(1, "a")])
def test_a_truncated_message_is_a_violation(tmp_path: Path, message: Message) -> None:
    whole = frame(message)
    for length in range(XLOGDATA_HEADER, len(whole)):
        streamed = Receiving(tmp_path).streamed
        before: list[Message] = (
            [START, STOP] if message is COMMIT else [START] if message is STOP else []
        )
        if isinstance(message, RelationMessage) and length >= XLOGDATA_HEADER + 5:
            break  # what follows its OID is read when its transaction is applied
        with pytest.raises(ProtocolViolation):
            streamed.add([*map(frame, before), whole[:length]], 0.0)


def test_an_abort_of_what_never_came_changes_nothing(tmp_path: Path) -> None:
    node = Receiving(tmp_path)
    inbox, streamed = node.inbox, node.streamed
    messages: list[Message] = [
        StreamAbort(9, 9),
        StreamAbort(9, 10),
        START,
        STOP,
        StreamAbort(5, 77),
        COMMIT,
    ]
    streamed.add([frame(message) for message in messages], 0.0)
    assert taken(inbox) == [Begin(Lsn(20), 7, 5), Commit(Lsn(20), Lsn(21), 7)]


PREPARED = (Lsn(30), Lsn(31), 7, 5, "two")
BEGIN_PREPARE, PREPARE = BeginPrepare(*PREPARED), Prepare(*PREPARED)
COMMIT_PREPARED = CommitPrepared(Lsn(40), Lsn(41), 7, 5, "two")


def test_a_prepared_transaction_outlives_restarts(receiving: Receiving) -> None:
    receiving.add(BEGIN_PREPARE, insert(1), PREPARE)
    receiving.again(Lsn(20))
    receiving.add(BEGIN_PREPARE, insert(1), PREPARE)  # it was not in a cut: it comes again
    receiving.again(Lsn(31))
    assert receiving.xids() == [5] and len(receiving.litter()) == 1
    receiving.add(COMMIT_PREPARED)
    receiving.again(Lsn(31))  # nor was its commit
    receiving.add(COMMIT_PREPARED)
    wanted = [Begin(Lsn(40), 7, 5), insert(1), Commit(Lsn(40), Lsn(41), 7)]
    assert taken(receiving.inbox) == wanted
    receiving.again(Lsn(41))
    assert receiving.xids() == [] and not receiving.litter()


def test_files_of_before_a_kill_go(receiving: Receiving) -> None:
    """Those without a row, which was not written or is written again, and those of a finished one
    whose row is still there."""
    receiving.add(BEGIN_PREPARE, insert(1), PREPARE)
    (file,) = receiving.litter()
    kept = file.parent
    shutil.copytree(kept, kept.with_name(kept.name[:-1] + "x"))
    receiving.again(Lsn(20))
    assert receiving.litter() == [file]
    receiving.add(COMMIT_PREPARED)
    assert len(taken(receiving.inbox)) == 3
    shutil.rmtree(kept)
    receiving.again(Lsn(41))
    assert receiving.xids() == [] and not receiving.litter()


def test_a_second_phase_without_the_first(receiving: Receiving) -> None:
    """Servers before 18 tell no more than that, where nothing was changed."""
    receiving.add(COMMIT_PREPARED, RollbackPrepared(Lsn(31), Lsn(51), 7, 7, 6, "two"))
    assert taken(receiving.inbox) == [Begin(Lsn(40), 7, 5), Commit(Lsn(40), Lsn(41), 7)]


def test_a_state_store_that_lacks_what_the_warehouse_has(receiving: Receiving) -> None:
    receiving.add(BEGIN_PREPARE, insert(1), PREPARE)
    with receiving.catalog.write() as t:
        t.prepared_xacts.delete_all(5)
    receiving.again(Lsn(31))
    with pytest.raises(UndefinedObject, match='with identifier "pg_gid_5_5" does not exist'):
        receiving.add(COMMIT_PREPARED)


def test_a_prepare_without_its_beginning_is_of_an_empty_transaction(receiving: Receiving) -> None:
    """PostgreSQL 18 sends it so, and of those that were rolled back before they were decoded."""
    receiving.add(PREPARE)
    assert receiving.xids() == [5]
    receiving.add(RollbackPrepared(Lsn(31), Lsn(41), 7, 7, 5, "two"))
    assert receiving.xids() == []
    receiving.add(PREPARE, COMMIT_PREPARED)
    assert taken(receiving.inbox) == [Begin(Lsn(40), 7, 5), Commit(Lsn(40), Lsn(41), 7)]


def test_a_rollback_of_another_one_of_the_same_xid_changes_nothing(receiving: Receiving) -> None:
    receiving.add(BEGIN_PREPARE, PREPARE)
    receiving.add(RollbackPrepared(Lsn(21), Lsn(41), 7, 7, 5, "two"))
    assert receiving.xids() == [5]


def test_a_prepared_transaction_brings_the_definitions_that_it_needs(receiving: Receiving) -> None:
    """It may be committed in another stream, which has no others."""
    known, other, unused = relation(16384, "a"), relation(7, "x"), relation(8, "y")
    truncate = Truncate((7,))
    receiving.add(Begin(Lsn(10), 7, 6), known, other, unused, Commit(Lsn(10), Lsn(11), 7))
    receiving.add(BEGIN_PREPARE, insert(1), truncate, relation(16384, "b"), insert(2), PREPARE)
    receiving.again(Lsn(31))
    receiving.add(Begin(Lsn(32), 7, 8), relation(7, "z"), Commit(Lsn(32), Lsn(33), 7))
    receiving.add(COMMIT_PREPARED)
    assert taken(receiving.inbox)[3:] == [
        Begin(Lsn(40), 7, 5), other, known, insert(1), truncate, relation(16384, "b"), insert(2),
        relation(7, "z"), Commit(Lsn(40), Lsn(41), 7),
    ]  # fmt: skip


def test_definitions_of_a_prepared_transaction_hold_at_once(receiving: Receiving) -> None:
    """The publisher does not send them again, though nothing of it has committed."""
    first, second = relation(1, "a"), relation(1, "b")
    receiving.add(BEGIN_PREPARE, first, insert(1), PREPARE)
    receiving.add(Begin(Lsn(32), 7, 6), insert(2), Commit(Lsn(32), Lsn(33), 7))
    receiving.add(Begin(Lsn(34), 7, 7), second, insert(3), Commit(Lsn(34), Lsn(35), 7))
    receiving.add(COMMIT_PREPARED)
    assert taken(receiving.inbox) == [
        first, Begin(Lsn(32), 7, 6), insert(2), Commit(Lsn(32), Lsn(33), 7),
        Begin(Lsn(34), 7, 7), second, insert(3), Commit(Lsn(34), Lsn(35), 7),
        Begin(Lsn(40), 7, 5), first, insert(1), second, Commit(Lsn(40), Lsn(41), 7),
    ]  # fmt: skip
    assert receiving.streamed.surplus == 13 - 12


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=25
)
@given(steps=STEPS, size=st.integers(1, 30), told=st.booleans())
def test_messages_without_headers_come_out_as_frames_do(
    tmp_path: Path, steps: Steps, size: int, told: bool
) -> None:
    """A backlog's, with a message of no transaction and without."""
    sent = [*story(steps).out, *([LogicalMessage(False, Lsn(1 << 20), "p", b"x")] if told else [])]
    framed, bare = Receiving(tmp_path / "framed"), Receiving(tmp_path / "bare")
    for at in range(0, len(sent), size):
        framed.add(*sent[at : at + size])
        encoded = [encode(message) for message in sent[at : at + size]]
        bare.streamed.add(MessageChunk.of_messages(encoded), 0.0)
    assert bare.streamed.surplus == framed.streamed.surplus
    found = taken(bare.inbox)
    assert found == taken(framed.inbox)
    assert any(isinstance(message, LogicalMessage) for message in found) or not told
    for each in (framed, bare):
        each.streamed.clear()
        each.inbox.clear()


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([START, PREPARE], "PREPARE message without STREAM STOP"),
        ([BEGIN_PREPARE, PREPARE, COMMIT_PREPARED, STOP], "STREAM STOP message without"),
        ([BEGIN_PREPARE, COMMIT_PREPARED], 'message type "K" inside of a block'),
        ([BEGIN_PREPARE, START], 'message type "S" inside of a block'),
        ([START, BEGIN_PREPARE], 'message type "b" inside of a block'),
        ([START, StreamPrepare(*PREPARED)], "STREAM PREPARE message without STREAM STOP"),
        ([StreamPrepare(*PREPARED)], "STREAM PREPARE of unknown transaction 5"),
        ([BEGIN_PREPARE, replace(PREPARE, prepare_lsn=Lsn(29))], "incorrect prepare LSN 0/1D in"),
    ],
)
def test_violations_of_the_protocol_by_prepared_transactions(
    receiving: Receiving, messages: list[Message], error: str
) -> None:
    with pytest.raises(ProtocolViolation, match=error):
        receiving.add(*messages)
